import copy
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from dataplane.text.detokenize import ByteLevel, Pieces
from dataplane.text.tokenizer_components import TokenizerRefused
from dataplane.text.tokenizer_schema import read_vocabulary
from tests.hostile.tokenizer_cases import CONTRADICTIONS, FLAGS, NOT_LISTED
from tests.text import tokenizer_files


@pytest.fixture(scope="module")
def byte_level_json(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tokenizer_files.byte_level(tmp_path_factory.mktemp("byte-level"))
    content: dict[str, Any] = json.loads((folder / "tokenizer.json").read_bytes())
    return content


def dump(content: object) -> bytes:
    return json.dumps(content).encode()


def test_both_kinds_are_read(byte_level_json: dict[str, Any]) -> None:
    small = read_vocabulary(dump(byte_level_json))
    assert (small.decoder, small.size, small.unknown_id) == (ByteLevel(), 320, None)
    llama = read_vocabulary(dump(tokenizer_files.llama_2_json()))
    assert llama.decoder == Pieces(replacements=(("▁", " "),), byte_fallback=True, strip=" ", strip_count=1)
    assert llama.special == {"<unk>": 0, "<s>": 1, "</s>": 2}
    assert llama.unknown_id == 0


def test_added_tokens_take_the_ids_that_the_library_gives_them(byte_level_json: dict[str, Any]) -> None:
    content = copy.deepcopy(byte_level_json)
    content["added_tokens"].append({"id": 320, "content": "<tool>", **FLAGS, "special": False})
    assert read_vocabulary(dump(content)).tokens[320] == "<tool>"
    assert Tokenizer.from_str(json.dumps(content)).token_to_id("<tool>") == 320


def test_a_control_token_needs_no_embedding_but_one_that_text_becomes_does(byte_level_json: dict[str, Any]) -> None:
    for special, size in ((True, 320), (False, 321)):
        content = copy.deepcopy(byte_level_json)
        content["added_tokens"].append({"id": 320, "content": "<image>", **FLAGS, "special": special})
        assert read_vocabulary(dump(content)).size == size
    unknown = copy.deepcopy(tokenizer_files.llama_2_json())
    del unknown["model"]["vocab"]["<unk>"]
    unknown["model"]["vocab"] = {word: number - 1 for word, number in unknown["model"]["vocab"].items()}
    last = len(unknown["model"]["vocab"])
    unknown["model"]["vocab"]["<unk>"] = last
    ids = {"<unk>": last, "<s>": 0, "</s>": 1}
    unknown["added_tokens"] = [token | {"id": ids[token["content"]]} for token in unknown["added_tokens"]]
    unknown["post_processor"]["special_tokens"]["<s>"]["ids"] = [0]
    assert read_vocabulary(dump(unknown)).size == last + 1  # any text may become it


@pytest.mark.parametrize("change", NOT_LISTED.values(), ids=NOT_LISTED)
def test_what_is_not_on_the_list_is_refused_with_a_mend(change: dict[str, Any]) -> None:
    with pytest.raises(TokenizerRefused) as caught:
        read_vocabulary(dump(tokenizer_files.llama_2_json() | change))
    assert caught.value.mend


@pytest.mark.parametrize(
    "values", [b"1,", b"[],", b"{},", b'"",', b'"a",', b"[[[[[[[[]]]]]]]],", b'{"":{"":{"":[]}}},']
)
def test_nothing_is_made_of_a_file_of_too_many_values(values: bytes) -> None:
    raw = b'{"model":{"merges":[' + values * (18_000_000 // len(values)) + b"0]}}"
    tracemalloc.start()
    try:
        with pytest.raises(TokenizerRefused, match="more than 4194304 values"):
            read_vocabulary(raw)
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most_bytes < 1_000_000


def steps(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "normalizers": list(parts)}


BYTES = {"type": "ByteLevel"}
DOUBLED = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
LONGER = {"type": "Replace", "pattern": {"String": "abc"}, "content": "abcd"}
EVERYWHERE = {"type": "Replace", "pattern": {"Regex": "x*"}, "content": "yyy"}


@pytest.mark.parametrize(
    ("normalizer", "growth"),
    [
        (steps(*[DOUBLED] * 6), 64),
        (steps(*[DOUBLED] * 7), 128),
        (steps(BYTES, BYTES, BYTES), 64),
        (steps(BYTES, BYTES, BYTES, LONGER), 128),
        (steps(EVERYWHERE, steps(EVERYWHERE, EVERYWHERE)), 64),
        (steps(EVERYWHERE, steps(EVERYWHERE, EVERYWHERE, EVERYWHERE)), 256),
    ],
)
def test_a_text_may_grow_to_64_times_its_length(normalizer: dict[str, Any], growth: int) -> None:
    content = dump(tokenizer_files.llama_2_json() | {"normalizer": normalizer})
    if growth <= 64:
        read_vocabulary(content)
    else:
        with pytest.raises(TokenizerRefused, match=f"{growth} times"):
            read_vocabulary(content)


@pytest.mark.parametrize(("field", "value"), CONTRADICTIONS)
def test_a_model_that_contradicts_itself_is_refused(field: str, value: object) -> None:
    content = tokenizer_files.llama_2_json()
    content["model"][field] = value
    with pytest.raises(TokenizerRefused):
        read_vocabulary(dump(content))


@pytest.mark.parametrize("raw", [b"", b"{}", b"[]", b'{"version": NaN}', b"\xff\xfe", b"[" * 100_000])
def test_what_is_no_tokenizer_is_refused(raw: bytes) -> None:
    with pytest.raises(TokenizerRefused):
        read_vocabulary(raw)


JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 2**33), st.text(max_size=3), st.builds(list), st.builds(dict),
    st.sampled_from(["BPE", "Sequence", "ByteLevel", "Replace", "String", "Regex", "<s>", "A", "first"]),
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value inside ``value``, large tables as a whole."""
    if isinstance(value, dict) and len(value) < 20:
        return [path, *(place for key, inner in value.items() for place in places(inner, (*path, key)))]
    if isinstance(value, list) and len(value) < 20:
        return [path, *(place for key, inner in enumerate(value) for place in places(inner, (*path, key)))]
    return [path]


@given(st.data())
def test_what_is_accepted_loads_in_the_library_and_agrees_with_it(
    byte_level_json: dict[str, Any], data: st.DataObject
) -> None:
    content: Any = copy.deepcopy(data.draw(st.sampled_from([tokenizer_files.llama_2_json(), byte_level_json])))
    for place in data.draw(st.lists(st.sampled_from(places(content)[1:]), min_size=1, max_size=2, unique=True)):
        target = content
        try:
            for key in place[:-1]:
                target = target[key]
            if data.draw(st.booleans()):
                del target[place[-1]]
            else:
                target[place[-1]] = data.draw(JUNK)
        except (TypeError, LookupError):  # the first change took the second one's place away
            continue
    try:
        vocabulary = read_vocabulary(dump(content))
    except TokenizerRefused:
        return
    library = Tokenizer.from_str(json.dumps(content))
    assert {number: text for text, number in library.get_vocab().items()} == vocabulary.tokens
    special = {text.content for text in library.get_added_tokens_decoder().values() if text.special}
    assert special == set(vocabulary.special)


def test_the_bundled_tokenizer_is_accepted() -> None:
    path: Path = tokenizer_files.BUNDLED / "tokenizer.json"
    if path.exists():
        assert read_vocabulary(path.read_bytes()).size == 49_152
