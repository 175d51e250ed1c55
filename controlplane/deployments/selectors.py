"""What is deployed, how it fares, and who may call it, as the actor may see it."""

from collections import defaultdict
from dataclasses import dataclass

import msgspec
from django.db.models import Count, Q, QuerySet

from controlplane.deployments.capacity import pool_tokens
from controlplane.deployments.models import (
    Deployment,
    DeploymentArm,
    DeploymentState,
    FleetNode,
    Grant,
    ReplicaEvent,
    ReplicaRow,
)
from dataplane.contracts.replica import ReplicaReport, ReplicaState
from tenants.actor import Actor, reading_as, require
from tenants.errors import NotFound
from tenants.roles import Permission

EVENTS_PAGE_ROWS = 100


@dataclass(frozen=True, slots=True)
class DeploymentSummary:
    """A deployment as a list shows it.

    Args:
        deployment: the row.
        name: what this tenant writes as ``model``: ``owner/name`` for another's deployment.
        is_own: whether the tenant owns it; only then arms and replicas are told.
        arms: with version and model loaded, stable first.
        ready_replicas: replicas that serve.
        num_replicas: all that exist.
    """

    deployment: Deployment
    name: str
    is_own: bool
    arms: tuple[DeploymentArm, ...]
    ready_replicas: int
    num_replicas: int


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica with what its fleet reported last."""

    row: ReplicaRow
    report: ReplicaReport


@dataclass(frozen=True, slots=True)
class Pool:
    """The KV pool of one replica and the shares of a deployment. Tokens."""

    pool_tokens: int
    grants: tuple[Grant, ...]


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the fleet with its replicas, those of no tenant included."""

    node: FleetNode
    replicas: tuple[Replica, ...]


def list_deployments(*, actor: Actor) -> list[DeploymentSummary]:
    """Return what the tenant may call: its own deployments by name, then those it was granted."""
    require(actor, Permission.DEPLOYMENTS_READ)
    with reading_as(actor):
        return _summaries(actor, _visible(actor))


def get_deployment(*, actor: Actor, deployment_id: str) -> DeploymentSummary:
    """Return one deployment that the tenant may call.

    Raises:
        NotFound: there is none for this actor.
    """
    require(actor, Permission.DEPLOYMENTS_READ)
    with reading_as(actor):
        found = _summaries(actor, _visible(actor).filter(pk=deployment_id))
    if not found:
        raise NotFound("There is no such deployment.")
    return found[0]


def find_deployment(*, actor: Actor, name: str) -> DeploymentSummary | None:
    """Return the tenant's own deployment called ``name``, or None."""
    require(actor, Permission.DEPLOYMENTS_READ)
    with reading_as(actor):
        found = _summaries(actor, _visible(actor).filter(tenant=actor.tenant, name=name))
    return found[0] if found else None


def list_replicas(*, actor: Actor, deployment_id: str) -> list[Replica]:
    """Return the replicas of the tenant's own deployment.

    Raises:
        NotFound: it owns none of that id.
    """
    require(actor, Permission.DEPLOYMENTS_READ)
    with reading_as(actor):
        _require_own(actor, deployment_id)
        rows = ReplicaRow.objects.for_tenant(actor.tenant).filter(deployment_id=deployment_id)
        return [_replica(row) for row in rows.order_by("replica_id")]


def list_replica_events(*, actor: Actor, deployment_id: str) -> list[ReplicaEvent]:
    """Return the last changes of state of the replicas of the tenant's own deployment, newest first.

    Raises:
        NotFound: it owns none of that id.
    """
    require(actor, Permission.DEPLOYMENTS_READ)
    with reading_as(actor):
        _require_own(actor, deployment_id)
        events = ReplicaEvent.objects.for_tenant(actor.tenant).filter(deployment_id=deployment_id)
        return list(events.order_by("-at", "-sequence")[:EVENTS_PAGE_ROWS])


def get_pool(*, actor: Actor, deployment_id: str) -> Pool:
    """Return the KV pool of one replica and the shares promised in it; to the owner, or to the platform.

    Raises:
        NotFound: there is none for this actor.
    """
    require(actor, Permission.DEPLOYMENTS_READ)
    with reading_as(actor):
        deployment = _require_own(actor, deployment_id)
        stable = deployment.arms.select_related("version").first()
        if stable is None:
            raise NotFound("This deployment serves no version.")
        return Pool(
            pool_tokens=pool_tokens(stable.version.checked_config, deployment.engine),
            grants=tuple(deployment.grants.order_by("grantee_slug")),
        )


def list_fleet(*, actor: Actor) -> list[Node]:
    """Return every node and replica: for those who run the platform."""
    require(actor, Permission.PLATFORM_FLEET)
    with reading_as(actor):
        by_node: dict[str, list[Replica]] = defaultdict(list)
        for row in ReplicaRow.objects.order_by("replica_id"):
            by_node[row.node_id].append(_replica(row))
        return [Node(node=node, replicas=tuple(by_node[node.node])) for node in FleetNode.objects.order_by("node")]


def list_all_deployments(*, actor: Actor) -> list[Deployment]:
    """Return every tenant's deployments, by owner and name: for those who run the platform."""
    require(actor, Permission.PLATFORM_FLEET)
    with reading_as(actor):
        return list(Deployment.objects.exclude(state=DeploymentState.DELETED).order_by("owner", "name"))


def _visible(actor: Actor) -> QuerySet[Deployment]:
    granted = Grant.objects.filter(grantee=actor.tenant).values("deployment_id")
    living = Deployment.objects.exclude(state=DeploymentState.DELETED)
    return living.filter(Q(tenant=actor.tenant) | Q(pk__in=granted))


def _summaries(actor: Actor, deployments: QuerySet[Deployment]) -> list[DeploymentSummary]:
    rows = list(deployments)
    ids = [row.pk for row in rows]
    arms: dict[str, list[DeploymentArm]] = defaultdict(list)
    for arm in DeploymentArm.objects.filter(deployment_id__in=ids).select_related("version__model"):
        arms[arm.deployment_id].append(arm)
    counts = {
        line["deployment_id"]: (line["ready"], line["total"])
        for line in ReplicaRow.objects.filter(deployment_id__in=ids)
        .values("deployment_id")
        .annotate(ready=Count("pk", filter=Q(state=ReplicaState.READY)), total=Count("pk"))
    }
    summaries = [
        DeploymentSummary(
            deployment=row,
            name=row.name if row.tenant_id == actor.tenant.pk else f"{row.owner}/{row.name}",
            is_own=row.tenant_id == actor.tenant.pk,
            arms=tuple(arms[row.pk]),
            ready_replicas=counts.get(row.pk, (0, 0))[0],
            num_replicas=counts.get(row.pk, (0, 0))[1],
        )
        for row in rows
    ]
    return sorted(summaries, key=lambda summary: (not summary.is_own, summary.name))


def _require_own(actor: Actor, deployment_id: str) -> Deployment:
    rows = Deployment.objects if actor.is_platform else Deployment.objects.for_tenant(actor.tenant)
    deployment = rows.exclude(state=DeploymentState.DELETED).filter(pk=deployment_id).first()
    if deployment is None:
        raise NotFound("There is no such deployment.")
    return deployment


def _replica(row: ReplicaRow) -> Replica:
    return Replica(row=row, report=msgspec.convert(row.report, ReplicaReport))
