"""How a deployment stands, in one word and a reason. Pure: read off the rows that its fleet reported."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from dataplane.contracts.replica import ReplicaReport, ReplicaState, Tier


class Standing(StrEnum):
    """One word for a badge.

    ACTIVE is all that a tenant hears of a deployment that another owns. From ASLEEP on the next call starts it, at a
    growing cost; FAILING tries again by itself, after a pause.
    """

    PAUSED = "paused"
    ACTIVE = "active"
    LIVE = "live"
    STARTING = "starting"
    FAILING = "failing"
    DRAINING = "draining"
    ASLEEP = "asleep"
    WARM = "warm"
    DISK = "on disk"
    STORE = "in store"


@dataclass(frozen=True, slots=True)
class DeploymentState:
    """How a deployment stands.

    Args:
        standing: the word.
        cause: why, where there is something to say.
        since_ms: since when, Unix milliseconds; None where that is not known.
        eta_ms: how long a start takes from here, by what starts took before; None where none was measured.
    """

    standing: Standing
    cause: str = ""
    since_ms: int | None = None
    eta_ms: int | None = None


_RESTING = {
    Tier.ASLEEP: Standing.ASLEEP,
    Tier.WARM: Standing.WARM,
    Tier.DISK: Standing.DISK,
    Tier.STORE: Standing.STORE,
}
_UNDER_WAY = (ReplicaState.STARTING, ReplicaState.LOADING, ReplicaState.WARMING)


def judge(replicas: Sequence[ReplicaReport]) -> DeploymentState:
    """Return how an active deployment with these replicas stands: what goes on counts before what rests.

    Args:
        replicas: rows of the fleet's table that have not stopped.
    """
    if not replicas:
        return DeploymentState(Standing.STARTING, "The fleet has not taken it up yet.")
    vacant = [row for row in replicas if row.state is ReplicaState.COLD and not row.idle]
    if any(row.state is ReplicaState.READY for row in replicas):
        since_ms = min(row.since_ms for row in replicas if row.state is ReplicaState.READY)
        return DeploymentState(Standing.LIVE, vacant[0].cause if vacant else "", since_ms)
    for row in replicas:
        if row.state in _UNDER_WAY:
            return _of(row, Standing.STARTING)
    for row in vacant:
        return _of(row, Standing.FAILING if row.restarts else Standing.STARTING)
    resting = [(tier, row) for tier in Tier for row in replicas if _tier(row) is tier]
    if resting:
        tier, row = resting[0]
        return _of(row, _RESTING[tier])
    return _of(replicas[0], Standing.DRAINING)


def _tier(row: ReplicaReport) -> Tier | None:
    return Tier.ASLEEP if row.state is ReplicaState.ASLEEP else row.tier if row.idle else None


def _of(row: ReplicaReport, standing: Standing) -> DeploymentState:
    return DeploymentState(standing, row.cause, row.since_ms, row.eta_ms)
