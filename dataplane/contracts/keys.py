"""The API key codec: ``pgd_<env>_<lookup>_<secret>_<crc>``.

The checksum lets a gateway refuse junk offline; the lookup finds the row; only an HMAC-SHA256 digest of the whole key
is ever stored, under a pepper named by its id so that peppers can be rotated.
"""

import hashlib
import hmac
import re
import secrets
import zlib
from collections.abc import Mapping

import msgspec

PREFIX = "pgd"
ENVIRONMENTS = ("live", "test")
_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_LOOKUP_CHARS = 8
_SECRET_CHARS = 32  # 190 bits
_CRC_CHARS = 6
_PATTERN = re.compile(
    rf"{PREFIX}_(?P<env>{'|'.join(ENVIRONMENTS)})_(?P<lookup>[0-9A-Za-z]{{{_LOOKUP_CHARS}}})"
    rf"_(?P<secret>[0-9A-Za-z]{{{_SECRET_CHARS}}})_(?P<crc>[0-9A-Za-z]{{{_CRC_CHARS}}})",
    re.ASCII,
)


class ParsedKey(msgspec.Struct, frozen=True):
    """A key whose form and checksum are right; whether it exists is for the catalog to say."""

    env: str
    lookup: str
    text: str


def _base62(value: int, width: int) -> str:
    digits = []
    for _ in range(width):
        value, digit = divmod(value, 62)
        digits.append(_ALPHABET[digit])
    return "".join(reversed(digits))


def _random_text(width: int) -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(width))


def _checksum(head: str) -> str:
    return _base62(zlib.crc32(head.encode("ascii")), _CRC_CHARS)


def assemble(env: str, lookup: str, secret: str) -> str:
    """Return the key text of the three parts, checksum appended.

    Raises:
        ValueError: a part has characters or a length that a key cannot have.
    """
    head = f"{PREFIX}_{env}_{lookup}_{secret}"
    text = f"{head}_{_checksum(head)}"
    if _PATTERN.fullmatch(text) is None:
        raise ValueError("env, lookup or secret is not of the form a key has")
    return text


def mint(env: str, lookup: str | None = None) -> ParsedKey:
    """Make a fresh key for ``env``, one of :data:`ENVIRONMENTS`; with the ``lookup`` of a key that is being rolled."""
    lookup = lookup or new_lookup()
    return ParsedKey(env=env, lookup=lookup, text=assemble(env, lookup, _random_text(_SECRET_CHARS)))


def derive(env: str, lookup: str, secret_key: bytes, context: str) -> ParsedKey:
    """Make the key that ``secret_key`` alone can make again for ``context``; nothing has to be stored to use it."""
    value = int.from_bytes(hmac.digest(secret_key, f"{context}:{lookup}".encode(), hashlib.sha256), "big")
    return ParsedKey(env=env, lookup=lookup, text=assemble(env, lookup, _base62(value, _SECRET_CHARS)))


def new_lookup() -> str:
    """Return a random lookup part."""
    return _random_text(_LOOKUP_CHARS)


def parse(text: str) -> ParsedKey | None:
    """Return the parts of ``text``, or None when form or checksum are wrong."""
    match = _PATTERN.fullmatch(text)
    if match is None or not hmac.compare_digest(_checksum(text[: -_CRC_CHARS - 1]), match["crc"]):
        return None
    return ParsedKey(env=match["env"], lookup=match["lookup"], text=text)


def digest(text: str, pepper: bytes) -> str:
    """Return the hex HMAC-SHA256 of the whole key under ``pepper``."""
    return hmac.new(pepper, text.encode("ascii"), hashlib.sha256).hexdigest()


def digests(text: str, peppers: Mapping[str, bytes]) -> dict[str, str]:
    """Return the digests of the whole key by pepper id: made before it is known whether there is such a key.

    So a refusal takes as long, whether the key is nobody's or its secret is wrong.
    """
    return {pepper_id: digest(text, pepper) for pepper_id, pepper in peppers.items()}


def matches(shown: Mapping[str, str], pepper_id: str, expected_digest: str) -> bool:
    """Compare a key's :func:`digests` with what is stored, in constant time; a pepper that is gone matches nothing."""
    return hmac.compare_digest(shown.get(pepper_id, ""), expected_digest)


def parse_peppers(text: str) -> Mapping[str, bytes]:
    """Read ``id:hex,id:hex``; the first is the current one.

    Raises:
        ValueError: empty, malformed, or a pepper shorter than 32 bytes.
    """
    peppers: dict[str, bytes] = {}
    for part in text.split(","):
        pepper_id, _, value = part.strip().partition(":")
        raw = bytes.fromhex(value)
        if not pepper_id or len(raw) < 32:
            raise ValueError("peppers are written id:hex, 32 bytes or more each, separated by commas")
        peppers[pepper_id] = raw
    return peppers
