"""JSON from strangers: one reading or a refusal.

Python's reader accepts NaN, Infinity, 1e999, lone surrogates and repeated keys (the last wins), and takes -0 for an
integer, which others do not; so two readers of one file may see two things. Here all of them are refused.
"""

import json
from typing import Any

import msgspec


class StrictJsonError(ValueError):
    """Bytes that are not JSON with exactly one reading; the message says what is wrong."""


def loads(raw: bytes, max_bytes: int) -> Any:  # noqa: ANN401 - the value of a JSON text has any type
    """Return the value of ``raw``, UTF-8 JSON of at most ``max_bytes``.

    Raises:
        StrictJsonError: too long, not UTF-8, not JSON, a repeated key, a number that is not finite, -0, a lone
            surrogate, or nesting deeper than the interpreter's recursion limit.
    """
    if len(raw) > max_bytes:
        raise StrictJsonError(f"it has {len(raw)} bytes, the limit is {max_bytes}")
    try:
        msgspec.json.decode(raw)  # refuses what the standard library lets pass, except repeated keys
        # Asking of every integer whether it is -0 doubles the time of a long list, so it is asked where it may be one.
        parse_int = _integer if b"-0" in raw else None
        return json.loads(raw, object_pairs_hook=_unrepeated, parse_float=_number, parse_int=parse_int)
    except RecursionError as error:
        raise StrictJsonError("it is nested too deeply") from error
    except StrictJsonError:
        raise
    except (msgspec.MsgspecError, ValueError) as error:
        raise StrictJsonError(f"it is not JSON: {error}") from error


def loads_object(raw: bytes, max_bytes: int) -> dict[str, Any]:
    """Return the object that ``raw`` holds. Raises as :func:`loads`, and for any other value."""
    value = loads(raw, max_bytes)
    if type(value) is not dict:
        raise StrictJsonError("it is not a JSON object")
    return value


def check_counts(raw: bytes, max_parts: int, max_items: int) -> None:
    """Refuse a text of too many values, at a small part of the price of making one of each.

    Quotation marks tell strings from what is between them, so what a string says counts for nothing. Of a text that is
    no JSON the count is exact up to its first fault, where every reader stops.

    Args:
        raw: the text.
        max_parts: strings, keys among them, lists and objects.
        max_items: commas, one for each further item of a list or an object.

    Raises:
        StrictJsonError: there are more.
    """
    plain = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    parts = plain.count(b'"') // 2
    if parts <= max_parts:
        between = b"".join(plain.split(b'"')[::2])
        parts += between.count(b"[") + between.count(b"{")
        if between.count(b",") > max_items:
            raise StrictJsonError(f"it has more than {max_items} items in its lists and objects")
    if parts > max_parts:
        raise StrictJsonError(f"it has more than {max_parts} strings, lists and objects")


def _number(text: str) -> float:
    # A long list of numbers would else be read without a moment at which another thread could run.
    return float(text)


def _integer(text: str) -> int:
    if text == "-0":
        raise StrictJsonError("it has the number -0: write 0")
    return int(text)


def _unrepeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        repeated = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise StrictJsonError(f"the key {repeated[:100]!r} is there twice")
    return found
