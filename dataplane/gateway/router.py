"""Which replica of a version takes a request, by room and work. Pure.

A replica's report is a fraction of a second old, so what this gateway has sent since is added to it: otherwise a burst
between two reports would all land on the replica that looked best.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from dataplane.contracts.replica import ReplicaReport, ReplicaState


class Wanted(msgspec.Struct, frozen=True):
    """What a request needs: READY replicas of a version, with room for ``tokens`` of prompt and output.

    ``prompt_tokens`` are those of the prompt; the engines of the deployment run ``max_num_seqs`` requests at a time.
    """

    deployment_id: str
    version_id: str
    tokens: int
    prompt_tokens: int
    max_num_seqs: int

    @property
    def key(self) -> tuple[str, str]:
        """What of the deployments this is: requests with the same key can be served by the same replicas."""
        return (self.deployment_id, self.version_id)


class Incarnation(msgspec.Struct, frozen=True):
    """One stretch of a replica in one state.

    Its id may be used again by another process, and a process that slept is as good as new: nothing that was held
    against it before counts.
    """

    replica_id: str
    socket: str
    pid: int
    since_ms: int


def incarnation(report: ReplicaReport) -> Incarnation:
    """Return which life of its replica a report is of."""
    return Incarnation(report.replica_id, report.socket, report.pid, report.since_ms)


def candidates(
    replicas: Sequence[ReplicaReport], wanted: Wanted, avoid: Callable[[Incarnation], bool]
) -> list[ReplicaReport]:
    """Return the replicas that may take the request at all."""
    return [
        report
        for report in replicas
        if report.state is ReplicaState.READY
        and (report.deployment_id, report.version_id) == wanted.key
        and not avoid(incarnation(report))
    ]


def choose(
    ready: Sequence[ReplicaReport],
    wanted: Wanted,
    outstanding: Mapping[Incarnation, int],
    draw: Callable[[], float],
) -> ReplicaReport | None:
    """Return the best of ``ready``, or None when there is none.

    In order: room for the whole request now (free and cached blocks, less what is on its way there), least queued,
    least running, most room. ``draw`` (uniform in [0, 1)) parts equals, so that gateways do not herd.
    """

    def rank(report: ReplicaReport) -> tuple[bool, int, int, int, float]:
        sent = outstanding.get(incarnation(report), 0)
        load = report.load
        if load is None:
            return (False, sent, sent, 0, draw())
        unseen = max(0, sent - load.num_running - load.num_waiting)
        blocks = -(-wanted.tokens // load.block_size)
        room = load.free_blocks + load.cached_blocks - blocks * (unseen + 1)
        running = max(sent, load.num_running + load.num_waiting)
        return (room < 0, load.num_waiting + unseen, running, -room, draw())

    return min(ready, key=rank, default=None)
