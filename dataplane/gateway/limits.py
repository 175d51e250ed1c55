"""Limits of tenants and keys: reserve before a request runs, settle after it, one atomic script in Redis for both.

Redis may be flushed or away at any second. A flush loses what other gateways hold for as long as one lease renewal,
and nothing of what this one holds, since every reservation tells the script what is known here. Without Redis each
gateway enforces its share of the limits (:class:`~dataplane.gateway.windows.LocalLimits`), on top of what it had
already let through.
"""

import asyncio
import math
import random
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import structlog
from redis import RedisError
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from dataplane.contracts.catalog import KeyEntry, TenantEntry
from dataplane.contracts.errors import ApiError, Code
from dataplane.gateway.windows import BUCKET_MS, Gauge, Kind, LocalLimits, Scope, Verdict

_PREFIX = "pagoda:limits"
_GATEWAYS = f"{_PREFIX}:gateways"
_SCRIPT = (Path(__file__).parent / "limits.lua").read_text()
_CODES = {
    Kind.REQUESTS: Code.REQUESTS_PER_MINUTE,
    Kind.TOKENS: Code.TOKENS_PER_MINUTE,
    Kind.CONCURRENT: Code.CONCURRENT_REQUESTS,
}
_NOUNS = {Kind.REQUESTS: "requests per minute", Kind.TOKENS: "tokens per minute", Kind.CONCURRENT: "requests at a time"}
_CONNECTIONS = 16
_PROBE_S = 0.5
_Answer = TypeVar("_Answer")
_log = structlog.get_logger(__name__)


class Reservation(msgspec.Struct, frozen=True):
    """What a running request holds. ``buckets``: where its tokens were counted, in Redis (None: not there) and here."""

    request_id: str
    scopes: tuple[Scope, ...]
    tokens: int
    gauges: tuple[Gauge, ...]
    redis_bucket: int | None
    local_bucket: int


class LimitExceeded(ApiError):
    """A 429, with the gauges for its headers."""

    def __init__(self, refused: Gauge, gauges: tuple[Gauge, ...], retry_ms: int) -> None:
        # Client libraries sleep exactly what they are told, so the spread has to come from here.
        retry_s = retry_ms / 1000 * random.uniform(1.0, 1.25)  # noqa: S311 - spreads retries, hides nothing
        super().__init__(
            _CODES[refused.kind],
            f"This {refused.scope}'s limit of {refused.limit} {_NOUNS[refused.kind]} is reached; "
            f"{refused.remaining} left. Try again in {math.ceil(retry_s)} s.",
            retry_after_s=retry_s,
        )
        self.refused = refused
        self.gauges = gauges


def scopes_of(tenant: TenantEntry, key: KeyEntry) -> tuple[Scope, ...]:
    """Return the limited ones of the two scopes of a caller."""
    both = (Scope("tenant", tenant.id, tenant.id, tenant.limits), Scope("key", key.id, tenant.id, key.limits))
    return tuple(scope for scope in both if scope.limited)


def request_tokens(
    tenant: TenantEntry, key: KeyEntry, prompt_tokens: int, max_tokens: int | None, context_tokens: int, *, n: int = 1
) -> int:
    """Return how many tokens to reserve: the prompt's estimate and all the output that the request may ask for.

    Without ``max_tokens`` each of the ``n`` choices may have the rest of the context, but all together no more than a
    minute's limit: such a request then runs alone instead of never.

    Raises:
        ApiError: MAX_REQUEST_TOKENS: it would never pass, so no retry is suggested.
    """
    output_tokens = n * (max(1, context_tokens - prompt_tokens) if max_tokens is None else max_tokens)
    tokens = prompt_tokens + output_tokens
    said = f"'max_tokens' of {max_tokens}" if max_tokens is not None else f"the {output_tokens // n} it may generate"
    said += f" for each of {n} choices" if n > 1 else ""
    for owner, limits in (("tenant", tenant.limits), ("key", key.limits)):
        if limits.max_request_tokens is not None and tokens > limits.max_request_tokens:
            raise ApiError(
                Code.MAX_REQUEST_TOKENS,
                f"About {prompt_tokens} prompt tokens and {said} are over this {owner}'s limit of "
                f"{limits.max_request_tokens} tokens a request. Shorten the prompt or set a lower 'max_tokens'.",
                param="max_tokens",
            )
        per_minute = limits.tokens_per_minute
        if per_minute is None or tokens <= per_minute:
            continue
        if max_tokens is None and prompt_tokens < per_minute:
            tokens = per_minute
            continue
        raise ApiError(
            Code.MAX_REQUEST_TOKENS,
            f"About {prompt_tokens} prompt tokens and {said} are more than this {owner}'s limit of {per_minute} "
            "tokens per minute, so the request can never run. Shorten the prompt or set a lower 'max_tokens'.",
            param="max_tokens",
        )
    return tokens


