"""Deployments: what is served, by which replicas, with which shares of the KV pool."""

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_POST

from console import charts
from console.access import member_page
from controlplane.deployments import selectors, services
from controlplane.metering import selectors as metering
from tenants.actor import Actor
from tenants.roles import Permission

_RECENT_ROWS = 10


@require_GET
@member_page(Permission.DEPLOYMENTS_READ)
def index(request: HttpRequest, actor: Actor) -> HttpResponse:
    """List what the tenant may call."""
    context = {"deployments": selectors.list_deployments(actor=actor)}
    return render(request, "console/pages/deployments.html", context)


@require_GET
@member_page(Permission.DEPLOYMENTS_READ)
def detail(request: HttpRequest, actor: Actor, deployment_id: str) -> HttpResponse:
    """Show one deployment; replicas, pool and requests are told to its owner only."""
    summary = selectors.get_deployment(actor=actor, deployment_id=deployment_id)
    context = {
        "summary": summary,
        "deployment": summary.deployment,
        "may_change": summary.is_own and actor.may(Permission.DEPLOYMENTS_WRITE),
        "requests": metering.list_requests(actor=actor, deployment_id=deployment_id, limit=_RECENT_ROWS),
    }
    if summary.is_own:
        replicas = selectors.list_replicas(actor=actor, deployment_id=deployment_id)
        context["replicas"] = [(replica, *_pool_meter(replica)) for replica in replicas]
        context["events"] = selectors.list_replica_events(actor=actor, deployment_id=deployment_id)[:_RECENT_ROWS]
        context["pool"] = selectors.get_pool(actor=actor, deployment_id=deployment_id)
    partial = request.headers.get("HX-Request")
    template = "console/parts/deployment_live.html" if partial else "console/pages/deployment.html"
    return render(request, template, context)


def _pool_meter(replica: selectors.Replica) -> tuple[tuple[charts.Segment, ...], int]:
    """Return the parts of a replica's KV pool and its size, in tokens."""
    load = replica.report.load
    if load is None:
        return (), 0
    parts = [("In use", load.owned_blocks * load.block_size), ("Cached", load.cached_blocks * load.block_size)]
    pool_tokens = load.total_blocks * load.block_size
    return charts.meter(parts, pool_tokens), pool_tokens


@require_POST
@member_page(Permission.DEPLOYMENTS_WRITE)
def pause(request: HttpRequest, actor: Actor, deployment_id: str) -> HttpResponse:
    """Stop serving."""
    deployment = services.pause_deployment(actor=actor, deployment_id=deployment_id)
    messages.success(request, f"{deployment.name} is paused. Calls get a 503 that says so.")
    return redirect("console:deployment", tenant=actor.tenant.slug, deployment_id=deployment_id)


@require_POST
@member_page(Permission.DEPLOYMENTS_WRITE)
def resume(request: HttpRequest, actor: Actor, deployment_id: str) -> HttpResponse:
    """Serve again."""
    deployment = services.resume_deployment(actor=actor, deployment_id=deployment_id)
    messages.success(request, f"{deployment.name} is served again as soon as a replica is ready.")
    return redirect("console:deployment", tenant=actor.tenant.slug, deployment_id=deployment_id)
