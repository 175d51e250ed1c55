"""From the bytes of a body to the fields it may have: one reading, within bounds, every refusal by name."""

import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from dataplane.contracts import strict_json
from dataplane.contracts.errors import ApiError, Code
from dataplane.worker import parameters
from dataplane.worker.parameters import invalid

MAX_BODY_BYTES = 4 * 1024 * 1024
_MAX_PARTS = 32 * 1024
"""Strings, lists and objects in a body: a plain message has five."""
_MAX_ITEMS = 132 * 1024
"""Items of its lists and objects: as many token ids as a long context has, and all else."""
_NUL = re.compile(rb"\\u0000")


_Fields = TypeVar("_Fields", bound=msgspec.Struct)


def load(raw: bytes) -> dict[str, Any]:
    """Return the object that a body is.

    Raises:
        ApiError: 400: it is none, has two readings, or is too much.
    """
    try:
        strict_json.check_counts(raw, _MAX_PARTS, _MAX_ITEMS)
    except strict_json.StrictJsonError as error:
        raise ApiError(Code.INVALID_REQUEST, f"the body is too much for one request: {error}") from error
    try:
        fields = strict_json.loads_object(raw, MAX_BODY_BYTES)
    except strict_json.StrictJsonError as error:
        raise ApiError(Code.INVALID_JSON, f"the body cannot be read: {error}") from error
    if _NUL.search(raw) and _has_nul(fields):
        raise ApiError(Code.INVALID_REQUEST, "the body has a NUL character, which no text may have; remove it")
    return fields


def _has_nul(value: object) -> bool:
    if isinstance(value, str):
        return "\0" in value
    if isinstance(value, dict):
        return any(_has_nul(part) for pair in value.items() for part in pair)
    return isinstance(value, list) and any(map(_has_nul, value))


def convert(fields: Mapping[str, Any], supported: frozenset[str], kind: type[_Fields]) -> _Fields:
    """Return the ``supported`` fields as ``kind``; null is as good as absent.

    Raises:
        ApiError: 400, naming a field that is missing, of the wrong type, or not supported.
    """
    kept = parameters.supported_only(fields, supported)
    try:
        return msgspec.convert(kept, kind, str_keys=True)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at ")
        path = place.removeprefix("`key` in ").strip("`").removeprefix("$.")
        if missing := re.search(r"missing required field `(\w+)`", message):
            raise invalid(missing[1], "it is required") from error
        raise invalid(path or "body", message[:1].lower() + message[1:]) from error
