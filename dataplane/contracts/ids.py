"""Public ids: a prefix that names the kind, then 26 Crockford base32 characters (a lower-case ULID).

Source of the body: the ULID specification, 48 bits of Unix milliseconds followed by 80 bits of randomness, so ids sort
by the time they were minted.
"""

import re
import secrets
import time
from enum import StrEnum

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_BODY_CHARS = 26
_RANDOM_BITS = 80


class Kind(StrEnum):
    """Every kind of public id, by its prefix."""

    TENANT = "ten"
    USER = "usr"
    INVITATION = "inv"
    KEY = "key"
    MODEL = "mdl"
    VERSION = "ver"
    DEPLOYMENT = "dep"
    GRANT = "grt"
    ROLLOUT = "rol"
    REPLICA = "rep"
    GATEWAY = "gtw"
    REQUEST = "req"
    JOB = "job"
    AUDIT = "aud"
    WEBHOOK = "whk"
    MESSAGE = "msg"


_PATTERN = re.compile(rf"({'|'.join(Kind)})_[0-7][{_ALPHABET}]{{{_BODY_CHARS - 1}}}")


def encode(kind: Kind, unix_ms: int, randomness: int) -> str:
    """Return the id of ``kind`` minted at ``unix_ms`` (Unix milliseconds) with 80 bits of ``randomness``.

    Raises:
        ValueError: a part is negative or does not fit its bits.
    """
    if not 0 <= unix_ms < 1 << 48:
        raise ValueError("unix_ms must fit 48 bits")
    if not 0 <= randomness < 1 << _RANDOM_BITS:
        raise ValueError("randomness must fit 80 bits")
    value = unix_ms << _RANDOM_BITS | randomness
    body = "".join(_ALPHABET[value >> shift & 31] for shift in range(5 * (_BODY_CHARS - 1), -1, -5))
    return f"{kind}_{body}"


def new_id(kind: Kind) -> str:
    """Mint an id of ``kind`` from the clock and the system's randomness."""
    return encode(kind, time.time_ns() // 1_000_000, secrets.randbits(_RANDOM_BITS))


def is_id(text: str, kind: Kind) -> bool:
    """Say whether ``text`` is a well-formed id of ``kind``; nothing is looked up."""
    return _PATTERN.fullmatch(text) is not None and text.startswith(f"{kind}_")
