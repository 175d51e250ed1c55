"""A request from its acceptance to its end: what it is, what each attempt came to, and how it can be cut short."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import msgspec
import structlog

from dataplane.contracts.catalog import Arm, Catalog
from dataplane.contracts.errors import ApiError, Code
from dataplane.contracts.replica import ReplicaReport
from dataplane.contracts.usage import Outcome, Phases, RecordKind, Source, UsageRecord
from dataplane.gateway import auth
from dataplane.gateway.arm_choice import Choice
from dataplane.gateway.auth import Caller
from dataplane.gateway.intake import Intake
from dataplane.gateway.patience import Patience
from dataplane.gateway.reply import ClientStalled
from dataplane.gateway.router import Wanted
from dataplane.gateway.sse import Tally
from dataplane.http_server.asgi import ClientGone
from dataplane.spool.writer import SpoolFull

_FINISHES = {"stop": Outcome.STOP, "length": Outcome.LENGTH, "abort": Outcome.ABORTED}
_REFUSALS = frozenset({400, 429, 503})
Cause = ApiError | ClientGone
_log = structlog.get_logger(__name__)


class Spool(Protocol):
    """Where usage records go; :class:`dataplane.spool.writer.SpoolWriter`."""

    @property
    def full(self) -> bool:
        """Whether nothing new may be admitted."""
        ...

    def append_nowait(self, record: UsageRecord) -> None:
        """Keep a record."""
        ...


class Attempt(msgspec.Struct):
    """One try on one replica. Times are of the monotonic clock, in seconds."""

    number: int
    started_s: float
    replica: ReplicaReport | None = None
    found_s: float | None = None
    first_token_s: float | None = None
    tally: Tally = msgspec.field(default_factory=Tally)
    delivered_tokens: int = 0
    outcome: Outcome | None = None
    error_code: str = ""

    def finished(self) -> None:
        """Take the outcome from what the replica said."""
        if self.tally.error is not None:
            self.outcome, self.error_code = Outcome.FAILED, self.tally.error.code
        else:
            self.outcome = _FINISHES.get(self.tally.finish_reason, Outcome.STOP)

    def broke(self, error: BaseException) -> None:
        """Take the outcome from what ended the attempt, unless it is known already."""
        if self.outcome is not None:
            return
        if isinstance(error, ApiError):
            refused = error.code.status in _REFUSALS
            self.outcome, self.error_code = (Outcome.REFUSED if refused else Outcome.FAILED), error.code.code
        elif isinstance(error, ClientStalled):
            self.outcome = Outcome.ABORTED
        else:
            self.outcome, self.error_code = Outcome.FAILED, Code.INTERNAL.code

    def cut(self, cause: Cause | None) -> None:
        """Take the outcome from why the request was cut: the caller has gone, or may no longer call."""
        self.outcome = Outcome.ABORTED
        self.error_code = cause.code.code if isinstance(cause, ApiError) else ""


class Exchange:
    """An accepted request.

    ``attempts`` grows as replicas are tried; ``cause`` says why it was cut, once it was. ``arm`` is the one it goes to
    and ``wanted`` what it needs of a replica there; ``fallback`` is what it needs of one of the stable arm, where the
    weights gave it to another.

    Args:
        request_id: minted here.
        endpoint: the path called.
        caller: who.
        choice: what, and which arm of it.
        intake: the body.
        patience: how long it may wait for a replica.
        reserved_tokens: what the limits hold for it.
        phases: how long its caller's key and limits took.
        spool: where its records go.
        release: settles its limits by the tokens it really took; called once.
    """

    def __init__(
        self,
        *,
        request_id: str,
        endpoint: str,
        caller: Caller,
        choice: Choice,
        intake: Intake,
        patience: Patience,
        reserved_tokens: int,
        phases: Phases,
        spool: Spool,
        release: Callable[[int], Awaitable[None]],
    ) -> None:
        self.request_id = request_id
        self.endpoint = endpoint
        self.caller = caller
        self.deployment = choice.deployment
        self.arm = choice.arm
        self.forced = choice.forced
        self.intake = intake
        self.patience = patience
        self.phases = phases
        self._reserved_tokens = reserved_tokens
        self._stable = choice.fallback
        self.wanted = self._of(choice.arm)
        self.fallback = None if choice.fallback is None else self._of(choice.fallback)
        self.attempts: list[Attempt] = []
        self.cause: Cause | None = None
        self._spool = spool
        self._release = release
        self._releasing: asyncio.Task[None] | None = None
        self._scissors: asyncio.Timeout | None = None
        self._over = False

    @property
    def pace_ms(self) -> int:
        """The time between two pieces of its answer, by the caller's grant; 0 is as they come."""
        return self.deployment.grants[self.caller.tenant.id].pace_ms

    def _of(self, arm: Arm) -> Wanted:
        return Wanted(
            deployment_id=self.deployment.id,
            version_id=arm.version_id,
            tokens=self._reserved_tokens,
            prompt_tokens=self.intake.prompt_tokens,
            max_num_seqs=self.deployment.engine.max_num_seqs,
        )

    def fall_back(self) -> None:
        """Go to the stable arm from now on, where it may."""
        if self._stable is not None and self.fallback is not None:
            self.arm, self.wanted = self._stable, self.fallback
            self._stable = self.fallback = None

    async def run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do ``work``, which :meth:`cut` can end at any await.

        Raises:
            ApiError, ClientGone: the cause it was cut for.
        """
        try:
            async with asyncio.timeout(None if self.cause is None else 0) as self._scissors:
                await work()
        except TimeoutError:
            if self.cause is None:
                raise
            raise self.cause from None
        finally:
            self._scissors = None
            self._over = True

    def cut(self, cause: Cause) -> None:
        """End the request now, or as soon as it runs, for the first cause given; nothing when it is over."""
        if self._over or self.cause is not None:
            return
        self.cause = cause
        if self._scissors is not None:
            self._scissors.reschedule(asyncio.get_running_loop().time())

    @contextmanager
    def attempt(self) -> Iterator[Attempt]:
        """Open the next attempt; whatever ends the block, exactly one record of it is spooled."""
        attempt = Attempt(number=len(self.attempts) + 1, started_s=time.monotonic())
        self.attempts.append(attempt)
        try:
            yield attempt
        except asyncio.CancelledError:
            attempt.cut(self.cause)
            raise
        except BaseException as error:
            attempt.broke(error)
            raise
        finally:
            self._spool_record(attempt)

    def tokens(self) -> int:
        """Return what the request took: nothing where no replica computed anything for it.

        Of one that was cut while a replica worked and had said nothing, it is not known. Then a stream took its prompt,
        and a whole answer keeps what was reserved: else hanging up would be a way round the limit.
        """
        attempt = self.attempts[-1] if self.attempts else Attempt(number=0, started_s=0.0)
        tally = attempt.tally
        if not tally.completion_tokens and tally.prompt_tokens is None:
            if self.cause is None or attempt.found_s is None:
                return 0
            return self.intake.prompt_tokens if self.intake.stream else self._reserved_tokens
        prompt_tokens = self.intake.prompt_tokens if tally.prompt_tokens is None else tally.prompt_tokens
        return prompt_tokens + tally.completion_tokens

    async def settle(self) -> None:
        """Settle the limits, once; a cut does not interrupt it."""
        if self._releasing is None:
            self._releasing = asyncio.ensure_future(self._release(self.tokens()))
        await asyncio.shield(self._releasing)

    def _spool_record(self, attempt: Attempt) -> None:
        record = closed_record(self, attempt)
        try:
            self._spool.append_nowait(record)
        except SpoolFull as error:
            # The replica's own records settle the request; what is missing is how much the caller got.
            _log.error("usage_record_lost", reason=str(error), request_id=self.request_id, attempt=attempt.number)


def closed_record(exchange: Exchange, attempt: Attempt) -> UsageRecord:
    """Return the CLOSED record of an attempt that has its outcome."""
    now_s = time.monotonic()

    def ms(at_s: float | None) -> int | None:
        return None if at_s is None else round((at_s - attempt.started_s) * 1000)

    waited_ms = ms(now_s if attempt.found_s is None else attempt.found_s)
    return UsageRecord(
        request_id=exchange.request_id,
        attempt=attempt.number,
        source=Source.GATEWAY,
        sequence=0,
        kind=RecordKind.CLOSED,
        at_ms=time.time_ns() // 1_000_000,
        tenant_id=exchange.caller.tenant.id,
        deployment_id=exchange.deployment.id,
        version_id=exchange.arm.version_id,
        key_id=exchange.caller.key.id,
        replica_id=attempt.replica.replica_id if attempt.replica else "",
        arm=exchange.arm.name,
        prompt_tokens=attempt.tally.prompt_tokens or 0,
        cached_tokens=attempt.tally.cached_tokens,
        completion_tokens=attempt.delivered_tokens,
        outcome=attempt.outcome,
        error_code=attempt.error_code,
        last_attempt=attempt.outcome is not Outcome.REDISPATCHED,
        stream=exchange.intake.stream,
        endpoint=exchange.endpoint,
        queue_ms=ms(attempt.found_s),
        ttft_ms=ms(attempt.first_token_s),
        duration_ms=ms(now_s),
        forced=exchange.forced or _left_by_choice(exchange, attempt),
        phases=msgspec.structs.replace(exchange.phases, cold_ms=waited_ms),
    )


def _left_by_choice(exchange: Exchange, attempt: Attempt) -> bool:
    """Say whether it failed because the caller would not wait: else a header could stop any candidate.

    One whose replica was lost has waited for it; that counts against the arm.
    """
    if attempt.error_code == Code.QUEUE_TIMEOUT.code:
        return exchange.patience.queue_wait_s is not None
    return exchange.patience.shortened and attempt.number == 1 and attempt.found_s is None


class Running:
    """The requests that run in this process."""

    def __init__(self) -> None:
        self._exchanges: set[Exchange] = set()

    def __len__(self) -> int:
        return len(self._exchanges)

    @contextmanager
    def enter(self, exchange: Exchange) -> Iterator[None]:
        """Keep ``exchange`` within reach of :meth:`review` while the block runs."""
        self._exchanges.add(exchange)
        try:
            yield
        finally:
            self._exchanges.discard(exchange)

    def review(self, catalog: Catalog, now_ms: int) -> None:
        """Cut every request whose key, tenant or grant is gone under ``catalog``."""
        for exchange in list(self._exchanges):
            fault = auth.withdrawn(exchange.caller, catalog, now_ms) or auth.ungranted(
                exchange.caller, exchange.deployment.id, catalog
            )
            if fault is not None:
                exchange.cut(fault)

    def cut_all(self, cause: ApiError) -> None:
        """Cut everything."""
        for exchange in list(self._exchanges):
            exchange.cut(cause)
