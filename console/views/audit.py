"""The journal: who did what, to what, what it was before and what it is after; and whether its chains still hold."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_GET, require_POST

from console import journal
from console.access import member_page, platform_page
from console.choices import chosen
from controlplane.jobs import services as jobs
from dataplane.contracts.ids import Kind, is_id
from tenants import selectors
from tenants.actor import Actor
from tenants.roles import Permission

RANGES = {
    "24h": ("24 hours", timedelta(hours=24)),
    "7d": ("7 days", timedelta(days=7)),
    "30d": ("30 days", timedelta(days=30)),
    "all": ("All", None),
}
ANY = "any"
PLATFORM = "-"
"""The chain of no tenant, in an address: no slug reads so."""
_SEQUENCE_DIGITS = 18


@dataclass(frozen=True, slots=True)
class Seal:
    """What is known of chains: the first fault by the name of its chain, else up to where they hold.

    ``rows`` are verified of ``of`` that there are. ``at`` is when the one longest ago was, None where one never was.
    """

    faults: tuple[tuple[str, str], ...]
    chains: int
    rows: int
    of: int
    at: datetime | None


@require_GET
@member_page(Permission.AUDIT_READ)
def audit(request: HttpRequest, actor: Actor) -> HttpResponse:
    """Show the tenant's journal."""
    before = request.GET.get("before", "")
    is_sequence = before.isdecimal() and len(before) < _SEQUENCE_DIGITS
    events = selectors.list_audit(
        actor=actor, before_sequence=int(before) if is_sequence else None, **_wanted(request)
    )  # fmt: skip
    older = events[-1].sequence if len(events) == selectors.AUDIT_PAGE_ROWS else None
    return _page(request, actor, events, {"older": older})


@require_GET
@platform_page(Permission.PLATFORM_AUDIT)
def platform_audit(request: HttpRequest, actor: Actor) -> HttpResponse:
    """Show every chain in one line of time: the platform's and each tenant's."""
    before = request.GET.get("before", "")
    slugs = [tenant.slug for tenant, _ in selectors.list_tenants(actor=actor)]
    options = {ANY: "Every chain", PLATFORM: "The platform’s own"} | {slug: slug for slug in slugs}
    picked = chosen(request, "tenant", options, ANY)
    events = selectors.list_every_audit(
        actor=actor,
        before=before if is_id(before, Kind.AUDIT) else None,
        slug=None if picked == ANY else "" if picked == PLATFORM else picked,
        **_wanted(request),
    )
    older = events[-1].id if len(events) == selectors.AUDIT_PAGE_ROWS else None
    return _page(request, actor, events, {"older": older, "tenants": options, "picked_tenant": picked})


@require_POST
@platform_page(Permission.PLATFORM_AUDIT)
def verify(request: HttpRequest, actor: Actor) -> HttpResponse:
    """Have every chain walked from its first row, behind the page."""
    jobs.verify_audit_soon(actor=actor)
    messages.success(request, "Every chain is being verified; the page says how far as soon as it is done.")
    return redirect("console:platform-audit")


def seal(heads: Sequence[Any]) -> Seal:
    """Return what the heads of some chains say together."""
    moments = [head.verified_at for head in heads]
    known = [moment for moment in moments if moment is not None]
    return Seal(
        faults=tuple((head.tenant.slug if head.tenant else "platform", head.fault) for head in heads if head.fault),
        chains=len(heads),
        rows=sum(head.verified_sequence for head in heads),
        of=sum(head.sequence for head in heads),
        at=min(known) if known and len(known) == len(moments) else None,
    )


def _wanted(request: HttpRequest) -> dict[str, Any]:
    """Return what the URL narrows a journal to, as the selectors take it."""
    _, span = RANGES[chosen(request, "range", RANGES, "30d")]
    about = chosen(request, "about", journal.SUBJECTS, ANY)
    return {
        "since": None if span is None else timezone.now() - span,
        "verbs": journal.SUBJECTS[about][1] if about != ANY else None,
        "actor_label": request.GET.get("who", "").strip(),
        "target": request.GET.get("target", "").strip(),
    }


def _page(request: HttpRequest, actor: Actor, events: Sequence[Any], more: dict[str, Any]) -> HttpResponse:
    asked = {name: request.GET.get(name, "").strip() for name in ("who", "target", "before")}
    context = {
        **more,
        "lines": [(event, journal.deed(event.verb), journal.changes(event.before, event.after)) for event in events],
        "chosen_range": chosen(request, "range", RANGES, "30d"),
        "ranges": {name: words for name, (words, _) in RANGES.items()},
        "chosen_about": chosen(request, "about", journal.SUBJECTS, ANY),
        "subjects": {ANY: "Everything"} | {name: label for name, (label, _) in journal.SUBJECTS.items()},
        "who": asked["who"],
        "target": asked["target"],
        "is_first_page": not asked["before"],
        "seal": seal(selectors.list_chains(actor=actor)),
    }
    return render(request, "console/pages/audit.html", context)
