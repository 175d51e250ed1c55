"""Limits counted in memory: the rule itself, pure, with the clock as an argument.

A limit per minute counts what fell into a window that slides in buckets of half a second. A bucket leaves when all of
it is a minute old, so no minute, wherever it begins, holds more than the limit, and a steady caller gets at least
60 / 60.5 of it. (A generic cell rate algorithm, ITU-T I.371, needs one number instead of 121 but lets a burst of the
whole limit and then the refill through, up to twice the limit in the first minute.)

``limits.lua`` is the same rule in Redis, where all gateways meet; this one serves alone while Redis is away, tells the
script what this gateway knows to be in use (a flushed Redis has forgotten it), and is the model of the script's tests.
"""

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum

import msgspec

from dataplane.contracts.catalog import Limits

BUCKET_MS = 500
WINDOW_BUCKETS = 120
WINDOW_MS = BUCKET_MS * WINDOW_BUCKETS
BUSY_RETRY_MS = 1000
"""When a slot of the concurrency limit comes free nobody knows; a second is a reasonable time to ask again."""


class Kind(StrEnum):
    """What a limit counts; the values are the codes of errors and the names of policies."""

    REQUESTS = "requests_per_minute"
    TOKENS = "tokens_per_minute"
    CONCURRENT = "concurrent_requests"


class Scope(msgspec.Struct, frozen=True):
    """Whose limit: ``name`` is ``tenant`` or ``key``, ``id`` the public id, ``tenant_id`` keeps a tenant together."""

    name: str
    id: str
    tenant_id: str
    limits: Limits

    def limit(self, kind: Kind) -> int | None:
        """Return the scope's limit of a kind; None is no limit."""
        return {
            Kind.REQUESTS: self.limits.requests_per_minute,
            Kind.TOKENS: self.limits.tokens_per_minute,
            Kind.CONCURRENT: self.limits.concurrent_requests,
        }[kind]

    @property
    def limited(self) -> bool:
        """Whether any of the three limits is set."""
        return any(self.limit(kind) is not None for kind in Kind)


class Gauge(msgspec.Struct, frozen=True):
    """One limit and how much of it is in use; ``reset_ms`` until none of today's use counts any more."""

    scope: str
    kind: Kind
    limit: int
    used: int
    reset_ms: int

    @property
    def remaining(self) -> int:
        """What is left; never negative, though a settlement may have put use above the limit."""
        return max(0, self.limit - self.used)


class Verdict(msgspec.Struct, frozen=True):
    """The answer to a reservation: the gauges after it and, where it was refused, by which one and for how long."""

    gauges: tuple[Gauge, ...]
    refused: Gauge | None = None
    retry_ms: int = 0


class Window:
    """Amounts of the last minute, by bucket."""

    __slots__ = ("_buckets", "_slid_to", "_used")

    def __init__(self) -> None:
        self._buckets: dict[int, int] = {}
        self._slid_to = -1
        self._used = 0

    def used(self, now_ms: int) -> int:
        """Return what the window holds at ``now_ms``, forgetting what has left it."""
        now = now_ms // BUCKET_MS
        if now != self._slid_to:
            # A bucket of the future is from before a step of the clock; nobody can wait for it.
            live = range(now - WINDOW_BUCKETS, now + 2)
            self._buckets = {bucket: amount for bucket, amount in self._buckets.items() if bucket in live}
            self._used = sum(self._buckets.values())
            self._slid_to = now
        return self._used

    def add(self, now_ms: int, amount: int) -> int:
        """Count ``amount`` now; return its bucket, by which it can be corrected."""
        self.used(now_ms)
        bucket = now_ms // BUCKET_MS
        self._buckets[bucket] = self._buckets.get(bucket, 0) + amount
        self._used += amount
        return bucket

    def correct(self, now_ms: int, bucket: int, change: int) -> None:
        """Add ``change`` to an earlier amount. If that has left, a debt counts from now and a refund is moot."""
        self.used(now_ms)
        if bucket in self._buckets:
            self._buckets[bucket] += change
            self._used += change
        elif change > 0:
            self.add(now_ms, change)

    def retry_ms(self, now_ms: int, amount: int, limit: int) -> int:
        """Return in how many ms ``amount`` fits under ``limit`` if nothing else comes; a window's length if never."""
        excess = self.used(now_ms) + amount - limit
        if excess <= 0:
            return 0
        for bucket in sorted(self._buckets):
            excess -= self._buckets[bucket]
            if excess <= 0:
                return _leaves_in_ms(bucket, now_ms)
        return WINDOW_MS

    def reset_ms(self, now_ms: int) -> int:
        """Return in how many ms the window is empty if nothing else comes."""
        return _leaves_in_ms(max(self._buckets), now_ms) if self.used(now_ms) and self._buckets else 0


