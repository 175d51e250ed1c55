"""Tenants' shares of deployments, divided over this node's replicas; and the secret that salts a prefix cache."""

import hashlib
import hmac
from collections.abc import Iterable, Mapping

from dataplane.contracts.catalog import DeploymentEntry
from dataplane.contracts.leases import Lease, blocks_for
from dataplane.contracts.replica import ReplicaState
from dataplane.fleet.leases import Leases, Seen
from dataplane.fleet.plan import Assignment
from dataplane.fleet.replica import Replica
from dataplane.fleet.service import Exchange

_SERVES = frozenset({ReplicaState.LOADING, ReplicaState.WARMING, ReplicaState.READY})


class Sharing:
    """Leases and exchanged service of everything that this node serves.

    Replicas of one assignment divide each tenant's share. Every assignment has it whole, for one arm of a deployment
    can have all of a tenant's calls.
    """

    def __init__(self) -> None:
        self._leases: dict[Assignment, Leases] = {}
        self._exchanges: dict[Assignment, Exchange] = {}

    def begin(
        self, replica_id: str, assignment: Assignment, deployment: DeploymentEntry, wanted: int
    ) -> dict[str, Lease]:
        """Return what a replica begins with that is to load ``assignment`` beside others, ``wanted`` in all."""
        leases = self._leases.setdefault(assignment, Leases(assignment.engine.block_size))
        return leases.begin(replica_id, deployment.grants, wanted)

    def round(self, deployments: Mapping[str, DeploymentEntry], replicas: Iterable[Replica]) -> None:
        """Hear all replicas that are not known to be gone, and tell each what is new for it."""
        groups: dict[Assignment, list[Replica]] = {}
        for replica in replicas:
            if replica.assignment is not None:
                groups.setdefault(replica.assignment, []).append(replica)
        self._leases = {assignment: self._leases[assignment] for assignment in groups}
        self._exchanges = {assignment: self._exchanges.get(assignment, Exchange()) for assignment in groups}
        for assignment, together in groups.items():
            deployment = deployments.get(assignment.deployment_id)
            if deployment is not None:  # else they are about to end, with what they hold
                self._move_leases(assignment, deployment, together)
                self._exchange_service(assignment, deployment, together)

    def _move_leases(self, assignment: Assignment, deployment: DeploymentEntry, together: list[Replica]) -> None:
        seen = [_seen(replica, assignment.engine.block_size) for replica in together]
        messages = self._leases[assignment].round(deployment.grants, seen)
        for replica in together:
            if replica.replica_id in messages:
                replica.set_shares(messages[replica.replica_id])

    def _exchange_service(self, assignment: Assignment, deployment: DeploymentEntry, together: list[Replica]) -> None:
        served = {
            replica.replica_id: {load.tenant_id: load.served_units for load in replica.status.tenants}
            for replica in together
            if replica.status is not None
        }
        elsewhere = self._exchanges[assignment].round(served, deployment.grants)
        for replica in together:
            units = elsewhere.get(replica.replica_id, {})
            if replica.state is ReplicaState.READY and replica.takes_service and units != replica.told_service:
                replica.add_service(units)


def _seen(replica: Replica, block_size: int) -> Seen:
    status = replica.status
    load = status.load if status is not None else None
    if status is None or load is None:
        return Seen(replica.replica_id, serves=replica.state in _SERVES, takes=False)
    return Seen(
        replica.replica_id,
        serves=replica.state in _SERVES,
        takes=replica.takes_shares,
        lost=replica.shares_lost,
        number=status.shares_number,
        pool_blocks=load.total_blocks,
        context_blocks=blocks_for(status.context_tokens, block_size),
        tenants={tenant.tenant_id: tenant for tenant in status.tenants},
    )


def salt_secret(secret: bytes, version_digest: str) -> bytes:
    """Derive the secret of one version's cache salts: a worker of one version learns nothing about another's."""
    return hmac.digest(secret, f"cache-salt:{version_digest}".encode(), hashlib.sha256)
