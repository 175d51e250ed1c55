"""Pages of those who run the platform: the fleet, tenants and their limits."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from console import charts
from console.access import platform_page
from console.errors import show_faults
from controlplane.deployments import selectors as deployments
from controlplane.metering import selectors as metering
from dataplane.contracts.catalog import Limits
from dataplane.contracts.generation import TenantLoad
from dataplane.contracts.replica import TRIAL_PREFIX, ReplicaState
from tenants import selectors
from tenants.actor import Actor
from tenants.errors import Invalid
from tenants.roles import Permission
from tenants.services import quotas, tenancy
from tenants.serving import DEFAULT_SERVING, ServingLimits


class LimitsForm(forms.Form):
    """The limits of a tenant; an empty field is no limit, or the one that the field names."""

    requests_per_minute = forms.IntegerField(min_value=1, required=False)
    tokens_per_minute = forms.IntegerField(min_value=1, required=False, help_text="Input and output tokens together.")
    concurrent_requests = forms.IntegerField(min_value=1, required=False, label="Requests at a time")
    max_request_tokens = forms.IntegerField(
        min_value=1, required=False, label="Tokens of one request", help_text="Input and output tokens together."
    )
    deployments = forms.IntegerField(
        min_value=1,
        max_value=quotas.LIMIT_MAX,
        required=False,
        help_text=f"Paused ones included. Empty: {DEFAULT_SERVING.deployments}.",
    )
    kept_replicas = forms.IntegerField(
        min_value=1,
        max_value=quotas.LIMIT_MAX,
        required=False,
        label="Replicas kept ready",
        help_text=f"By all deployments, at their schedules' busiest. Empty: {DEFAULT_SERVING.kept_replicas}.",
    )


_AT_REST = (ReplicaState.ASLEEP, ReplicaState.COLD)
"""What rests by its deployment's own policy is not missing."""
_TRIAL = "Check of a version"


@require_GET
@platform_page(Permission.PLATFORM_FLEET)
def fleet(request: HttpRequest, actor: Actor) -> HttpResponse:
    """Show every node and replica, with the KV budgets of the tenants on it."""
    names = {item.id: f"{item.owner}/{item.name}" for item in deployments.list_all_deployments(actor=actor)}
    slugs = {tenant.id: tenant.slug for tenant, _ in selectors.list_tenants(actor=actor)}
    nodes = [
        (node.node, *parted([_replica_line(replica, names, slugs) for replica in node.replicas]))
        for node in deployments.list_fleet(actor=actor)
    ]
    lines = [line for _, living, _ in nodes for line in living]
    counted = Counter(line.replica.row.state for line in lines)
    open_requests, set_aside = metering.count_open(actor=actor)
    context = {
        "nodes": nodes,
        "ready": counted[ReplicaState.READY],
        "resting": counted[ReplicaState.ASLEEP] + counted[ReplicaState.COLD],
        "warm_idle": counted[ReplicaState.WARM_IDLE],
        "wanted": sum(1 for line in lines if line.name and line.replica.row.state not in _AT_REST),
        "running": sum(line.replica.report.load.num_running for line in lines if line.replica.report.load),
        "waiting": sum(line.replica.report.load.num_waiting for line in lines if line.replica.report.load),
        "open_requests": open_requests,
        "set_aside": set_aside,
    }
    partial = request.headers.get("HX-Request")
    return render(request, "console/parts/fleet_live.html" if partial else "console/pages/fleet.html", context)


@dataclass(frozen=True, slots=True)
class ReplicaLine:
    """A replica as the fleet's page shows it.

    ``name`` is its deployment's, empty where it serves none; ``role`` says what it is there for; ``loads`` are (slug,
    what the tenant holds and waits for).
    """

    replica: deployments.Replica
    name: str
    role: str
    meter: charts.Meter | None
    loads: tuple[tuple[str, TenantLoad], ...]


def parted(lines: Sequence[ReplicaLine]) -> tuple[list[ReplicaLine], list[ReplicaLine]]:
    """Part replicas that live from those that have ended."""
    living = [line for line in lines if line.replica.row.state != ReplicaState.STOPPED]
    return living, [line for line in lines if line.replica.row.state == ReplicaState.STOPPED]


