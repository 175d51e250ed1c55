"""Deployments: what is served, by which replicas, with which shares of the KV pool."""

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from console import charts
from console.access import member_page
from controlplane.deployments import selectors, services
from controlplane.metering import selectors as metering
from tenants.actor import Actor
from tenants.errors import NotFound
from tenants.roles import Permission

TABS = {"overview": "Overview", "requests": "Requests", "events": "Events"}
_ROWS = 25


@require_GET
@member_page(Permission.DEPLOYMENTS_READ)
def index(request: HttpRequest, actor: Actor) -> HttpResponse:
    """List what the tenant may call."""
    context = {"deployments": selectors.list_deployments(actor=actor)}
    return render(request, "console/pages/deployments.html", context)


@require_GET
@member_page(Permission.DEPLOYMENTS_READ)
def detail(request: HttpRequest, actor: Actor, deployment_id: str) -> HttpResponse:
    """Show one deployment, a tab at a time; replicas, pool and events are told to its owner only."""
    summary = selectors.get_deployment(actor=actor, deployment_id=deployment_id)
    tabs = TABS if summary.is_own else {name: TABS[name] for name in ("overview", "requests")}
    tab = request.GET.get("tab", "overview")
    if tab not in tabs:
        raise NotFound(f"A deployment has no tab {tab!r} for you.")
    context = {
        "summary": summary,
        "deployment": summary.deployment,
        "may_change": summary.is_own and actor.may(Permission.DEPLOYMENTS_WRITE),
        "tabs": tabs,
        "tab": tab,
        **_tab_context(actor, summary, tab),
    }
    partial = request.headers.get("HX-Request")
    template = f"console/parts/deployment_{tab}.html" if partial else "console/pages/deployment.html"
    return render(request, template, context)


def _tab_context(actor: Actor, summary: selectors.DeploymentSummary, tab: str) -> dict[str, Any]:
    deployment_id = summary.deployment.id
    if tab == "requests":
        rows = metering.list_requests(actor=actor, deployment_id=deployment_id, limit=_ROWS)
        return {"requests": [("", row) for row in rows]}
    if tab == "events":
        return {"events": selectors.list_replica_events(actor=actor, deployment_id=deployment_id)[:_ROWS]}
    if not summary.is_own:
        return {}
    replicas = selectors.list_replicas(actor=actor, deployment_id=deployment_id)
    return {
        "replicas": [(replica, _pool_meter(replica)) for replica in replicas],
        "pool": selectors.get_pool(actor=actor, deployment_id=deployment_id),
    }


def _pool_meter(replica: selectors.Replica) -> charts.Meter | None:
    """Return the parts of a replica's KV pool in tokens, once it has one."""
    load = replica.report.load
    if load is None:
        return None
    parts = [("In use", load.owned_blocks * load.block_size), ("Cached", load.cached_blocks * load.block_size)]
    return charts.meter(parts, load.total_blocks * load.block_size)


@require_http_methods(["GET", "POST"])
@member_page(Permission.DEPLOYMENTS_WRITE)
def pause(request: HttpRequest, actor: Actor, deployment_id: str) -> HttpResponse:
    """Name what will stop, ask for the deployment's name, then stop serving."""
    summary = selectors.get_deployment(actor=actor, deployment_id=deployment_id)
    if not summary.is_own:
        raise NotFound("There is no such deployment of yours.")
    context = {
        "summary": summary,
        "deployment": summary.deployment,
        "pool": selectors.get_pool(actor=actor, deployment_id=deployment_id),
    }
    if request.method == "GET":
        return render(request, "console/pages/deployment_pause.html", context)
    if request.POST.get("confirm", "") != summary.name:
        context["fault"] = "This is not the deployment's name."
        return render(request, "console/pages/deployment_pause.html", context, status=422)
    services.pause_deployment(actor=actor, deployment_id=deployment_id)
    messages.success(request, f"{summary.name} is paused. Calls get a 503 that says so.")
    return redirect("console:deployment", tenant=actor.tenant.slug, deployment_id=deployment_id)


@require_POST
@member_page(Permission.DEPLOYMENTS_WRITE)
def resume(request: HttpRequest, actor: Actor, deployment_id: str) -> HttpResponse:
    """Serve again."""
    deployment = services.resume_deployment(actor=actor, deployment_id=deployment_id)
    messages.success(request, f"{deployment.name} is served again as soon as a replica is ready.")
    return redirect("console:deployment", tenant=actor.tenant.slug, deployment_id=deployment_id)
