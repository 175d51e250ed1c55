"""Tokens to text, piece by piece: the concatenation equals the tokenizers library's decode of all tokens at once.

Two decoders cover the families we run: byte-level BPE (GPT-2's table of printable stand-ins for bytes), and the Llama 2
chain Replace, ByteFallback, Fuse, Strip. Both are written here, in Python, since the library's own cannot decode a
stream without guessing where it may cut. Control tokens are skipped, ids without a token are nothing, as there.

What a model's files say is worked out once, by :func:`spell_out` in a sandboxed child. What is left is a table of
bytes, and streams that look tokens up in it: that the server does itself.
"""

import codecs
import re
from array import array
from collections.abc import Collection, Iterable, Mapping
from enum import IntEnum
from itertools import accumulate
from typing import NamedTuple, Protocol

from dataplane.contracts.generation import Spellings

MAX_TOKEN_BYTES = 4096
"""As many as a token's longest name has; so an event of a stream is bounded, too."""
MAX_VOCABULARY_BYTES = 32 * 1024 * 1024
"""As many as a ``tokenizer.json`` may have: only a decoder that makes texts longer gets here."""
_MAX_TOKENS = 1 << 20
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2}|\+[0-9A-Fa-f])>", re.ASCII)


class ByteLevel(NamedTuple):
    """Each character of a token stands for a byte."""


class Pieces(NamedTuple):
    """Tokens are text: replace, join bytes written ``<0xE2>``, strip at most ``strip_count`` of ``strip`` in front."""

    replacements: tuple[tuple[str, str], ...] = ()
    byte_fallback: bool = False
    strip: str = " "
    strip_count: int = 0


Decoder = ByteLevel | Pieces


class TokenKind(IntEnum):
    """What a token is to a text."""

    NOTHING = 0
    """No token has this id."""
    TEXT = 1
    BYTE = 2
    """One byte, of a character that a run of such tokens spells."""
    CONTROL = 3
    """No text; it is spelled by its name."""


class VocabularyRefused(ValueError):
    """A vocabulary that would take too much memory, or a table that contradicts itself; the sentence says how."""


def spell_out(decoder: Decoder, tokens: Mapping[int, str], special_ids: Collection[int]) -> Spellings:
    """Return what each token is.

    Args:
        decoder: how tokens become text.
        tokens: the name of each token by id, special ones included.
        special_ids: tokens that are never text.

    Raises:
        VocabularyRefused: a token or all of them are too long.
    """
    blob = bytearray()
    lengths, kinds = array("H"), bytearray()
    for token_id in range(max(tokens, default=-1) + 1):
        kind, spelling = _spelled(decoder, tokens.get(token_id), special=token_id in special_ids)
        if len(spelling) > MAX_TOKEN_BYTES or len(blob) + len(spelling) > MAX_VOCABULARY_BYTES:
            raise VocabularyRefused(
                f"with the token {token_id} its tokens stand for more than {MAX_TOKEN_BYTES} bytes each or"
                f" {MAX_VOCABULARY_BYTES} in all; shorten them, or what the decoder replaces them by"
            )
        blob += spelling
        lengths.append(len(spelling))
        kinds.append(kind)
    strip = decoder if isinstance(decoder, Pieces) else Pieces()
    return Spellings(
        blob=bytes(blob),
        lengths=lengths.tobytes(),
        kinds=bytes(kinds),
        byte_level=isinstance(decoder, ByteLevel),
        strip=strip.strip,
        strip_count=strip.strip_count,
    )


def _spelled(decoder: Decoder, name: str | None, *, special: bool) -> tuple[TokenKind, bytes]:
    if name is None:
        return TokenKind.NOTHING, b""
    if special:
        return TokenKind.CONTROL, name.encode()
    if isinstance(decoder, ByteLevel):
        return TokenKind.TEXT, _byte_level(name)
    for old, new in decoder.replacements:
        name = name.replace(old, new)
    byte = _BYTE_TOKEN.fullmatch(name) if decoder.byte_fallback else None
    return (TokenKind.BYTE, bytes([int(byte[1], 16)])) if byte else (TokenKind.TEXT, name.encode())


class TextStream(Protocol):
    """One stream of tokens on its way to text."""

    def push(self, token_ids: Iterable[int], *, last: bool = False) -> str:
        """Return the text that became certain; ``last`` flushes the rest, an unfinished character as U+FFFD."""