def _replica_line(replica: deployments.Replica, names: Mapping[str, str], slugs: Mapping[str, str]) -> ReplicaLine:
    load = replica.report.load
    parts = [("In use", load.owned_blocks), ("Cached", load.cached_blocks)] if load else []
    deployment_id = replica.row.deployment_id
    return ReplicaLine(
        replica=replica,
        name=names.get(deployment_id, ""),
        role=_TRIAL if deployment_id.startswith(TRIAL_PREFIX) else names.get(deployment_id, "Spare process"),
        meter=charts.meter(parts, load.total_blocks) if load else None,
        loads=tuple((slugs.get(held.tenant_id, held.tenant_id), held) for held in replica.report.tenants),
    )


@require_GET
@platform_page(Permission.PLATFORM_TENANTS)
def tenants(request: HttpRequest, actor: Actor) -> HttpResponse:
    """List every tenant with its limits."""
    return render(request, "console/pages/tenants.html", {"tenants": selectors.list_tenants(actor=actor)})


@require_http_methods(["GET", "POST"])
@platform_page(Permission.PLATFORM_QUOTAS)
def limits(request: HttpRequest, actor: Actor, slug: str) -> HttpResponse:
    """Edit the limits of a tenant; gateways obey within two seconds."""
    tenant = selectors.get_tenant(actor=actor, slug=slug)
    current = next(found for row, found in selectors.list_tenants(actor=actor) if row.id == tenant.id)
    serving = selectors.tenant_serving(actor=actor, tenant_id=tenant.id)
    initial = msgspec.structs.asdict(current) | msgspec.structs.asdict(serving)
    form = LimitsForm(request.POST or None, initial=initial)
    status = 200
    if request.method == "POST":
        status = 422
        if form.is_valid():
            try:
                _set_limits(actor, tenant.id, form.cleaned_data)
            except Invalid as error:
                show_faults(form, error)
            else:
                messages.success(request, f"The limits of {tenant.slug} are saved. The next admission obeys them.")
                return redirect("console:tenants")
    return render(request, "console/pages/tenant_limits.html", {"tenant": tenant, "form": form}, status=status)


def _set_limits(actor: Actor, tenant_id: str, filled: Mapping[str, int | None]) -> None:
    """Save both kinds. Those of serving come second: the form knows their bounds, so they are not refused."""
    limits_of_calls = Limits(**{name: filled[name] for name in Limits.__struct_fields__})
    quotas.set_tenant_quota(actor=actor, tenant_id=tenant_id, limits=limits_of_calls)
    serving = ServingLimits(**{name: filled[name] for name in ServingLimits.__struct_fields__})
    if serving != selectors.tenant_serving(actor=actor, tenant_id=tenant_id):
        quotas.set_tenant_serving(actor=actor, tenant_id=tenant_id, limits=serving)


@require_http_methods(["GET", "POST"])
@platform_page(Permission.PLATFORM_TENANTS)
def suspend(request: HttpRequest, actor: Actor, slug: str) -> HttpResponse:
    """Name what will stop, ask for the tenant's name and a reason, then stop serving its keys."""
    tenant = selectors.get_tenant(actor=actor, slug=slug)
    if request.method == "GET":
        return render(request, "console/pages/tenant_suspend.html", {"tenant": tenant})
    reason = request.POST.get("reason", "")
    if request.POST.get("confirm", "") != tenant.slug or not reason.strip():
        context = {"tenant": tenant, "reason": reason, "fault": "Write the tenant's name and the reason."}
        return render(request, "console/pages/tenant_suspend.html", context, status=422)
    tenancy.suspend_tenant(actor=actor, tenant_id=tenant.id, reason=reason)
    messages.success(request, f"{tenant.slug} is suspended. Its running streams end within seconds.")
    return redirect("console:tenants")


@require_POST
@platform_page(Permission.PLATFORM_TENANTS)
def resume(request: HttpRequest, actor: Actor, slug: str) -> HttpResponse:
    """Serve a suspended tenant again."""
    tenant = selectors.get_tenant(actor=actor, slug=slug)
    tenancy.resume_tenant(actor=actor, tenant_id=tenant.id)
    messages.success(request, f"{tenant.slug} is served again.")
    return redirect("console:tenants")
