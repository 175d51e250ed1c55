"""Deployments: what is served, by which replicas, with which shares of the KV pool."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from console import charts, idle, journal
from console.access import member_page
from console.views import requests, rollouts
from console.views.versions import named
from controlplane.deployments import selectors, services
from controlplane.metering import selectors as metering
from dataplane.contracts.catalog import CANDIDATE, PREVIOUS, STABLE
from dataplane.contracts.replica import ReplicaState
from tenants.actor import Actor
from tenants.errors import Invalid, NotFound
from tenants.roles import Permission

_ARM_SERIES = {STABLE: 2, CANDIDATE: 1, PREVIOUS: 3}
"""Colours: an arm has the same one on every page."""
TABS = {
    "overview": "Overview",
    "replicas": "Replicas",
    "rollouts": "Rollouts",
    "requests": "Requests",
    "events": "Events",
}
_GUEST_TABS = ("overview", "requests")
_ROWS = 25
_TRAFFIC = timedelta(hours=24)
_STRIP = (
    ReplicaState.READY,
    ReplicaState.STARTING,
    ReplicaState.LOADING,
    ReplicaState.WARMING,
    ReplicaState.DRAINING,
    ReplicaState.ASLEEP,
    ReplicaState.COLD,
)
"""The states of a strip of replicas, warmest first."""


@require_GET
@member_page(Permission.DEPLOYMENTS_READ)
def index(request: HttpRequest, actor: Actor) -> HttpResponse:
    """List what the tenant may call, with what was asked of it and what a start takes."""
    now = timezone.now()
    lines = metering.usage(actor=actor, since=now - _TRAFFIC, until=now, by=metering.Dimension.DEPLOYMENT)
    asked = {line.label: line.requests for line in lines}
    costs = selectors.list_restart_costs(actor=actor)
    served = selectors.list_deployments(actor=actor)
    context = {
        "deployments": [(each, asked.get(each.deployment.id, 0), costs.get(each.deployment.id)) for each in served],
        "may_change": actor.may(Permission.DEPLOYMENTS_WRITE),
    }
    partial = request.headers.get("HX-Request")
    return render(
        request, "console/parts/deployments_live.html" if partial else "console/pages/deployments.html", context
    )


@require_GET
@member_page(Permission.DEPLOYMENTS_READ)
def detail(request: HttpRequest, actor: Actor, deployment_id: str) -> HttpResponse:
    """Show one deployment, a tab at a time; replicas, pool and events are told to its owner only."""
    summary = selectors.get_deployment(actor=actor, deployment_id=deployment_id)
    tabs = _tabs(summary)
    tab = request.GET.get("tab", "overview")
    if tab not in tabs:
        raise NotFound(f"A deployment has no tab {tab!r} for you.")
    live = f"console/parts/deployment_{tab}.html"
    context = {
        **about(actor, summary),
        "tab": tab,
        "live": live,
        **_tab_context(request, actor, summary, tab),
    }
    return render(request, live if request.headers.get("HX-Request") else "console/pages/deployment.html", context)


def about(actor: Actor, summary: selectors.DeploymentSummary) -> dict[str, Any]:
    """Return what every page of a deployment needs for its head and tabs."""
    return {
        "summary": summary,
        "deployment": summary.deployment,
        "may_change": summary.is_own and actor.may(Permission.DEPLOYMENTS_WRITE),
        "tabs": _tabs(summary),
    }


def _tabs(summary: selectors.DeploymentSummary) -> dict[str, str]:
    return TABS if summary.is_own else {name: TABS[name] for name in _GUEST_TABS}


def own(actor: Actor, deployment_id: str) -> selectors.DeploymentSummary:
    """Return one of the tenant's own deployments.

    Raises:
        NotFound: it owns none of that id; one that it may only call is another's.
    """
    summary = selectors.get_deployment(actor=actor, deployment_id=deployment_id)
    if not summary.is_own:
        raise NotFound("There is no such deployment of yours.")
    return summary


def _tab_context(request: HttpRequest, actor: Actor, summary: selectors.DeploymentSummary, tab: str) -> dict[str, Any]:
    deployment_id = summary.deployment.id
    if tab == "requests":
        names = requests.names_in(actor, summary)
        return requests.listed(request, actor, names, deployment_id=deployment_id)
    if tab == "events":
        events = selectors.list_events(actor=actor, deployment_id=deployment_id, limit=_ROWS)
        return {"events": [(event, *told(event, summary.name)) for event in events]}
    if not summary.is_own:
        return {}
    if tab == "rollouts":
        return rollouts.of_deployment(actor, deployment_id)
    if tab == "replicas":
        replicas = selectors.list_replicas(actor=actor, deployment_id=deployment_id)
        living = [each for each in replicas if each.row.state != ReplicaState.STOPPED]
        return {
            "replicas": [(each, pool_meter(each)) for each in living],
            "strip": strip(living),
            "ended": [each.row for each in replicas if each.row.state == ReplicaState.STOPPED],
        }
    pool = selectors.get_pool(actor=actor, deployment_id=deployment_id)
    return {
        "pool": pool,
        "meter": charts.meter([("In use", pool.used_tokens), ("Cached", pool.cached_tokens)], pool.total_tokens)
        if pool.total_tokens
        else None,
        "weights": weights(summary) if len(summary.arms) > 1 else None,
        "costs": selectors.list_restart_costs(actor=actor).get(deployment_id),
        "idle_words": idle.idle_words(summary.deployment.idle),
        "schedules": [idle.schedule_words(window) for window in summary.deployment.keep_warm],
    }


def weights(summary: selectors.DeploymentSummary) -> charts.Meter:
    """Return which part of the traffic each arm takes, the stable one first."""
    parts = [(f"{arm.name.capitalize()} {named(arm.version)}", arm.weight) for arm in summary.arms]
    return charts.meter(parts, 100, series=[_ARM_SERIES[arm.name] for arm in summary.arms])


def told(event: selectors.DeploymentEvent, name: str) -> tuple[str, list[journal.Change]]:
    """Return what an event says: the fleet's own words, or the deed of a person, and what it changed."""
    if event.kind is selectors.EventKind.REPLICA:
        return event.cause, []
    return f"{journal.deed(event.cause)} {name}", journal.changes(dict(event.before), dict(event.after))


