"""How warm each deployment is to be: pure functions of its policy, its last use, a clock and the node's memory.

A deployment in use has a READY replica; the ones it promises to keep are READY always. Idle, it steps down at the times
its policy names: asleep, then a process without weights in reserve, then nothing but files. A step down is for the idle
only: a caller that waits or a request that runs puts it back at the top.
"""

import math
from collections.abc import Sequence

import msgspec

from dataplane.contracts import arms
from dataplane.contracts.catalog import Arm, DeploymentEntry, Hold, IdlePolicy, kept_replicas
from dataplane.contracts.replica import Tier


class Use(msgspec.Struct, frozen=True):
    """When a deployment was last used (seconds of the caller's clock; None: never).

    ``is_now``: callers wait for it or requests run on it.
    """

    last_s: float | None = None
    is_now: bool = False


class Goal(msgspec.Struct, frozen=True):
    """How many replicas are to be READY; where there are none, the tier that is rested in.

    ``next_at_s`` (caller's clock): when the answer changes if nothing is used until then. ``held``: it sleeps for a way
    back and not because it is idle, and nothing is loaded for that.
    """

    ready: int
    tier: Tier | None = None
    next_at_s: float | None = None
    held: bool = False


def goal(deployment: DeploymentEntry, use: Use, now_s: float, unix_s: float) -> Goal:
    """Return where an active ``deployment`` is to stand.

    Args:
        deployment: with its policy, its minimum and its schedules.
        use: how it is used.
        now_s: the clock of ``use``.
        unix_s: the time for schedules, seconds since 1970 in UTC.
    """
    kept = kept_replicas(deployment, unix_s)
    if kept > 0:
        return Goal(ready=kept)
    if use.is_now:
        return Goal(ready=1)
    idle_s = math.inf if use.last_s is None else now_s - use.last_s
    steps = _steps(deployment.idle)
    reached = [tier for after_s, tier in steps if after_s <= idle_s]
    if use.last_s is None:
        return Goal(ready=0, tier=reached[-1] if reached else Tier.DISK)
    later = [use.last_s + after_s for after_s, tier in steps if after_s > idle_s]
    return Goal(ready=0 if reached else 1, tier=reached[-1] if reached else None, next_at_s=min(later, default=None))


def of_arm(arm: Arm, whole: Goal) -> Goal:
    """Return where ``arm`` is to stand in a deployment that is to stand at ``whole``."""
    ready = arms.replicas_for(arm, whole.ready)
    if ready > 0:
        return Goal(ready=ready)
    if arm.hold is Hold.ASLEEP:
        return Goal(ready=0, tier=Tier.ASLEEP, held=True)
    return whole


def _steps(policy: IdlePolicy) -> list[tuple[int, Tier]]:
    steps = (
        (policy.asleep_after_s, Tier.ASLEEP),
        (policy.warm_after_s, Tier.WARM),
        (policy.disk_after_s, Tier.DISK),
    )
    return [(after_s, tier) for after_s, tier in steps if after_s is not None]


class Sleeper(msgspec.Struct, frozen=True):
    """A replica that sleeps or may fall asleep, and the memory it holds then, or at most then.

    ``last_s`` is when its deployment was used last, ``held`` as in :class:`Goal`.
    """

    replica_id: str
    memory_bytes: int
    last_s: float
    held: bool = False

    @property
    def rank(self) -> tuple[float, bool]:
        """Who gives way first. Of equals the idle one does: the way back was promised to somebody."""
        return (self.last_s, self.held)


def within_budget(sleepers: Sequence[Sleeper], budget_bytes: int) -> set[str]:
    """Return the ids of those that may sleep: the least recently used give way until the rest fits.

    One that would not fit alone gives way at once, so that the others need not give way for nothing.
    """
    fitting = sorted((s for s in sleepers if s.memory_bytes <= budget_bytes), key=lambda s: s.rank, reverse=True)
    total_bytes = sum(sleeper.memory_bytes for sleeper in fitting)
    while total_bytes > budget_bytes:
        total_bytes -= fitting.pop().memory_bytes
    return {sleeper.replica_id for sleeper in fitting}
