"""The journal: who did what, to what, what it was before and what it is after."""

from datetime import timedelta

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_GET

from console import journal
from console.access import member_page, platform_page
from console.choices import chosen
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


@require_GET
@member_page(Permission.AUDIT_READ)
def audit(request: HttpRequest, actor: Actor) -> HttpResponse:
    """Show the tenant's journal."""
    return _page(request, actor)


@require_GET
@platform_page(Permission.PLATFORM_AUDIT)
def platform_audit(request: HttpRequest, actor: Actor) -> HttpResponse:
    """Show the platform's own journal; each tenant's changes stand in the tenant's."""
    return _page(request, actor)


def _page(request: HttpRequest, actor: Actor) -> HttpResponse:
    chosen_range = chosen(request, "range", RANGES, "30d")
    chosen_about = chosen(request, "about", journal.SUBJECTS, ANY)
    _, span = RANGES[chosen_range]
    who = request.GET.get("who", "").strip()
    before = request.GET.get("before", "")
    events = selectors.list_audit(
        actor=actor,
        before_sequence=int(before) if before.isdecimal() and len(before) < _SEQUENCE_DIGITS else None,
        since=None if span is None else timezone.now() - span,
        verbs=journal.SUBJECTS[chosen_about][1] if chosen_about != ANY else None,
        actor_label=who,
    )
    context = {
        "lines": [(event, journal.deed(event.verb), journal.changes(event.before, event.after)) for event in events],
        "chosen_range": chosen_range,
        "ranges": {name: words for name, (words, _) in RANGES.items()},
        "chosen_about": chosen_about,
        "subjects": {ANY: "Everything"} | {name: label for name, (label, _) in journal.SUBJECTS.items()},
        "who": who,
        "is_first_page": not before,
        "older": events[-1].sequence if len(events) == selectors.AUDIT_PAGE_ROWS else None,
    }
    return render(request, "console/pages/audit.html", context)


_SEQUENCE_DIGITS = 18