def strip(replicas: Sequence[selectors.Replica]) -> list[tuple[str, int]]:
    """Return how many replicas are in each state, warmest first; states in which none is are left out."""
    counted = {state: sum(each.row.state == state for each in replicas) for state in _STRIP}
    return [(state.value, number) for state, number in counted.items() if number]


def pool_meter(replica: selectors.Replica) -> charts.Meter | None:
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
    summary = own(actor, deployment_id)
    context: dict[str, Any] = {
        **about(actor, summary),
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


@require_http_methods(["GET", "POST"])
@member_page(Permission.DEPLOYMENTS_WRITE, recently=True)
def delete(request: HttpRequest, actor: Actor, deployment_id: str) -> HttpResponse:
    """Name what depends on it, ask for its name, then end it for good."""
    summary = own(actor, deployment_id)
    context: dict[str, Any] = {
        **about(actor, summary),
        "dependents": selectors.list_dependents(actor=actor, deployment_id=deployment_id),
    }
    if request.method == "POST":
        try:
            services.delete_deployment(
                actor=actor, deployment_id=deployment_id, confirm=request.POST.get("confirm", "")
            )
        except Invalid as error:
            context["fault"] = error.message
        else:
            messages.success(request, f"{summary.name} is deleted. Its name is free again; its usage stays.")
            return redirect("console:deployments", tenant=actor.tenant.slug)
    status = 200 if request.method == "GET" else 422
    return render(request, "console/pages/deployment_delete.html", context, status=status)
