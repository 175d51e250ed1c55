"""What one request costs and how long it took: records for the spool, and observations for the metrics.

ADMIT is on the disk before the engine hears of the request; PROGRESS follows every 32 tokens or second; FINAL is the
last word. So a crash costs at most the tokens since the last record, and never the row.
"""

import time

import msgspec
import structlog

from dataplane.contracts import failpoints
from dataplane.contracts.errors import ApiError, Code
from dataplane.contracts.generation import SequenceDelta
from dataplane.contracts.usage import Outcome, Phases, RecordKind, Source, UsageRecord
from dataplane.spool.writer import SpoolFull, SpoolWriter
from dataplane.worker.doors import Caller
from dataplane.worker.metrics import Metrics

_PROGRESS_TOKENS = 32
_PROGRESS_S = 1.0
_log = structlog.get_logger(__name__)


class Meter:
    """Counts one attempt of a request.

    Args:
        caller: who pays. A probe's end is neither counted nor logged.
        spool: where records go; None for requests that nobody is billed for.
        metrics: the worker's.
        endpoint, stream, replica_id: said in every record.
    """

    def __init__(
        self,
        caller: Caller,
        spool: SpoolWriter | None,
        metrics: Metrics,
        *,
        endpoint: str,
        stream: bool,
        replica_id: str,
    ) -> None:
        self._spool = spool
        self._metrics = metrics
        self._tenant_id = caller.tenant_id
        self._probe = caller.probe
        self._template = UsageRecord(
            request_id=caller.request_id,
            attempt=caller.attempt,
            source=Source.REPLICA,
            sequence=0,
            kind=RecordKind.ADMIT,
            at_ms=0,
            tenant_id=caller.tenant_id,
            deployment_id=caller.deployment_id,
            version_id=caller.version_id,
            key_id=caller.key_id,
            replica_id=replica_id,
            arm=caller.arm,
            forced=caller.forced,
            stream=stream,
            endpoint=endpoint,
        )
        self._sequence = 0
        self._arrived_s = time.monotonic()
        self._first_token_s: float | None = None
        self._last_token_s = 0.0
        self._phases: Phases | None = None
        self._phases_until_s: float | None = None  # while the engine has not said the last of them
        self._recorded_tokens = 0
        self._recorded_s = 0.0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.generated_tokens = 0
        self._first_choice_tokens = 0

    async def admit(self, prompt_tokens: int) -> None:
        """Return once the admission is on the disk.

        Raises:
            ApiError: the spool is full: the request must not run, for nobody could be billed for it.
        """
        self.prompt_tokens = prompt_tokens
        if self._spool is None:
            return
        try:
            await self._spool.append(self._record(RecordKind.ADMIT))
        except SpoolFull as error:
            self._spool = None  # never admitted, so nothing more is said of it
            raise ApiError(
                Code.SPOOL_FULL, "usage cannot be recorded at the moment; try again", retry_after_s=5.0
            ) from error
        failpoints.hit("worker.admitted")

    def observe(self, delta: SequenceDelta, *, first_choice: bool = True) -> None:
        """Count what the engine produced, at the moment it arrives.

        Tokens are those of all choices. Times, phases and what was cached are those of the first choice: it is the one
        that waited and computed the prompt.
        """
        now_s = time.monotonic()
        if delta.phases is not None and first_choice:
            self._phases = delta.phases
            self._phases_until_s = now_s if delta.finish_reason is None else None
        if not delta.token_ids:
            return
        self.generated_tokens += len(delta.token_ids)
        if first_choice:
            self.cached_tokens = max(self.cached_tokens, delta.cached_tokens)
            self._first_choice_tokens += len(delta.token_ids)
            self._last_token_s = now_s
        if self._first_token_s is None:
            self._first_token_s = self._recorded_s = now_s
        new_tokens = self.generated_tokens - self._recorded_tokens
        if self._spool is not None and (new_tokens >= _PROGRESS_TOKENS or now_s - self._recorded_s >= _PROGRESS_S):
            self._recorded_tokens, self._recorded_s = self.generated_tokens, now_s
            self._append(self._record(RecordKind.PROGRESS, completion_tokens=self.generated_tokens))
            failpoints.hit("worker.progress")

    def finish(self, outcome: Outcome, *, completion_tokens: int | None = None, error: ApiError | None = None) -> None:
        """Write the last word.

        Args:
            outcome: how the attempt ended.
            completion_tokens: what the caller is told, where that is less than what was generated: tokens behind a stop
                string are not charged.
            error: why it failed or was refused.
        """
        if self._probe:
            return
        now_s = time.monotonic()
        tokens = self.generated_tokens if completion_tokens is None else completion_tokens
        if outcome is not Outcome.REFUSED:
            self._metrics.ended(self._tenant_id, outcome.value)
        _log.info(
            "request_finished",
            request_id=self._template.request_id,
            attempt=self._template.attempt,
            tenant_id=self._tenant_id,
            endpoint=self._template.endpoint,
            outcome=outcome.value,
            error_code=error.code.code if error else "",
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            completion_tokens=tokens,
            duration_ms=round((now_s - self._arrived_s) * 1000),
        )
        if self._first_token_s is not None:
            self._metrics.timed(
                self._tenant_id,
                queue_s=(_queue_ms(self._phases) or 0) / 1000,
                ttft_s=self._first_token_s - self._arrived_s,
                e2e_s=now_s - self._arrived_s,
                last_token_s=self._last_token_s - self._arrived_s,
                num_tokens=self._first_choice_tokens,
            )
        if self._spool is not None:
            failpoints.hit("worker.finishing")
            self._append(self._final(outcome, tokens, error, now_s))

    def _final(self, outcome: Outcome, tokens: int, error: ApiError | None, now_s: float) -> UsageRecord:
        first_s = self._first_token_s
        return msgspec.structs.replace(
            self._record(RecordKind.FINAL, completion_tokens=tokens),
            outcome=outcome,
            error_code=error.code.code if error else "",
            queue_ms=_queue_ms(self._phases),
            ttft_ms=round((first_s - self._arrived_s) * 1000) if first_s is not None else None,
            duration_ms=round((now_s - self._arrived_s) * 1000),
            phases=self._all_phases(now_s),
        )

    def _all_phases(self, now_s: float) -> Phases | None:
        """What the engine said; an end that it did not see itself (the caller left, a stop string) ends the decode."""
        phases = self._phases
        if phases is None or self._phases_until_s is None:
            return phases
        since_ms = round((now_s - self._phases_until_s) * 1000)
        return msgspec.structs.replace(phases, decode_ms=(phases.decode_ms or 0) + since_ms)

    def _record(self, kind: RecordKind, *, completion_tokens: int = 0) -> UsageRecord:
        sequence, self._sequence = self._sequence, self._sequence + 1
        return msgspec.structs.replace(
            self._template,
            sequence=sequence,
            kind=kind,
            at_ms=time.time_ns() // 1_000_000,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            completion_tokens=completion_tokens,
        )

    def _append(self, record: UsageRecord) -> None:
        """Queue a record of an admitted request; the spool keeps room for these beyond its limit."""
        if self._spool is None:
            return
        try:
            self._spool.append_nowait(record)
        except SpoolFull:
            _log.critical("usage_lost", request_id=record.request_id, kind=record.kind.value)


def _queue_ms(phases: Phases | None) -> int | None:
    """The wait in the engine's queue, all causes together."""
    if phases is None:
        return None
    return sum(wait_ms or 0 for wait_ms in (phases.own_budget_ms, phases.fair_share_ms, phases.memory_ms))
