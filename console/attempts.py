"""The tries of a request, one after the other, from the records that gateway and replica wrote. Pure."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from dataplane.contracts.usage import RecordKind, UsageRecord


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try on one replica. What is None or empty nobody has said (yet).

    Args:
        number: counted by the gateway.
        replica_id: who worked on it; empty where it never came to a replica.
        outcome: how it ended, in the wire's word: the gateway's, who saw what the caller saw, else the replica's.
        error_code: why it failed.
        generated_tokens: what the replica made.
        delivered_tokens: what reached the caller.
        ttft_ms: from its begin to its first token, by the gateway's clock.
        duration_ms: from its begin to its end, by the gateway's clock, else the replica's.
        silent: who has not said how it ended: ``gateway``, ``replica``, or both.
    """

    number: int
    replica_id: str
    outcome: str
    error_code: str
    generated_tokens: int | None
    delivered_tokens: int | None
    ttft_ms: int | None
    duration_ms: int | None
    silent: tuple[str, ...]


def attempts(records: Iterable[UsageRecord]) -> list[Attempt]:
    """Return the tries in their order; the last one serves."""
    by_number: dict[int, list[UsageRecord]] = defaultdict(list)
    for record in records:
        by_number[record.attempt].append(record)
    return [_attempt(number, group) for number, group in sorted(by_number.items())]


def _attempt(number: int, records: list[UsageRecord]) -> Attempt:
    closed, final = (_of(records, kind) for kind in (RecordKind.CLOSED, RecordKind.FINAL))
    counted = [record.completion_tokens for record in records if record.kind is not RecordKind.CLOSED]
    replica_id = next((record.replica_id for record in records if record.replica_id), "")
    word = next((record for record in (closed, final) if record is not None and record.outcome is not None), None)
    missing = [("gateway", closed is None), ("replica", final is None and bool(replica_id))]
    return Attempt(
        number=number,
        replica_id=replica_id,
        outcome=word.outcome.value if word is not None and word.outcome is not None else "",
        error_code=word.error_code if word is not None else "",
        generated_tokens=max(counted, default=None),
        delivered_tokens=None if closed is None else closed.completion_tokens,
        ttft_ms=None if closed is None else closed.ttft_ms,
        duration_ms=next((each.duration_ms for each in (closed, final) if each and each.duration_ms is not None), None),
        silent=tuple(name for name, is_missing in missing if is_missing),
    )


def _of(records: list[UsageRecord], kind: RecordKind) -> UsageRecord | None:
    return next((record for record in records if record.kind is kind), None)
