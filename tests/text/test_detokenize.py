from array import array
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from dataplane.contracts.generation import TokenizerOpened
from dataplane.contracts.wire import frame
from dataplane.text.detokenize import (
    MAX_TOKEN_BYTES,
    MAX_VOCABULARY_BYTES,
    ByteLevel,
    Detokenizer,
    Pieces,
    TokenKind,
    VocabularyRefused,
    spell_out,
)
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
        self.ours = Detokenizer(spell_out(vocabulary.decoder, vocabulary.tokens, special_ids))

    def streamed(self, token_ids: list[int], borders: list[int]) -> list[str]:
        places = sorted({0, len(token_ids), *(min(border, len(token_ids)) for border in borders)})
        stream = self.ours.stream()
        pieces = [stream.push(token_ids[a:b]) for a, b in pairwise(places)]
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
    assert stream.push(token_ids[:-1]).strip() == ""
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


def test_streams_do_not_mix(pair: Pair) -> None:
    smile, umlaut = (pair.oracle.encode(text, add_special_tokens=False).ids for text in ("\U0001f642", "ü"))
    left, right = pair.ours.stream(), pair.ours.stream()
    assert left.push(smile[:-1]).strip() == ""
    assert right.push(umlaut, last=True).strip() == "ü"
    assert left.push(smile[-1:], last=True).strip() == "\U0001f642"


SPELLED = spell_out(ByteLevel(), {0: "<s>", 1: "a", 3: "bc"}, {0})


def test_what_a_token_adds_to_a_text_is_nothing_for_control_tokens_gaps_and_ids_beyond_the_last() -> None:
    ours = Detokenizer(SPELLED)
    assert ours.token_bytes(6) == [b"", b"a", b"", b"bc", b"", b""]
    assert [ours.spell(token_id) for token_id in range(6)] == [b"<s>", b"a", b"", b"bc", b"", b""]
    assert ours.longest_text_bytes == 2
    assert list(SPELLED.kinds) == [TokenKind.CONTROL, TokenKind.TEXT, TokenKind.NOTHING, TokenKind.TEXT]


@pytest.mark.parametrize(
    "change",
    [
        {"blob": SPELLED.blob + b"x"},
        {"blob": SPELLED.blob[:-1]},
        {"lengths": SPELLED.lengths[:-1]},
        {"lengths": SPELLED.lengths + b"\0\0"},
        {"kinds": SPELLED.kinds[:-1]},
        {"kinds": SPELLED.kinds[:-1] + b"\x04"},
        {"lengths": array("H", [65535] * (1 << 17)).tobytes(), "kinds": bytes(1 << 17)},
        {"lengths": bytes(2 * ((1 << 20) + 1)), "kinds": bytes((1 << 20) + 1), "blob": b""},
    ],
    ids=range(8),
)
def test_a_table_that_contradicts_itself_is_refused(change: dict[str, bytes]) -> None:
    with pytest.raises(VocabularyRefused, match="contradicts itself"):
        Detokenizer(msgspec.structs.replace(SPELLED, **change))


@pytest.mark.parametrize(
    ("tokens", "token_id"),
    [({0: "a", 1: "_" * 200}, 1), (dict.fromkeys(range(12_000), "_" * 50), MAX_VOCABULARY_BYTES // (50 * 64))],
    ids=["one token", "all together"],
)
def test_a_vocabulary_whose_texts_would_take_too_much_memory_is_refused(tokens: dict[int, str], token_id: int) -> None:
    growing = Pieces(replacements=(("_", "x" * 64),))
    with pytest.raises(VocabularyRefused, match=rf"with the token {token_id} .* {MAX_TOKEN_BYTES} bytes each"):
        spell_out(growing, tokens, frozenset())


def test_the_largest_vocabulary_fits_a_frame() -> None:
    lengths = array("H", [MAX_TOKEN_BYTES] * (MAX_VOCABULARY_BYTES // MAX_TOKEN_BYTES) + [0] * ((1 << 20) - (1 << 13)))
    most = msgspec.structs.replace(
        SPELLED, blob=bytes(MAX_VOCABULARY_BYTES), lengths=lengths.tobytes(), kinds=bytes(len(lengths))
    )
    assert frame(TokenizerOpened(spellings=most))
    assert Detokenizer(most).spell(0) == bytes(MAX_TOKEN_BYTES)
