"""Which spool records can become rows. Pure: the reason why not, in words, or None."""

from collections.abc import Iterator

from dataplane.contracts.ids import Kind, is_id
from dataplane.contracts.usage import Phases, UsageRecord

_MAX_COUNT = 2**31 - 1
_MAX_AT_MS = 253_402_300_799_000
"""The last second of the year 9999, in Unix milliseconds: later times are no dates."""
_ID_CHARS = 32
_TEXT_CHARS = {
    "tenant_id": _ID_CHARS, "deployment_id": _ID_CHARS, "version_id": _ID_CHARS, "key_id": _ID_CHARS,
    "replica_id": 64, "arm": 16, "error_code": 64, "endpoint": 64,
}  # fmt: skip
_COUNTS = ("attempt", "sequence", "prompt_tokens", "cached_tokens", "completion_tokens")
_DURATIONS = ("queue_ms", "ttft_ms", "duration_ms")


def fault(record: UsageRecord) -> str | None:
    """Return why ``record`` cannot be stored, or None when it can."""
    if not is_id(record.request_id, Kind.REQUEST):
        return "request_id is not the id of a request"
    for field, max_chars in _TEXT_CHARS.items():
        text = getattr(record, field)
        if len(text) > max_chars or "\0" in text or not text.isprintable():
            return f"{field} is longer than {max_chars} characters or not printable"
    for field, count in _counts(record):
        if not 0 <= count <= _MAX_COUNT:
            return f"{field} is negative or beyond {_MAX_COUNT}"
    if not (record.duration_ms or 0) <= record.at_ms <= _MAX_AT_MS:
        return "at_ms is not a time"
    return None


def _counts(record: UsageRecord) -> Iterator[tuple[str, float]]:
    """All that is counted or measured, where it is known."""
    for part, fields in ((record, _COUNTS), (record, _DURATIONS), (record.phases, Phases.__struct_fields__)):
        for field in fields if part is not None else ():
            value = getattr(part, field)
            if value is not None:
                yield field, value
