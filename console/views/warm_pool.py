"""The warm pool: processes by tier, the memory that sleepers may hold, and what starts took."""

from dataclasses import dataclass
from datetime import datetime

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from console import charts
from console.access import platform_page
from controlplane.deployments import selectors
from controlplane.metering import selectors as metering
from dataplane.contracts.replica import ReplicaState, Tier
from tenants.actor import Actor
from tenants.roles import Permission


@dataclass(frozen=True, slots=True)
class Pool:
    """What a node keeps warm: ``meter`` is the memory of its sleepers within their budget, in bytes."""

    node: selectors.Node
    asleep: int
    warm_idle: int
    serving: int
    total: int
    meter: charts.Meter | None


@dataclass(frozen=True, slots=True)
class Resting:
    """A deployment that rests: where it would start from, and the hour in which it was called last."""

    name: str
    replica: selectors.Replica
    tier: Tier
    last_used: datetime | None


@require_GET
@platform_page(Permission.PLATFORM_FLEET)
def warm_pool(request: HttpRequest, actor: Actor) -> HttpResponse:
    """Show each node's pool, who rests in it, and the measured cost of starting each deployment."""
    nodes = selectors.list_fleet(actor=actor)
    names = {item.id: f"{item.owner}/{item.name}" for item in selectors.list_all_deployments(actor=actor)}
    costs = selectors.list_restart_costs(actor=actor)
    resting = [(replica, tier) for node in nodes for replica in node.replicas if (tier := resting_tier(replica))]
    called = {replica.row.deployment_id for replica, _ in resting}
    last_used = metering.last_used_hours(actor=actor, deployment_ids=called) if called else {}
    context = {
        "pools": [pool_of(node) for node in nodes],
        "resting": [
            Resting(
                names.get(replica.row.deployment_id, replica.row.deployment_id),
                replica,
                tier,
                last_used.get(replica.row.deployment_id),
            )
            for replica, tier in resting
        ],
        "costs": [(names[deployment_id], found) for deployment_id, found in costs.items() if deployment_id in names],
    }
    partial = request.headers.get("HX-Request")
    return render(request, "console/parts/warm_pool_live.html" if partial else "console/pages/warm_pool.html", context)


def resting_tier(replica: selectors.Replica) -> Tier | None:
    """Return the tier from which a resting deployment's replica would start; None where it does not rest."""
    if replica.report.state is ReplicaState.ASLEEP:
        return Tier.ASLEEP
    return replica.report.tier if replica.report.idle else None


def pool_of(node: selectors.Node) -> Pool:
    """Return what a node keeps warm."""
    reports = [replica.report for replica in node.replicas]
    sleepers = [report for report in reports if report.state is ReplicaState.ASLEEP]
    held_bytes = sum(report.memory_bytes for report in sleepers)
    processes = [report for report in reports if report.state not in (ReplicaState.COLD, ReplicaState.STOPPED)]
    budget = node.resources.asleep_budget_bytes if node.resources else 0
    return Pool(
        node=node,
        asleep=len(sleepers),
        warm_idle=sum(report.state is ReplicaState.WARM_IDLE for report in reports),
        serving=sum(report.state is ReplicaState.READY for report in reports),
        total=len(processes),
        meter=charts.meter([("Sleepers", held_bytes)], budget, series=(2,)) if budget else None,
    )
