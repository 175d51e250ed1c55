"""What was measured of a tenant over some time, and how readings are put together. Pure.

Replicas count since their engine started; a reading holds what was added since the word before it. Readings of one
moment stand :func:`beside` each other (several replicas, versions, nodes) and add up; readings of one place come one
:func:`then` another.
"""

from collections.abc import Iterable, Mapping
from functools import reduce

import msgspec

from dataplane.contracts.generation import TenantLoad


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant over some time. Tokens are blocks of KV memory in tokens, units are weighted tokens of service.

    Args:
        guarantee_tokens: what it could claim back at the end of that time.
        cap_tokens: what it could hold at most, then.
        used_tokens: what its requests held, then.
        borrowed_tokens: most that they held above the guarantee.
        peak_tokens: most that they held. Of several places it is the sum of each one's most, an upper bound.
        waiting: most requests in line.
        gap_units: how far it fell behind the best served at most, on the replica where that came nearest to the bound.
        bound_units: how far it may fall behind there. 0: it never had to wait for its turn.
        service_units: what it was served.
        preemptions: how often its requests lost their memory, by cause.
        pauses: how often a request of it left its place in the step to a tenant that had less, keeping its memory.
        breaches: preemptions for another tenant while this one was within its guarantee. Promised: none.
        queries_tokens: prompt tokens that were looked up in its prefix cache.
        hits_tokens: those that were found there.
    """

    guarantee_tokens: int = 0
    cap_tokens: int = 0
    used_tokens: int = 0
    borrowed_tokens: int = 0
    peak_tokens: int = 0
    waiting: int = 0
    gap_units: float = 0.0
    bound_units: float = 0.0
    service_units: float = 0.0
    preemptions: dict[str, int] = {}
    pauses: int = 0
    breaches: int = 0
    queries_tokens: int = 0
    hits_tokens: int = 0

    @property
    def nearness(self) -> float:
        """The gap as a part of its bound: above 1 the promise is broken."""
        return self.gap_units / self.bound_units if self.bound_units else 0.0

    @property
    def preempted(self) -> int:
        """All preemptions."""
        return sum(self.preemptions.values())


_AT_THE_END = ("guarantee_tokens", "cap_tokens", "used_tokens")
_MOST = ("borrowed_tokens", "peak_tokens", "waiting")
_ADDED = ("service_units", "pauses", "breaches", "queries_tokens", "hits_tokens")
_GROWING = (
    "peak_owned_blocks", "served_units", "pauses", "within_guarantee_preemptions", "prefix_queries_tokens",
    "prefix_hits_tokens",
)  # fmt: skip


def of_replica(now: TenantLoad, before: TenantLoad | None, block_size: int) -> Reading:
    """Return what a replica adds to what it said before.

    Args:
        now: its word.
        before: the last word of the same life of its engine; None where this is the first.
        block_size: tokens of a block.
    """
    # The most since the engine started was reached since the last word only where it has grown; else what is held now
    # is the best that is known of this time.
    has_peaked = before is None or now.peak_owned_blocks > before.peak_owned_blocks
    peak_blocks = max(now.owned_blocks, now.peak_owned_blocks if has_peaked else 0)
    return Reading(
        guarantee_tokens=now.guarantee_blocks * block_size,
        cap_tokens=now.cap_blocks * block_size,
        used_tokens=now.owned_blocks * block_size,
        borrowed_tokens=max(0, now.owned_blocks - now.guarantee_blocks) * block_size,
        peak_tokens=peak_blocks * block_size,
        waiting=now.num_waiting,
        gap_units=now.service_gap_units,
        bound_units=now.service_bound_units,
        service_units=now.served_units - (before.served_units if before else 0.0),
        preemptions=_more(now.preemptions, before.preemptions if before else {}),
        pauses=now.pauses - (before.pauses if before else 0),
        breaches=now.within_guarantee_preemptions - (before.within_guarantee_preemptions if before else 0),
        queries_tokens=now.prefix_queries_tokens - (before.prefix_queries_tokens if before else 0),
        hits_tokens=now.prefix_hits_tokens - (before.prefix_hits_tokens if before else 0),
    )


def is_same_life(now: TenantLoad, before: TenantLoad) -> bool:
    """Say whether ``now`` can come from the engine that said ``before``: what it counts only grows."""
    return all(getattr(now, name) >= getattr(before, name) for name in _GROWING) and all(
        now.preemptions.get(cause, 0) >= count for cause, count in before.preemptions.items()
    )


def beside(readings: Iterable[Reading]) -> Reading:
    """Return readings of one moment at several places as one."""
    return reduce(_added, readings, Reading())


def then(earlier: Reading, later: Reading) -> Reading:
    """Return readings of one place, one after the other, as one."""
    return msgspec.structs.replace(
        _added(earlier, later),
        **{name: getattr(later, name) for name in _AT_THE_END},
        **{name: max(getattr(earlier, name), getattr(later, name)) for name in _MOST},
    )


def _added(first: Reading, second: Reading) -> Reading:
    nearest = max(first, second, key=lambda reading: (reading.nearness, reading.bound_units))
    return Reading(
        **{name: getattr(first, name) + getattr(second, name) for name in (*_AT_THE_END, *_MOST, *_ADDED)},
        gap_units=nearest.gap_units,
        bound_units=nearest.bound_units,
        preemptions={
            cause: first.preemptions.get(cause, 0) + second.preemptions.get(cause, 0)
            for cause in sorted(first.preemptions | second.preemptions)
        },
    )


def _more(now: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    return {cause: count - before.get(cause, 0) for cause, count in sorted(now.items()) if count > before.get(cause, 0)}