class Detokenizer:
    """Opens streams of one vocabulary.

    Args:
        spellings: what its tokens are.

    Raises:
        VocabularyRefused: a table that contradicts itself: who made it had strangers' files in its memory.
    """

    def __init__(self, spellings: Spellings) -> None:
        lengths = array("H", spellings.lengths) if len(spellings.lengths) % 2 == 0 else array("H")
        if (
            len(lengths) != len(spellings.kinds)
            or len(lengths) > _MAX_TOKENS
            or sum(lengths) != len(spellings.blob)
            or spellings.kinds.translate(None, bytes(TokenKind))
        ):
            raise VocabularyRefused("the tokenizer's table of tokens contradicts itself")
        self._spellings = spellings
        self._blob, self._kinds = spellings.blob, spellings.kinds
        self._starts = array("I", accumulate(lengths, initial=0))

    @property
    def longest_text_bytes(self) -> int:
        """The most bytes that one token adds to a text."""
        lengths = zip(array("H", self._spellings.lengths), self._kinds, strict=True)
        return max((length for length, kind in lengths if kind != TokenKind.CONTROL), default=0)

    @property
    def stripped_prefix(self) -> str:
        """What is taken off in front of a text that begins with it."""
        return self._spellings.strip * self._spellings.strip_count

    def kind(self, token_id: int) -> int:
        """Return the :class:`TokenKind` of a token."""
        return self._kinds[token_id] if token_id < len(self._kinds) else TokenKind.NOTHING

    def spell(self, token_id: int) -> bytes:
        """Return the bytes of one token by itself, a control token's name; none of an id without a token."""
        if token_id >= len(self._kinds):
            return b""
        return self._blob[self._starts[token_id] : self._starts[token_id + 1]]

    def text_bytes(self, token_id: int) -> bytes:
        """Return what a token adds to a text; nothing of one that is no text."""
        if token_id >= len(self._kinds) or self._kinds[token_id] == TokenKind.CONTROL:
            return b""
        return self._blob[self._starts[token_id] : self._starts[token_id + 1]]

    def token_bytes(self, count: int) -> list[bytes]:
        """Return what each of the tokens 0 to ``count - 1`` adds to a text."""
        return [self.text_bytes(token_id) for token_id in range(count)]

    def stream(self) -> TextStream:
        """Return a fresh stream."""
        if self._spellings.byte_level:
            return _ByteLevelStream(self)
        return _PiecesStream(self, self._spellings.strip, self._spellings.strip_count)

    def decode(self, token_ids: Iterable[int]) -> str:
        """Return the text of all tokens at once."""
        return self.stream().push(token_ids, last=True)


class _ByteLevelStream:
    def __init__(self, vocabulary: Detokenizer) -> None:
        self._text_bytes = vocabulary.text_bytes
        # Rust's from_utf8_lossy and Python's "replace" both put one U+FFFD for each maximal invalid part.
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_ids: Iterable[int], *, last: bool = False) -> str:
        return self._utf8.decode(b"".join(map(self._text_bytes, token_ids)), last)


class _PiecesStream:
    def __init__(self, vocabulary: Detokenizer, strip: str, strip_count: int) -> None:
        self._vocabulary = vocabulary
        self._strip, self._to_strip = strip, strip_count
        self._run = bytearray()

    def push(self, token_ids: Iterable[int], *, last: bool = False) -> str:
        parts: list[str] = []
        for token_id in token_ids:
            kind = self._vocabulary.kind(token_id)
            if kind == TokenKind.BYTE:
                self._run += self._vocabulary.spell(token_id)
            elif kind == TokenKind.TEXT:
                parts += [self._end_run(), self._vocabulary.spell(token_id).decode(errors="replace")]
        if last:
            parts.append(self._end_run())
        return self._stripped("".join(parts))

    def _end_run(self) -> str:
        """The library validates a run of byte tokens as a whole: one bad byte makes all of it U+FFFD, one for each."""
        run, self._run = self._run, bytearray()
        try:
            return run.decode()
        except UnicodeDecodeError:
            return "\ufffd" * len(run)

    def _stripped(self, text: str) -> str:
        while self._to_strip and text:
            if text[0] != self._strip:
                self._to_strip = 0
                break
            text, self._to_strip = text[1:], self._to_strip - 1
        return text


def _byte_table() -> dict[int, int]:
    """GPT-2's bytes_to_unicode, turned round: printable Latin-1 stands for itself, the other 68 bytes for U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: byte for byte in printable} | {0x100 + rank: byte for rank, byte in enumerate(others)}


_BYTE_OF = _byte_table()


def _byte_level(name: str) -> bytes:
    try:
        return codecs.charmap_encode(name, "strict", _BYTE_OF)[0]
    except UnicodeEncodeError:  # an added token, written as it is
        return name.encode()
