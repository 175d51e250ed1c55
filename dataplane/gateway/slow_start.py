"""How fast requests are let go to a replica that has just become READY. Pure.

A few at first, twice as many with every report that shows its engine at work, until it has been sent as many as it runs
at a time: then it has come up to its pace, and whoever comes is sent there at once. Those who waited leave so too, and
never more than it has sequences and memory for: what it cannot run yet waits here, in fair order and with a time after
which it is told to come again, rather than in the engine's queue.
"""

from collections.abc import Mapping

import msgspec

from dataplane.contracts.replica import ReplicaReport, ReplicaState, ReplicaTable
from dataplane.gateway.router import Incarnation, Wanted, incarnation

FIRST = 4
"""How many may be under way at a replica that has shown nothing yet."""
_MOST = 1 << 16
_NEW_MS = 10_000
"""A replica that has been READY for longer when we first hear of it has come up to its pace without us."""


class Ramp(msgspec.Struct, frozen=True):
    """How far a replica has come: ``limit`` requests of ours may be under way; ``step`` was its engine's last."""

    limit: int
    step: int


def ramps(known: Mapping[Incarnation, Ramp], table: ReplicaTable) -> dict[Incarnation, Ramp]:
    """Return the ramps after a new report of all replicas. One that is not READY loses its own."""
    found: dict[Incarnation, Ramp] = {}
    for report in table.replicas:
        if report.state is not ReplicaState.READY:
            continue
        step = report.load.step if report.load else 0
        ramp = known.get(incarnation(report))
        if ramp is None:
            is_new = table.at_ms - report.since_ms < _NEW_MS
            found[incarnation(report)] = Ramp(FIRST if is_new else _MOST, step)
        else:
            grown = min(ramp.limit * 2, _MOST) if step > ramp.step else ramp.limit
            found[incarnation(report)] = Ramp(grown, max(step, ramp.step))
    return found


def is_over(ramp: Ramp, wanted: Wanted) -> bool:
    """Return whether a replica has come up to its pace: as many may be under way there as its engine runs at a time."""
    return ramp.limit >= wanted.max_num_seqs


def has_room(report: ReplicaReport, wanted: Wanted, sent: int, limit: int) -> bool:
    """Return whether one more request may go to a replica.

    A prompt takes its blocks; output is not foreseen, since a request that sets no limit would count as the whole
    context. To a replica where none of ours is under way one always may: nothing else would ever bring room.

    Args:
        report: the replica's newest.
        wanted: what the request needs.
        sent: requests of this gateway under way there.
        limit: how many may be.
    """
    if sent == 0:
        return True
    if sent >= limit:
        return False
    load = report.load
    if load is None:
        return True
    known = load.num_running + load.num_waiting
    unseen = max(0, sent - known)
    if load.num_waiting or known + unseen >= wanted.max_num_seqs:
        return False
    blocks = -(-wanted.prompt_tokens // load.block_size)
    return blocks * (unseen + 1) <= load.free_blocks + load.cached_blocks