def _leaves_in_ms(bucket: int, now_ms: int) -> int:
    return (bucket + 1 + WINDOW_BUCKETS) * BUCKET_MS - now_ms


class Usage:
    """What one scope uses: two windows, and the ids of the requests that run."""

    __slots__ = ("requests", "running", "tokens")

    def __init__(self) -> None:
        self.requests = Window()
        self.tokens = Window()
        self.running: set[str] = set()

    def used(self, kind: Kind, now_ms: int) -> int:
        """Return the use of one kind."""
        if kind is Kind.CONCURRENT:
            return len(self.running)
        return self._window(kind).used(now_ms)

    def retry_ms(self, kind: Kind, now_ms: int, amount: int, limit: int) -> int:
        """Return when ``amount`` more of a kind may fit; 0 if it does."""
        if kind is Kind.CONCURRENT:
            return 0 if len(self.running) + amount <= limit else BUSY_RETRY_MS
        return self._window(kind).retry_ms(now_ms, amount, limit)

    def reset_ms(self, kind: Kind, now_ms: int) -> int:
        """Return when none of today's use counts; 0 for what has no window."""
        return 0 if kind is Kind.CONCURRENT else self._window(kind).reset_ms(now_ms)

    def _window(self, kind: Kind) -> Window:
        return self.requests if kind is Kind.REQUESTS else self.tokens

    def idle(self, now_ms: int) -> bool:
        """Say whether nothing here would be missed."""
        return not self.running and not self.requests.used(now_ms) and not self.tokens.used(now_ms)


def amounts(tokens: int) -> dict[Kind, int]:
    """Return what one request of ``tokens`` takes of each kind of limit."""
    return {Kind.REQUESTS: 1, Kind.TOKENS: tokens, Kind.CONCURRENT: 1}


def _limits(scopes: Iterable[Scope]) -> Iterator[tuple[Scope, Kind, int]]:
    """Yield the limits that are set, in the order of the script's keys."""
    for scope in scopes:
        for kind in Kind:
            limit = scope.limit(kind)
            if limit is not None:
                yield scope, kind, limit


class LocalLimits:
    """The limits as far as one process can see them."""

    def __init__(self) -> None:
        self._usage: dict[str, Usage] = {}

    def usage(self, scope_id: str) -> Usage:
        """Return the usage of a scope, empty when it was never seen."""
        return self._usage.setdefault(scope_id, Usage())

    def reserve(self, scopes: Sequence[Scope], request_id: str, tokens: int, now_ms: int, sharers: int = 1) -> Verdict:
        """Count a request of ``tokens`` in every limit, or, where one refuses it, in none.

        ``sharers`` gateways divide the limits; a share is never less than what one request needs, or a tenant of a
        small limit could not call at all.
        """
        waits_ms: list[tuple[int, str, Kind]] = []
        for scope, kind, limit in _limits(scopes):
            amount = amounts(tokens)[kind]
            share = limit if sharers == 1 else min(limit, max(limit // sharers, amount))
            waits_ms.append((self.usage(scope.id).retry_ms(kind, now_ms, amount, share), scope.name, kind))
        longest_ms, refusing, refused_kind = max(waits_ms, key=lambda wait: wait[0], default=(0, "", None))
        if longest_ms == 0:
            self.count(scopes, request_id, tokens, now_ms)
            return Verdict(self._gauges(scopes, now_ms))
        gauges = self._gauges(scopes, now_ms)
        refused = next(gauge for gauge in gauges if (gauge.scope, gauge.kind) == (refusing, refused_kind))
        return Verdict(gauges, refused, longest_ms)

    def _gauges(self, scopes: Sequence[Scope], now_ms: int) -> tuple[Gauge, ...]:
        return tuple(
            Gauge(
                scope.name,
                kind,
                limit,
                self.usage(scope.id).used(kind, now_ms),
                self.usage(scope.id).reset_ms(kind, now_ms),
            )
            for scope, kind, limit in _limits(scopes)
        )

    def count(self, scopes: Iterable[Scope], request_id: str, tokens: int, now_ms: int) -> None:
        """Count a request that was admitted elsewhere."""
        for scope in scopes:
            usage = self.usage(scope.id)
            usage.requests.add(now_ms, 1)
            usage.tokens.add(now_ms, tokens)
            usage.running.add(request_id)

    def settle(self, scopes: Iterable[Scope], request_id: str, bucket: int, change: int, now_ms: int) -> None:
        """End a request: correct its tokens by ``change`` and free its slot."""
        for scope in scopes:
            usage = self.usage(scope.id)
            usage.tokens.correct(now_ms, bucket, change)
            usage.running.discard(request_id)

    def prune(self, now_ms: int) -> None:
        """Forget scopes that use nothing."""
        self._usage = {scope_id: usage for scope_id, usage in self._usage.items() if not usage.idle(now_ms)}
