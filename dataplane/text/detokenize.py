"""Tokens to text, piece by piece: the concatenation equals the tokenizers library's decode of all tokens at once.

Two decoders cover the families we run: byte-level BPE (GPT-2's table of printable stand-ins for bytes), and the Llama 2
chain Replace, ByteFallback, Fuse, Strip. Both are written here, in Python, since the library's own cannot decode a
stream without guessing where it may cut. Control tokens are skipped, ids without a token are nothing, as there.
"""

import codecs
import re
from typing import NamedTuple, Protocol

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2}|\+[0-9A-Fa-f])>", re.ASCII)


class ByteLevel(NamedTuple):
    """Each character of a token stands for a byte."""


class Pieces(NamedTuple):
    """Tokens are text: replace, join bytes written ``<0xE2>``, strip at most ``strip_count`` of ``strip`` in front."""

    replacements: tuple[tuple[str, str], ...] = ()
    byte_fallback: bool = False
    strip: str = " "
    strip_count: int = 0

    def replaced(self, text: str) -> str:
        """Return the text of a token after the replacements."""
        for old, new in self.replacements:
            text = text.replace(old, new)
        return text

    def byte_of(self, text: str) -> int | None:
        """Return the byte that such a text stands for, None where it is text."""
        byte = _BYTE_TOKEN.fullmatch(text) if self.byte_fallback else None
        return int(byte[1], 16) if byte else None


Decoder = ByteLevel | Pieces


class TextStream(Protocol):
    """One stream of tokens on its way to text."""

    def push(self, token_ids: list[int], *, last: bool) -> str:
        """Return the text that became certain; ``last`` flushes the rest, an unfinished character as U+FFFD."""


class Detokenizer:
    """Opens streams of one vocabulary.

    Args:
        decoder: how tokens become text.
        tokens: text of each token by id, special ones included.
        special_ids: tokens that are never text.
    """

    def __init__(self, decoder: Decoder, tokens: dict[int, str], special_ids: frozenset[int]) -> None:
        self._decoder = decoder
        self._special_texts = {number: text for number, text in tokens.items() if number in special_ids}
        self._texts = {number: text for number, text in tokens.items() if number not in special_ids}
        self._bytes: dict[int, bytes] = {}
        if isinstance(decoder, ByteLevel):
            self._bytes = {number: _byte_level(text) for number, text in self._texts.items()}

    @property
    def longest_token_bytes(self) -> int:
        """The most bytes of text that one token stands for."""
        if isinstance(self._decoder, ByteLevel):
            return max(map(len, self._bytes.values()), default=0)
        return max((len(text.encode()) for text in self._texts.values()), default=0)

    def spell(self, token_id: int) -> bytes:
        """Return the bytes of one token by itself; a special token's are its name's."""
        text = self._special_texts.get(token_id)
        if text is not None:
            return text.encode()
        if isinstance(self._decoder, ByteLevel):
            return self._bytes.get(token_id, b"")
        text = self._decoder.replaced(self._texts.get(token_id, ""))
        byte = self._decoder.byte_of(text)
        return text.encode() if byte is None else bytes([byte])

    @property
    def stripped_prefix(self) -> str:
        """What is taken off in front of a text that begins with it."""
        return "" if isinstance(self._decoder, ByteLevel) else self._decoder.strip * self._decoder.strip_count

    def token_bytes(self, count: int) -> list[bytes]:
        """Return what each of the tokens 0 to ``count - 1`` adds to a text; nothing for one that is no text."""
        return [b"" if number in self._special_texts else self.spell(number) for number in range(count)]

    def stream(self) -> TextStream:
        """Return a fresh stream."""
        if isinstance(self._decoder, ByteLevel):
            return _ByteLevelStream(self._bytes)
        return _PiecesStream(self._decoder, self._texts)

    def decode(self, token_ids: list[int]) -> str:
        """Return the text of all tokens at once."""
        return self.stream().push(token_ids, last=True)


class _ByteLevelStream:
    def __init__(self, token_bytes: dict[int, bytes]) -> None:
        self._token_bytes = token_bytes
        # Rust's from_utf8_lossy and Python's "replace" both put one U+FFFD for each maximal invalid part.
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_ids: list[int], *, last: bool) -> str:
        raw = b"".join(self._token_bytes.get(number, b"") for number in token_ids)
        return self._utf8.decode(raw, final=last)


class _PiecesStream:
    def __init__(self, decoder: Pieces, texts: dict[int, str]) -> None:
        self._decoder = decoder
        self._texts = texts
        self._run = bytearray()
        self._to_strip = decoder.strip_count

    def push(self, token_ids: list[int], *, last: bool) -> str:
        parts: list[str] = []
        for number in token_ids:
            text = self._texts.get(number)
            if text is None:
                continue
            text = self._decoder.replaced(text)
            byte = self._decoder.byte_of(text)
            if byte is not None:
                self._run.append(byte)
            else:
                parts += [self._end_run(), text]
        if last:
            parts.append(self._end_run())
        return self._stripped("".join(parts))

    def _end_run(self) -> str:
        """The library validates a run of byte tokens as a whole: one bad byte makes all of it U+FFFD, one for each."""
        run, self._run = bytes(self._run), bytearray()
        try:
            return run.decode("utf-8")
        except UnicodeDecodeError:
            return "\ufffd" * len(run)

    def _stripped(self, text: str) -> str:
        while self._to_strip and text:
            if text[0] != self._decoder.strip:
                self._to_strip = 0
                break
            text, self._to_strip = text[1:], self._to_strip - 1
        return text


def _byte_table() -> dict[str, int]:
    """GPT-2's bytes_to_unicode, turned round: printable Latin-1 stands for itself, the other 68 bytes for U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + rank): byte for rank, byte in enumerate(others)}


_BYTE_OF = _byte_table()


def _byte_level(text: str) -> bytes:
    try:
        return bytes([_BYTE_OF[character] for character in text])
    except KeyError:  # an added token, written as it is
        return text.encode("utf-8")
