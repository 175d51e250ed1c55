"""KV budgets: what of each deployment's pool is promised to whom, in use, borrowed, cached and free."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from console import charts
from console.access import platform_page
from console.errors import show_faults
from controlplane.deployments import selectors, services
from controlplane.metering import selectors as metering
from dataplane.contracts.catalog import Share
from tenants.actor import Actor
from tenants.errors import Invalid
from tenants.roles import Permission
from tenants.selectors import list_tenants

_USED, _CACHED, _BORROWED = 1, 2, 3
"""Colours: the same part of a pool has the same one on every page."""
_SHARE_FIELDS = ("guarantee_tokens", "cap_tokens", "weight")


@dataclass(frozen=True, slots=True)
class Holding:
    """A tenant in a pool as the page shows it; ``wait_ms`` is its longest wait of late, None where none waited."""

    held: selectors.TenantPool
    meter: charts.Meter | None
    wait_ms: int | None


class ShareForm(forms.Form):
    """A tenant's leave to call a deployment, and its share of the pool."""

    tenant = forms.ChoiceField()
    guarantee_tokens = forms.IntegerField(
        label="Guarantee, tokens", min_value=0, initial=0, help_text="What it can always claim back. 0 is none."
    )
    cap_tokens = forms.IntegerField(
        label="Cap, tokens", min_value=1, required=False, help_text="Empty is the whole pool."
    )
    weight = forms.IntegerField(min_value=1, initial=1, help_text="Its part of the turns when all want more.")
    pace_ms = forms.IntegerField(
        label="Pace, ms",
        min_value=0,
        required=False,
        initial=0,
        help_text="Between two pieces of its answers, whatever others run. 0 sends them as they come.",
    )


@require_GET
@platform_page(Permission.PLATFORM_FLEET)
def index(request: HttpRequest, actor: Actor) -> HttpResponse:
    """Show every pool, and each tenant in it."""
    waits = metering.longest_waits(actor=actor)
    pools = selectors.list_pools(actor=actor)
    context = {"pools": [(pool, _total(pool), _holdings(pool, waits)) for pool in pools]}
    partial = request.headers.get("HX-Request")
    return render(request, "console/parts/budgets_live.html" if partial else "console/pages/budgets.html", context)


def _total(pool: selectors.Pool) -> charts.Meter | None:
    if not pool.total_tokens:
        return None
    parts = [("In use", pool.used_tokens), ("Cached", pool.cached_tokens)]
    return charts.meter(parts, pool.total_tokens, mark=pool.guaranteed_tokens)


def _holdings(pool: selectors.Pool, waits: Mapping[tuple[str, str], int]) -> list[Holding]:
    return [
        Holding(held, holding_meter(held, pool.total_tokens), waits.get((held.tenant, pool.deployment.id)))
        for held in pool.tenants
    ]


def holding_meter(held: selectors.TenantPool, total_tokens: int) -> charts.Meter | None:
    """Return a tenant's bar: its use within the guarantee, what it borrows, what it caches, and the guarantee's end."""
    if not total_tokens:
        return None
    parts = [
        ("Used", held.used_tokens - held.borrowed_tokens),
        ("Borrowed", held.borrowed_tokens),
        ("Cached", held.cached_tokens),
    ]
    mark = held.share.guarantee_tokens or None
    return charts.meter(parts, total_tokens, series=(_USED, _BORROWED, _CACHED), mark=mark)


@require_http_methods(["GET", "POST"])
@platform_page(Permission.PLATFORM_GRANTS)
def share(request: HttpRequest, actor: Actor, deployment_id: str) -> HttpResponse:
    """Let a tenant call a deployment, or change its share; say first what that does."""
    pool = selectors.get_pool(actor=actor, deployment_id=deployment_id)
    data = request.POST if request.method == "POST" else None
    shares = {grant.grantee_slug: grant.share for grant in pool.grants}
    chosen = request.GET.get("tenant", "")
    form = _share_form(actor, data, chosen, shares.get(chosen, Share()))
    if data is not None and "preview" in data:
        return render(request, "console/parts/share_effect.html", {"effect": _effect(actor, deployment_id, form)})
    redraws = data is not None and "check" in data
    if data is not None and not redraws and form.is_valid():
        slug, filled = _filled(form.cleaned_data)
        try:
            services.set_grant(actor=actor, deployment_id=deployment_id, grantee_slug=slug, share=filled)
        except Invalid as error:
            show_faults(form, error)
        else:
            messages.success(request, f"The share of {slug} is set. The next admission obeys it.")
            return redirect("console:budgets")
    context = {
        "pool": pool,
        "form": form,
        "chosen": chosen if chosen in shares else "",
        "effect": _effect(actor, deployment_id, form) if data is not None or chosen in shares else None,
    }
    status = 200 if data is None or redraws else 422
    return render(request, "console/pages/budget_share.html", context, status=status)


def _share_form(actor: Actor, data: QueryDict | None, chosen: str, current: Share) -> ShareForm:
    initial = {"tenant": chosen, **{name: getattr(current, name) for name in Share.__struct_fields__}}
    form = ShareForm(data, initial=initial, use_required_attribute=False)
    field = form.fields["tenant"]
    assert isinstance(field, forms.ChoiceField)  # noqa: S101 - declared above
    field.choices = [(tenant.slug, tenant.slug) for tenant, _ in list_tenants(actor=actor)]
    return form


def _effect(actor: Actor, deployment_id: str, form: ShareForm) -> selectors.Effect | None:
    """Return what the form would do as it stands, or shows before it is filled; None where it says nothing whole."""
    if form.is_bound and not form.is_valid():
        return None
    slug, filled = _filled(form.cleaned_data if form.is_bound else form.initial)
    return selectors.preview_share(actor=actor, deployment_id=deployment_id, tenant=slug, share=filled)


def _filled(values: Mapping[str, Any]) -> tuple[str, Share]:
    return values["tenant"], Share(**{name: values[name] for name in _SHARE_FIELDS}, pace_ms=values["pace_ms"] or 0)


@require_POST
@platform_page(Permission.PLATFORM_GRANTS)
def unshare(request: HttpRequest, actor: Actor, deployment_id: str) -> HttpResponse:
    """Take a tenant's leave back; its running streams are cut within seconds."""
    slug = request.POST.get("tenant", "")
    services.remove_grant(actor=actor, deployment_id=deployment_id, grantee_slug=slug)
    messages.success(request, f"{slug} may not call it any more.")
    return redirect("console:budgets")
