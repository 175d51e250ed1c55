"""Isolation: what a tenant has on a deployment, how that is known, and what is still to be seen by others."""

from collections.abc import Mapping
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_POST

from console import charts
from console.access import member_page, platform_page
from console.choices import chosen
from console.isolation_words import CAUSES, PROBES, headline, promises
from console.views.deployments import about
from controlplane.deployments import selectors as deployments
from controlplane.deployments import services
from controlplane.isolation import selectors
from controlplane.isolation.reading import Reading
from controlplane.isolation.selectors import Isolation
from controlplane.isolation.series import Slot, Span
from controlplane.isolation.standing import AUC_LIMIT, CONTROL_AUC, ENOUGH_TRIALS, Finding
from dataplane.contracts.probes import ProbeKind
from tenants.actor import Actor
from tenants.roles import Permission

_SPANS = {"1h": "1 hour", "24h": "24 hours", "7d": "7 days"}
_PLATFORM_SPANS = {"1h": "1 hour", "24h": "24 hours"}
"""Every tenant's buckets of a week are more than a page should read."""
_USED, _BORROWED = 1, 3
"""Colours: the same part of a pool has the same one on every page."""
_SERIES = {ProbeKind.ACROSS: 2, ProbeKind.WITHIN: 1, ProbeKind.BATCH: 3, ProbeKind.PACED: 2}
_LEAST_AUC, _MOST_AUC = 0.4, 1.0
_OF_CACHE = (ProbeKind.ACROSS, ProbeKind.WITHIN)
_OF_BATCHES = (ProbeKind.BATCH, ProbeKind.PACED)


@require_GET
@member_page(Permission.DEPLOYMENTS_READ)
def detail(request: HttpRequest, actor: Actor, deployment_id: str) -> HttpResponse:
    """Show the tenant's own isolation on a deployment that it may call, whoever owns it."""
    summary = deployments.get_deployment(actor=actor, deployment_id=deployment_id)
    span = chosen(request, "range", _SPANS, Span.DAY)
    found = selectors.get_isolation(actor=actor, deployment_id=deployment_id, span=Span(span))
    context = {
        **about(actor, summary),
        "tab": "isolation",
        "ranges": _SPANS,
        "chosen_range": span,
        **_shown(found),
        **_probes(found.findings),
        "may_write": actor.may(Permission.DEPLOYMENTS_WRITE),
    }
    partial = request.headers.get("HX-Request")
    return render(request, "console/parts/isolation_live.html" if partial else "console/pages/isolation.html", context)


@require_POST
@member_page(Permission.DEPLOYMENTS_WRITE)
def empty_cache(request: HttpRequest, actor: Actor, deployment_id: str) -> HttpResponse:
    """Forget what the tenant has cached of its prompts on a deployment that it may call."""
    slug = actor.tenant.slug
    services.rotate_cache(actor=actor, deployment_id=deployment_id, grantee_slug=slug)
    messages.success(request, "What you have cached of your prompts here is forgotten within 2 s.")
    return redirect("console:isolation", tenant=slug, deployment_id=deployment_id)


@require_GET
@platform_page(Permission.PLATFORM_FLEET)
def platform_detail(request: HttpRequest, actor: Actor, deployment_id: str) -> HttpResponse:
    """Show every tenant's isolation on a deployment, and what no tenant is told."""
    span = chosen(request, "range", _PLATFORM_SPANS, Span.HOUR)
    found = selectors.list_isolation(actor=actor, deployment_id=deployment_id, span=Span(span))
    context = {
        "found": found,
        "deployment": found.deployment,
        "ranges": _PLATFORM_SPANS,
        "chosen_range": span,
        "tenants": [(each, promises(each)) for each in found.tenants],
        "lost": charts.meter(
            [("Found", found.hits_tokens), ("Lost", found.lost_tokens)], found.queries_tokens, series=(_USED, _BORROWED)
        )
        if found.queries_tokens
        else None,
        **_probes(found.findings),
    }
    partial = request.headers.get("HX-Request")
    page = "console/parts/platform_isolation_live.html" if partial else "console/pages/platform_isolation.html"
    return render(request, page, context)


def _shown(found: Isolation) -> dict[str, Any]:
    """Return a tenant's figures as the page draws them."""
    return {
        "found": found,
        "headline": headline(found),
        "promises": promises(found),
        "meter": _meter(found.now) if found.now is not None else None,
        "borrowed_now": _borrowed(found.now) if found.now is not None else 0,
        "memory": charts.bars([(_label(slot), slot.reading.peak_tokens) for slot in found.slots], _marks(found)),
        "preemptions": charts.bars([(_label(slot), slot.reading.preempted) for slot in found.slots]),
        "causes": [(*CAUSES.get(cause, (cause, "")), count) for cause, count in _by_cause(found.whole).items()],
        "service": charts.bars([(_label(slot), round(slot.reading.service_units)) for slot in found.slots]),
        "gap": charts.meter([("Ahead of you", round(found.whole.gap_units))], round(found.whole.bound_units))
        if found.whole.bound_units
        else None,
        "hit_rate": round(100 * found.whole.hits_tokens / found.whole.queries_tokens)
        if found.whole.queries_tokens
        else None,
    }


def _by_cause(reading: Reading) -> dict[str, int]:
    """Return the preemptions by cause, those that struck nobody included; causes that are new here come last."""
    return dict.fromkeys(CAUSES, 0) | reading.preemptions


def _meter(now: Reading) -> charts.Meter:
    borrowed = _borrowed(now)
    parts = [("Within the guarantee", now.used_tokens - borrowed), ("Borrowed", borrowed)]
    return charts.meter(parts, now.cap_tokens, series=(_USED, _BORROWED), mark=now.guarantee_tokens or None)


def _borrowed(now: Reading) -> int:
    return max(0, now.used_tokens - now.guarantee_tokens)


def _marks(found: Isolation) -> list[tuple[str, int]]:
    """Return the lines that memory is held against. The whole pool as a cap would make every bar a stub."""
    marks = [("guarantee", found.share.guarantee_tokens), ("cap", found.share.cap_tokens or 0)]
    return [(label, tokens) for label, tokens in marks if tokens]


def _label(slot: Slot) -> str:
    return f"{slot.at:%H:%M}" if slot.at.hour or slot.at.minute else f"{slot.at.day} {slot.at:%b}"


def _probes(findings: Mapping[ProbeKind, Finding]) -> dict[str, Any]:
    """Return what probes found: of the cache, and of what shared batches reveal."""
    return {
        "cache_rows": _rows(findings, _OF_CACHE),
        "cache_chart": _chart(findings, _OF_CACHE),
        "batch_rows": _rows(findings, _OF_BATCHES),
        "batch_chart": _chart(findings, _OF_BATCHES),
        "auc_limit": AUC_LIMIT,
        "control_auc": CONTROL_AUC,
        "enough_trials": ENOUGH_TRIALS,
    }


def _rows(findings: Mapping[ProbeKind, Finding], kinds: tuple[ProbeKind, ...]) -> list[tuple[str, Finding]]:
    return [(PROBES[kind], findings[kind]) for kind in kinds if kind in findings]


def _chart(findings: Mapping[ProbeKind, Finding], kinds: tuple[ProbeKind, ...]) -> charts.Ranges | None:
    drawn = [
        (PROBES[kind], told.low, told.auc, told.high, _SERIES[kind])
        for kind in kinds
        if kind in findings
        for told in [findings[kind].separation]
        if told is not None
    ]
    return charts.ranges(drawn, least=_LEAST_AUC, most=_MOST_AUC, mark=AUC_LIMIT) if drawn else None
