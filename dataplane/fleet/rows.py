"""Rows of the replica table: a replica's own, and those of what has no process."""

import time
from collections import Counter
from collections.abc import Callable

import structlog

from dataplane.contracts.ids import Kind, new_id
from dataplane.contracts.replica import ReplicaReport, ReplicaState, Tier
from dataplane.fleet.plan import Assignment, Plan, Resting, Vacancy
from dataplane.fleet.replica import Replica
from dataplane.fleet.starts import Starts
from dataplane.fleet.tier_memory import TierMemory

_MEMORY_GRAIN_BYTES = 2**23
"""Shown memory is rounded to this, so that a process at rest does not change the table with every allocation."""
_WHERE = {
    Tier.WARM: "a process without weights is kept for it",
    Tier.DISK: "its weights are on this node's disk",
    Tier.STORE: "its weights are in the store",
}
_log = structlog.get_logger(__name__)


class Rows:
    """Makes them.

    Args:
        node: this node's name.
        memory: knows how long starts take.
        starts: knows since when something is missing.
        is_here: says whether a version's files, by its digest, are on this node's disk.
    """

    def __init__(self, node: str, memory: TierMemory, starts: Starts, is_here: Callable[[str], bool]) -> None:
        self._node = node
        self._memory = memory
        self._starts = starts
        self._is_here = is_here
        self._known: dict[tuple[Assignment, int], ReplicaReport] = {}

    def of(self, replica: Replica) -> ReplicaReport:
        """Return the row of a replica that has, or had, a process."""
        assignment, status = replica.assignment, replica.status
        is_asleep = replica.state is ReplicaState.ASLEEP
        return ReplicaReport(
            replica_id=replica.replica_id,
            node=self._node,
            state=replica.state,
            cause=replica.cause,
            since_ms=replica.since_ms,
            socket=str(replica.spec.http_socket),
            pid=replica.pid,
            deployment_id=assignment.deployment_id if assignment else "",
            version_id=assignment.version_id if assignment else "",
            owner_tenant_id=assignment.owner_tenant_id if assignment else "",
            restarts=replica.restarts,
            detail=replica.note or (status.detail if status else ""),
            kernels=status.kernels if status else "",
            context_tokens=status.context_tokens if status else 0,
            loaded_in_ms=replica.loaded_in_ms,
            load=status.load if status else None,
            tenants=status.tenants if status else [],
            idle=is_asleep,
            tier=Tier.ASLEEP if is_asleep else None,
            eta_ms=self._eta_ms(replica),
            memory_bytes=status.memory_bytes // _MEMORY_GRAIN_BYTES * _MEMORY_GRAIN_BYTES if status else 0,
        )

    def _eta_ms(self, replica: Replica) -> int | None:
        """Return how long until READY, from the replica's latest state change on."""
        if replica.assignment is None:
            return None
        deployment_id = replica.assignment.deployment_id
        if replica.state is ReplicaState.ASLEEP:
            return self._memory.eta_ms(deployment_id, Tier.ASLEEP)
        if replica.need is None or replica.state not in {ReplicaState.LOADING, ReplicaState.WARMING}:
            return None
        start_ms = self._memory.eta_ms(deployment_id, replica.need.tier)
        if start_ms is None:
            return None
        passed_ms = round((replica.entered_at_s - replica.need.since_s) * 1000)
        return max(0, start_ms - passed_ms)

    def without_process(self, plan: Plan, *, spare: bool) -> list[ReplicaReport]:
        """Return rows of what is missing or rests; each keeps its id and its moment as long as it does so.

        ``spare``: a process without weights is there; where none is, what rests warm starts as from disk.
        """
        before, self._known = self._known, {}
        seen: Counter[Assignment] = Counter()
        cold: list[Vacancy | Resting] = [*plan.vacancies, *plan.resting]
        for what in cold:
            key = (what.assignment, seen[what.assignment])
            seen[what.assignment] += 1
            row = self._cold(what, before.get(key), spare=spare)
            old = before.get(key)
            if not row.idle and (old is None or old.cause != row.cause):
                _log.info("fleet.vacancy", deployment_id=row.deployment_id, cause=row.cause)
            self._known[key] = row
        return list(self._known.values())

    def _cold(self, what: Vacancy | Resting, old: ReplicaReport | None, *, spare: bool) -> ReplicaReport:
        assignment = what.assignment
        if isinstance(what, Vacancy):
            need = self._starts.of(assignment)
            tier, cause, idle = need.tier if need else None, what.cause, False
        else:
            tier = Tier.DISK if what.tier is Tier.WARM and not spare else what.tier
            tier = tier if self._is_here(assignment.version_digest) else Tier.STORE
            cause, idle = f"idle: {_WHERE[tier]}, a call starts it", True
        if old is not None and old.idle is not idle:
            old = None
        return ReplicaReport(
            replica_id=old.replica_id if old else new_id(Kind.REPLICA),
            node=self._node,
            state=ReplicaState.COLD,
            cause=cause,
            since_ms=old.since_ms if old else time.time_ns() // 1_000_000,
            socket="",
            deployment_id=assignment.deployment_id,
            version_id=assignment.version_id,
            owner_tenant_id=assignment.owner_tenant_id,
            restarts=what.failures if isinstance(what, Vacancy) else 0,
            idle=idle,
            tier=tier,
            eta_ms=self._memory.eta_ms(assignment.deployment_id, tier) if tier else None,
        )
