"""Settlement: how the spool records of one request become its one usage row.

Pure. The records of replica and gateway arrive late, twice, and in any order, and a crash may keep any of them away.
:func:`fold` reads whatever has arrived as a set, so the row never depends on the order or on repetition.

The rule of who pays for what:

* only the serving attempt is billed: the last one, as the gateway says, or as the highest attempt number shows;
* the billed completion is what the replica's FINAL says, which leaves out tokens behind a stop string; without one it
  is the replica's last count, or the gateway's delivered count where that is higher (a replica killed between two
  records has delivered tokens it never recorded);
* a refused request, one that failed before its caller got a token, and one that ended before its first token are free;
* hence ``delivered <= billed <= generated``, always.
"""

from collections import defaultdict
from collections.abc import Iterable
from enum import StrEnum

import msgspec

from dataplane.contracts.usage import Outcome, Phases, RecordKind, Source, UsageRecord

REPLICA_LOST = "replica_lost"
"""Error code of a request that ended without a word from the replica that served it."""

_COMPLETED = (Outcome.STOP, Outcome.LENGTH)


class State(StrEnum):
    """Whether a row can still change what it bills. A settled row never opens again."""

    OPEN = "open"
    SETTLED = "settled"


class Settlement(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one request. While it is open its counts are provisional and nothing is charged.

    ``prompt_tokens``, ``cached_tokens`` and ``completion_tokens`` are billed; ``delivered_tokens`` reached the caller;
    ``generated_tokens`` is the work of every attempt. ``waits_for`` is who has still to speak before an open row
    settles. ``lost_arm`` is the arm whose replica was lost under an attempt that another took the place of; empty where
    none was. Times are Unix milliseconds; durations, in milliseconds, and ``phases`` are the serving attempt's.
    """

    request_id: str
    tenant_id: str
    deployment_id: str
    version_id: str
    key_id: str
    replica_id: str
    arm: str
    lost_arm: str
    endpoint: str
    stream: bool
    forced: bool
    state: State
    waits_for: Source | None
    attempts: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    delivered_tokens: int
    generated_tokens: int
    outcome: Outcome | None
    error_code: str
    started_at_ms: int
    ended_at_ms: int | None
    queue_ms: int | None
    ttft_ms: int | None
    duration_ms: int | None
    phases: Phases


class _Attempt:
    """Everything the two sources said of one attempt."""

    def __init__(self, number: int, records: list[UsageRecord]) -> None:
        self.number = number
        self.records = sorted(records, key=lambda record: (record.source, record.sequence))
        self.final = self._one(RecordKind.FINAL)
        self.closed = self._one(RecordKind.CLOSED)

    def _one(self, kind: RecordKind) -> UsageRecord | None:
        return next((record for record in self.records if record.kind is kind), None)

    @property
    def delivered_tokens(self) -> int:
        """Tokens the caller got, as the gateway counted them."""
        return self.closed.completion_tokens if self.closed else 0

    @property
    def generated_tokens(self) -> int:
        """The most that either source has seen."""
        return self.highest("completion_tokens")

    @property
    def billed_tokens(self) -> int:
        """The replica's last word, else everything that either source has seen."""
        if self.failed_unseen:
            return 0
        return self.final.completion_tokens if self.final is not None else self.generated_tokens

    @property
    def is_last(self) -> bool:
        """Whether the gateway said that no attempt follows."""
        return self.closed is not None and self.closed.last_attempt

    @property
    def was_replaced(self) -> bool:
        """Whether the gateway said that another attempt follows."""
        return self.closed is not None and not self.closed.last_attempt

    @property
    def failed_unseen(self) -> bool:
        """Whether the gateway knows that the caller got an error or a refusal and not one token."""
        closed = self.closed
        if closed is None:
            return False
        return closed.outcome is Outcome.REFUSED or (closed.outcome is Outcome.FAILED and closed.completion_tokens == 0)

    @property
    def waits_for(self) -> Source | None:
        """Whose record could still change the bill.

        A FINAL is not waited for where the attempt never reached a replica, or where the request is free anyway.
        """
        if self.closed is None or not self.closed.last_attempt:
            return Source.GATEWAY if self.final is not None or self.closed is not None else Source.REPLICA
        if self.final is not None or not self.closed.replica_id or self.failed_unseen:
            return None
        return Source.REPLICA

    @property
    def was_lost(self) -> bool:
        """Whether its replica was lost under it, and not only unable to take it."""
        return self.was_replaced and self.closed is not None and self.closed.error_code == REPLICA_LOST

    def text(self, field: str) -> str:
        """The first value that a record of this attempt gives for ``field``."""
        return next((value for record in self.records if (value := getattr(record, field))), "")

    def highest(self, field: str) -> int:
        """The highest count that a record of this attempt gives for ``field``."""
        counts: list[int] = [getattr(record, field) for record in self.records]
        return max(counts)

    @property
    def queue_ms(self) -> int | None:
        """The wait for a replica, which the gateway knows, and the wait in it."""
        waits = [record.queue_ms for record in (self.closed, self.final) if record and record.queue_ms is not None]
        return sum(waits) if waits else None

    @property
    def phases(self) -> Phases:
        """What the gateway knows and what the replica knows of where the time went."""
        known: dict[str, int | float] = {}
        for record in (self.final, self.closed):
            if record is not None and record.phases is not None:
                known |= msgspec.to_builtins(record.phases)
        return msgspec.convert(known, Phases)

    def duration(self, field: str) -> int | None:
        """A duration as the caller saw it (the gateway's clock), else as the replica did."""
        for record in (self.closed, self.final):
            value: int | None = getattr(record, field, None)
            if value is not None:
                return value
        return None


def fold(records: Iterable[UsageRecord], *, presumed_over: bool = False) -> Settlement:
    """Return the settlement of one request from the records that have arrived.

    Args:
        records: of one request id: any subset, order and repetition.
        presumed_over: the sweep gave up waiting for more; the row settles on what is known.

    Raises:
        ValueError: no records, or records of more than one request.
    """
    known = list(records)
    request_ids = {record.request_id for record in known}
    if len(request_ids) != 1:
        raise ValueError(f"a settlement needs the records of one request, not of {len(request_ids)}")
    by_number: dict[int, list[UsageRecord]] = defaultdict(list)
    for record in known:
        by_number[record.attempt].append(record)
    attempts = [_Attempt(number, group) for number, group in sorted(by_number.items())]
    serving = _serving(attempts)
    settled = serving.waits_for is None or presumed_over
    outcome, error_code = _outcome(serving) if settled else (None, "")
    billed_tokens = serving.billed_tokens
    prompt_is_billed = billed_tokens > 0 or outcome in _COMPLETED
    return Settlement(
        request_id=request_ids.pop(),
        tenant_id=serving.text("tenant_id"),
        deployment_id=serving.text("deployment_id"),
        version_id=serving.text("version_id"),
        key_id=serving.text("key_id"),
        replica_id=serving.text("replica_id"),
        arm=serving.text("arm"),
        lost_arm=next((attempt.text("arm") for attempt in attempts if attempt.was_lost), ""),
        endpoint=serving.text("endpoint"),
        stream=any(record.stream for record in serving.records),
        forced=any(record.forced for record in serving.records),
        state=State.SETTLED if settled else State.OPEN,
        waits_for=None if settled else serving.waits_for,
        attempts=len(attempts),
        prompt_tokens=serving.highest("prompt_tokens") if prompt_is_billed else 0,
        cached_tokens=serving.highest("cached_tokens") if prompt_is_billed else 0,
        completion_tokens=billed_tokens,
        delivered_tokens=min(serving.delivered_tokens, billed_tokens),
        generated_tokens=sum(attempt.generated_tokens for attempt in attempts),
        outcome=outcome,
        error_code=error_code,
        started_at_ms=min(record.at_ms - (record.duration_ms or 0) for record in known),
        ended_at_ms=_ended_at_ms(serving) if settled else None,
        queue_ms=serving.queue_ms,
        ttft_ms=serving.duration("ttft_ms"),
        duration_ms=serving.duration("duration_ms"),
        phases=serving.phases,
    )


def _serving(attempts: list[_Attempt]) -> _Attempt:
    last = [attempt for attempt in attempts if attempt.is_last]
    unreplaced = [attempt for attempt in attempts if not attempt.was_replaced]
    return (last or unreplaced or attempts)[-1]


def _outcome(serving: _Attempt) -> tuple[Outcome, str]:
    """The gateway saw what the caller saw, so its word comes first; silence is a lost replica."""
    for record in (serving.closed, serving.final):
        if record is not None and record.outcome not in (None, Outcome.REDISPATCHED):
            return record.outcome, record.error_code
    return Outcome.FAILED, REPLICA_LOST


def _ended_at_ms(serving: _Attempt) -> int:
    end = serving.closed or serving.final
    return end.at_ms if end is not None else serving.highest("at_ms")
