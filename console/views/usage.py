"""Usage: tokens, requests and cost by day, key, deployment or version."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_GET

from console import charts
from console.access import member_page
from console.choices import chosen
from controlplane.deployments import selectors as deployments
from controlplane.metering import selectors as metering
from controlplane.metering.selectors import Dimension
from controlplane.registry import selectors as registry
from tenants import selectors as tenants
from tenants.actor import Actor
from tenants.roles import Permission

RANGES = {
    "24h": ("24 hours", timedelta(hours=24), Dimension.HOUR),
    "7d": ("7 days", timedelta(days=7), Dimension.DAY),
    "30d": ("30 days", timedelta(days=30), Dimension.DAY),
}
BREAKDOWNS = {"key": Dimension.KEY, "deployment": Dimension.DEPLOYMENT, "version": Dimension.VERSION}


@require_GET
@member_page(Permission.USAGE_READ)
def usage(request: HttpRequest, actor: Actor) -> HttpResponse:
    """Show one range, chosen in the URL, and one breakdown of it."""
    chosen_range = chosen(request, "range", RANGES, "7d")
    chosen_by = chosen(request, "by", BREAKDOWNS, "key")
    range_words, span, unit = RANGES[chosen_range]
    until = timezone.now().astimezone(UTC).replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
    since = first_moment(until, span, unit)
    lines = metering.usage(actor=actor, since=since, until=until, by=BREAKDOWNS[chosen_by])
    names = _names(actor, BREAKDOWNS[chosen_by])
    context = {
        "chosen_range": chosen_range,
        "range_words": range_words,
        "ranges": {name: words for name, (words, _, _) in RANGES.items()},
        "chosen_by": chosen_by,
        "breakdowns": BREAKDOWNS,
        "lines": [(_name(names, line.label, chosen_by), line) for line in lines],
        "total": {name: sum(getattr(line, name) for line in lines) for name in _SUMMED},
        "chart": _tokens_over_time(actor, since, until, unit),
        "month": metering.month_usage(actor=actor),
        "may_read_requests": actor.may(Permission.REQUESTS_READ),
        "gateway_url": f"{settings.PAGODA_GATEWAY_URL}/v1",
    }
    template = "console/parts/usage_live.html" if request.headers.get("HX-Request") else "console/pages/usage.html"
    return render(request, template, context)


_SUMMED = ("requests", "failed_requests", "prompt_tokens", "completion_tokens", "charge_microusd")


def first_moment(until: datetime, span: timedelta, unit: Dimension) -> datetime:
    """Return where a range that ends before ``until`` begins: whole units, the last and unfinished one included."""
    if unit is Dimension.HOUR:
        return until - span
    last_day = (until - timedelta(hours=1)).replace(hour=0)
    return last_day - span + timedelta(days=1)


def _tokens_over_time(actor: Actor, since: datetime, until: datetime, unit: Dimension) -> charts.Bars:
    counted = {
        datetime.fromisoformat(line.label): line.completion_tokens
        for line in metering.usage(actor=actor, since=since, until=until, by=unit)
    }
    return charts.bars([(label, counted.get(moment, 0)) for moment, label in moments(since, until, unit)])


def moments(since: datetime, until: datetime, unit: Dimension) -> list[tuple[datetime, str]]:
    """Return every hour or day from ``since`` to before ``until`` with its label, the quiet ones included."""
    step = timedelta(hours=1) if unit is Dimension.HOUR else timedelta(days=1)
    found: list[tuple[datetime, str]] = []
    moment = since
    while moment < until:
        found.append((moment, f"{moment:%H}:00" if unit is Dimension.HOUR else f"{moment.day} {moment:%b}"))
        moment += step
    return found


def _name(names: Mapping[str, str] | None, label: str, by: str) -> str:
    """Return what people call an id. The keys that nobody named are the playground's own."""
    if not label or names is None:
        return label or "–"
    return names.get(label, "Playground" if by == "key" else label)


def _names(actor: Actor, by: Dimension) -> dict[str, str] | None:
    """Return what people call the ids of a breakdown; None where the actor may not know."""
    if by is Dimension.KEY and actor.may(Permission.KEYS_READ):
        return {key.id: key.name for key in tenants.list_keys(actor=actor)}
    if by is Dimension.DEPLOYMENT and actor.may(Permission.DEPLOYMENTS_READ):
        return {item.deployment.id: item.name for item in deployments.list_deployments(actor=actor)}
    if by is Dimension.VERSION and actor.may(Permission.MODELS_READ):
        versions = registry.list_versions(actor=actor)
        return {version.id: f"{version.model.name} v{version.number}" for version in versions}
    return None