class Limiter:
    """Reserves and settles for one gateway.

    Args:
        redis_url: where all gateways meet.
        gateway_id: this one.
        lease_ms: how long a running request keeps its slot without being renewed.
        renewal_s: how often running requests are renewed.
        timeout_s: how long one answer of Redis may take before it counts as away.
        clock_ms: the script's time, for tests; None is Redis's own.
    """

    def __init__(
        self,
        redis_url: str,
        gateway_id: str,
        *,
        lease_ms: int,
        renewal_s: float,
        timeout_s: float,
        clock_ms: Callable[[], int] | None = None,
    ) -> None:
        self._pool = BlockingConnectionPool.from_url(
            redis_url,
            max_connections=_CONNECTIONS,
            timeout=timeout_s,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), 0),
        )
        self._redis = Redis(connection_pool=self._pool)
        self._script = self._redis.register_script(_SCRIPT)
        self._gateway_id = gateway_id
        self._lease_ms = lease_ms
        self._renewal_s = renewal_s
        self._timeout_s = timeout_s
        self._clock_ms = clock_ms
        self._local = LocalLimits()
        self._held: defaultdict[str, set[str]] = defaultdict(set)
        self._gateways = 1
        self._away = False

    @property
    def redis_away(self) -> bool:
        """Whether limits are enforced by shares for now."""
        return self._away

    @property
    def gateways(self) -> int:
        """How many gateways there were when Redis was asked last, this one included."""
        return self._gateways

    async def reserve(self, request_id: str, scopes: Sequence[Scope], tokens: int) -> Reservation:
        """Admit a request into every limit of ``scopes``, or into none.

        Raises:
            LimitExceeded: a limit is reached.
        """
        scopes = tuple(scopes)
        verdict, bucket = None, None
        if scopes and not self._away:
            verdict, bucket = await self._reserve_in_redis(request_id, scopes, tokens)
        # Read only now: a window that has slid on must not be asked about the moment before the wait.
        now_ms = self._now_ms()
        if verdict is None:
            verdict = self._local.reserve(scopes, request_id, tokens, now_ms, sharers=self._gateways)
        elif verdict.refused is None:
            self._local.count(scopes, request_id, tokens, now_ms)
        if verdict.refused is not None:
            raise LimitExceeded(verdict.refused, verdict.gauges, verdict.retry_ms)
        for slot in _slots(scopes):
            self._held[slot].add(request_id)
        return Reservation(request_id, scopes, tokens, verdict.gauges, bucket, now_ms // BUCKET_MS)

    async def _reserve_in_redis(
        self, request_id: str, scopes: tuple[Scope, ...], tokens: int
    ) -> tuple[Verdict | None, int | None]:
        now_ms = self._now_ms()
        keys = [_key(scope, kind) for scope in scopes for kind in Kind]
        args: list[str | int] = [request_id, tokens, self._lease_ms]
        for scope in scopes:
            usage = self._local.usage(scope.id)
            args += [-1 if (limit := scope.limit(kind)) is None else limit for kind in Kind]
            args += [usage.used(kind, now_ms) for kind in Kind]
        reply = await self._call("reserve", keys, args)
        if reply is None:
            return None, None
        admitted, bucket, refusing, wait_ms, *figures = reply
        rows = [(scope, kind) for scope in scopes for kind in Kind]
        gauges = [
            None if (limit := scope.limit(kind)) is None else Gauge(scope.name, kind, limit, used, reset_ms)
            for (scope, kind), used, reset_ms in zip(rows, figures[0::2], figures[1::2], strict=True)
        ]
        known = tuple(gauge for gauge in gauges if gauge is not None)
        return (Verdict(known) if admitted else Verdict(known, gauges[refusing], wait_ms)), bucket

    async def settle(self, reservation: Reservation, tokens: int) -> None:
        """End a request that really took ``tokens``: correct its windows, free its slots. Never raises.

        With Redis away its slots there end with their leases, and a refund that is lost errs for a minute at most.
        """
        scopes, request_id = reservation.scopes, reservation.request_id
        if not scopes:
            return
        change = tokens - reservation.tokens
        self._local.settle(scopes, request_id, reservation.local_bucket, change, self._now_ms())
        slots = _slots(scopes)
        for slot in slots:
            self._held[slot].discard(request_id)
        windows: list[str] = []
        if change and reservation.redis_bucket is not None:
            windows = [_key(scope, Kind.TOKENS) for scope in scopes if scope.limit(Kind.TOKENS) is not None]
        if (windows or slots) and not self._away:
            bucket = reservation.redis_bucket or 0
            await self._call("settle", windows + slots, [request_id, bucket, change, len(windows)])

    async def run(self) -> None:
        """Keep this gateway's leases alive, find Redis again after it was away; until cancelled."""
        while True:
            await self.renew()
            await asyncio.sleep(_PROBE_S if self._away else self._renewal_s)

    async def renew(self) -> None:
        """Assert once that this gateway lives and which requests it runs."""
        self._local.prune(self._now_ms())
        living = await self._call("hold", [_GATEWAYS], [self._lease_ms, self._gateway_id])
        if living is None:
            return
        self._gateways = max(1, living)
        if self._away:
            self._away = False
            _log.info("limits.redis_back", gateways=self._gateways)
        for slot in [slot for slot, running in self._held.items() if not running]:
            del self._held[slot]
        for slot, running in list(self._held.items()):
            renewed = sorted(running)
            await self._call("hold", [slot], [self._lease_ms, *renewed])
            # Race: a request that ended while its renewal was under way would keep its slot for another lease.
            ended = [request_id for request_id in renewed if request_id not in running]
            if ended:
                await self._guard(self._redis.zrem(slot, *ended))

    async def close(self) -> None:
        """Leave: other gateways' shares grow at once instead of after a lease."""
        if not self._away:
            await self._guard(self._redis.zrem(_GATEWAYS, self._gateway_id))
        await self._redis.aclose()
        await self._pool.aclose()

    async def _call(self, operation: str, keys: Sequence[str], args: Iterable[str | int]) -> Any:  # noqa: ANN401
        at_ms = "" if self._clock_ms is None else self._clock_ms()
        return await self._guard(self._script(keys=keys, args=[operation, at_ms, *args]))

    async def _guard(self, answer: Awaitable[_Answer]) -> _Answer | None:
        """Return Redis's answer; None, and on with shares, when it does not give one in time."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await answer
        except (RedisError, OSError) as error:  # a timeout is an OSError
            if not self._away:
                _log.warning("limits.redis_away", error=str(error) or type(error).__name__)
            self._away = True
            return None

    def _now_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000 if self._clock_ms is None else self._clock_ms()


def _slots(scopes: Iterable[Scope]) -> list[str]:
    """Return the lease sets that a request of ``scopes`` is in."""
    return [_key(scope, Kind.CONCURRENT) for scope in scopes if scope.limit(Kind.CONCURRENT) is not None]


def _key(scope: Scope, kind: Kind) -> str:
    # The braces keep a tenant's keys in one slot of a cluster, which a script over several keys needs.
    return f"{_PREFIX}:{{{scope.tenant_id}}}:{scope.id}:{kind}"
