from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from dataplane.text.detokenize import Detokenizer
from dataplane.text.tokenizer_schema import read_vocabulary
from tests.text import tokenizer_files

FOLDERS: dict[str, Callable[[Path], Path]] = {
    "byte-level": tokenizer_files.byte_level,
    "llama-2": tokenizer_files.llama_2,
}
if (tokenizer_files.BUNDLED / "tokenizer.json").exists():
    FOLDERS["bundled"] = lambda _folder: tokenizer_files.BUNDLED

TEXTS = st.text() | st.text("▁ <0xE2>é漢🙂\u200d\ufffd\x00", max_size=20)
BORDERS = st.lists(st.integers(0, 60), max_size=20)


class Pair:
    """Ours and the library's decoder of one tokenizer."""

    def __init__(self, folder: Path) -> None:
        raw = (folder / "tokenizer.json").read_bytes()
        vocabulary = read_vocabulary(raw)
        self.size = vocabulary.size
        self.oracle = Tokenizer.from_str(raw.decode())
        special_ids = frozenset(vocabulary.special.values())
        self.ours = Detokenizer(vocabulary.decoder, vocabulary.tokens, special_ids)

    def streamed(self, token_ids: list[int], borders: list[int]) -> list[str]:
        places = sorted({0, len(token_ids), *(min(border, len(token_ids)) for border in borders)})
        stream = self.ours.stream()
        pieces = [stream.push(token_ids[a:b], last=False) for a, b in pairwise(places)]
        return [*pieces, stream.push([], last=True)]


@pytest.fixture(scope="module", params=FOLDERS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(FOLDERS[request.param](tmp_path_factory.mktemp("tokenizer")))


@given(data=st.data(), borders=BORDERS)
def test_any_tokens_cut_anywhere_give_the_librarys_text(pair: Pair, data: st.DataObject, borders: list[int]) -> None:
    token_ids = data.draw(st.lists(st.integers(0, pair.size + 3), max_size=60))
    assert "".join(pair.streamed(token_ids, borders)) == pair.oracle.decode(token_ids)


@given(text=TEXTS, borders=BORDERS)
def test_the_tokens_of_a_text_never_show_a_part_of_a_character(pair: Pair, text: str, borders: list[int]) -> None:
    token_ids = pair.oracle.encode(text, add_special_tokens=False).ids
    pieces = pair.streamed(token_ids, borders)
    whole = pair.oracle.decode(token_ids)
    assert "".join(pieces) == whole
    if "\ufffd" not in whole:
        assert not any("\ufffd" in piece for piece in pieces)


def test_a_lone_tail_is_flushed_as_one_replacement_character(pair: Pair) -> None:
    token_ids = pair.oracle.encode("é", add_special_tokens=False).ids
    if pair.oracle.decode(token_ids[:-1]).strip() != "\ufffd":
        return  # this vocabulary has é as one token: there is no tail
    stream = pair.ours.stream()
    assert stream.push(token_ids[:-1], last=False).strip() == ""
    assert stream.push([], last=True) == "\ufffd"


def test_control_tokens_and_unknown_ids_are_no_text(pair: Pair) -> None:
    token_ids = [0, 1, 2, pair.size, pair.size + 1000, 10**9]
    assert pair.ours.decode(token_ids) == ""


@given(text=TEXTS)
def test_the_bytes_of_a_texts_tokens_joined_are_the_texts(pair: Pair, text: str) -> None:
    token_ids = pair.oracle.encode(text, add_special_tokens=False).ids
    if text and not set(token_ids) & {0, 1, 2}:
        joined = b"".join(map(pair.ours.spell, token_ids)).decode(errors="replace")
        assert joined.lstrip(" ") == pair.oracle.decode(token_ids).lstrip(" ")


def test_a_control_token_is_spelled_by_its_name_and_no_token_as_nothing(pair: Pair) -> None:
    assert pair.ours.spell(1) == pair.oracle.id_to_token(1).encode()
    assert pair.ours.spell(10**9) == b""
