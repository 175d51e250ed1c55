"""Rows of the replica table: a replica's own, and that of one that is missing."""

from dataplane.contracts.replica import ReplicaReport, ReplicaState
from dataplane.fleet.placement import Vacancy
from dataplane.fleet.replica import Replica


def row(replica: Replica, node: str) -> ReplicaReport:
    """Return the row of a replica that has, or had, a process."""
    assignment, status = replica.assignment, replica.status
    return ReplicaReport(
        replica_id=replica.replica_id,
        node=node,
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
    )


def cold_row(vacancy: Vacancy, node: str, replica_id: str, since_ms: int) -> ReplicaReport:
    """Return the row of a wanted replica that has no process."""
    return ReplicaReport(
        replica_id=replica_id,
        node=node,
        state=ReplicaState.COLD,
        cause=vacancy.cause,
        since_ms=since_ms,
        socket="",
        deployment_id=vacancy.assignment.deployment_id,
        version_id=vacancy.assignment.version_id,
        owner_tenant_id=vacancy.assignment.owner_tenant_id,
    )
