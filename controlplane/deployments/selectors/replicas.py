"""Replicas, the nodes they run on, and what their starts took."""

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime

import msgspec

from controlplane.deployments.models import FleetNode, ReplicaRow, RestartCosts
from controlplane.deployments.selectors.rows import own_deployment, replica_report
from dataplane.contracts.replica import NodeReport, ReplicaReport, Tier, TierCost
from tenants.actor import Actor, reading_as, require
from tenants.roles import Permission

_WARMEST_FIRST = list(Tier)


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica with what its fleet reported last."""

    row: ReplicaRow
    report: ReplicaReport


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the fleet with its replicas, those of no tenant included; ``resources`` once it has told them."""

    node: FleetNode
    replicas: tuple[Replica, ...]
    resources: NodeReport | None


@dataclass(frozen=True, slots=True)
class Costs:
    """What starts of a deployment took, warmest tier first, and when that was told."""

    tiers: tuple[TierCost, ...]
    at: datetime | None


def list_replicas(*, actor: Actor, deployment_id: str) -> list[Replica]:
    """Return the replicas of the tenant's own deployment.

    Raises:
        NotFound: it owns none of that id.
    """
    require(actor, Permission.DEPLOYMENTS_READ)
    with reading_as(actor):
        own_deployment(actor, deployment_id)
        rows = ReplicaRow.objects.filter(deployment_id=deployment_id)
        return [_replica(row) for row in rows.order_by("replica_id")]


def restart_costs(*, actor: Actor, deployment_id: str) -> Costs:
    """Return what starts of the tenant's own deployment took from each tier; no tier where none was measured.

    Raises:
        NotFound: it owns none of that id.
    """
    require(actor, Permission.DEPLOYMENTS_READ)
    with reading_as(actor):
        own_deployment(actor, deployment_id)
        row = RestartCosts.objects.filter(pk=deployment_id).first()
    if row is None:
        return Costs((), None)
    tiers = msgspec.convert(row.costs, tuple[TierCost, ...])
    return Costs(tuple(sorted(tiers, key=lambda cost: _WARMEST_FIRST.index(cost.tier))), row.at)


def list_restart_costs(*, actor: Actor) -> dict[str, Costs]:
    """Return the same of every deployment that was measured, by its id: of the tenant, or for the platform of all."""
    require(actor, Permission.DEPLOYMENTS_READ)
    with reading_as(actor):
        rows = RestartCosts.objects.all() if actor.is_platform else RestartCosts.objects.for_tenant(actor.tenant)
        return {row.pk: Costs(msgspec.convert(row.costs, tuple[TierCost, ...]), row.at) for row in rows}


def list_fleet(*, actor: Actor) -> list[Node]:
    """Return every node and replica: for those who run the platform."""
    require(actor, Permission.PLATFORM_FLEET)
    with reading_as(actor):
        by_node: dict[str, list[Replica]] = defaultdict(list)
        for row in ReplicaRow.objects.order_by("replica_id"):
            by_node[row.node_id].append(_replica(row))
        return [
            Node(
                node=node,
                replicas=tuple(by_node[node.node]),
                resources=None if node.resources is None else msgspec.convert(node.resources, NodeReport),
            )
            for node in FleetNode.objects.order_by("node")
        ]


def _replica(row: ReplicaRow) -> Replica:
    return Replica(row=row, report=replica_report(row))
