"""Usage: tokens, requests and cost by day, key, deployment or version."""

from datetime import UTC, datetime, timedelta

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_GET

from console import charts
from console.access import member_page
from controlplane.deployments import selectors as deployments
from controlplane.metering import selectors as metering
from controlplane.metering.selectors import Dimension
from controlplane.registry import selectors as registry
from tenants import selectors as tenants
from tenants.actor import Actor
from tenants.roles import Permission

RANGES = {
    "24h": (timedelta(hours=24), Dimension.HOUR),
    "7d": (timedelta(days=7), Dimension.DAY),
    "30d": (timedelta(days=30), Dimension.DAY),
}
BREAKDOWNS = {"key": Dimension.KEY, "deployment": Dimension.DEPLOYMENT, "version": Dimension.VERSION}
_RECENT_ROWS = 25


@require_GET
@member_page(Permission.USAGE_READ)
def usage(request: HttpRequest, actor: Actor) -> HttpResponse:
    """Show one range, chosen in the URL, and one breakdown of it."""
    chosen_range = request.GET.get("range", "7d") if request.GET.get("range") in RANGES else "7d"
    chosen_by = request.GET.get("by", "key") if request.GET.get("by") in BREAKDOWNS else "key"
    span, unit = RANGES[chosen_range]
    until = timezone.now().astimezone(UTC).replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
    since = until - span
    lines = metering.usage(actor=actor, since=since, until=until, by=BREAKDOWNS[chosen_by])
    names = _names(actor, BREAKDOWNS[chosen_by])
    context = {
        "chosen_range": chosen_range,
        "ranges": RANGES,
        "chosen_by": chosen_by,
        "breakdowns": BREAKDOWNS,
        "lines": [(names.get(line.label, line.label), line) for line in lines],
        "total": {name: sum(getattr(line, name) for line in lines) for name in _SUMMED},
        "chart": _tokens_over_time(actor, since, until, unit),
        "month": metering.month_usage(actor=actor),
        "requests": metering.list_requests(actor=actor, limit=_RECENT_ROWS)
        if actor.may(Permission.REQUESTS_READ)
        else None,
    }
    return render(request, "console/pages/usage.html", context)


_SUMMED = ("requests", "failed_requests", "prompt_tokens", "completion_tokens", "charge_microusd")


def _tokens_over_time(actor: Actor, since: datetime, until: datetime, unit: Dimension) -> charts.Bars:
    counted = {
        datetime.fromisoformat(line.label): line.completion_tokens
        for line in metering.usage(actor=actor, since=since, until=until, by=unit)
    }
    step = timedelta(hours=1) if unit is Dimension.HOUR else timedelta(days=1)
    moment = since if unit is Dimension.HOUR else since.replace(hour=0)
    values: list[tuple[str, int]] = []
    while moment < until:
        label = f"{moment:%H}:00" if unit is Dimension.HOUR else f"{moment.day} {moment:%b}"
        values.append((label, counted.get(moment, 0)))
        moment += step
    return charts.bars(values)


def _names(actor: Actor, by: Dimension) -> dict[str, str]:
    """Return what people call the ids of a breakdown; an id without a name stands for itself."""
    if by is Dimension.KEY and actor.may(Permission.KEYS_READ):
        return {key.id: key.name for key in tenants.list_keys(actor=actor)}
    if by is Dimension.DEPLOYMENT and actor.may(Permission.DEPLOYMENTS_READ):
        return {item.deployment.id: item.name for item in deployments.list_deployments(actor=actor)}
    if by is Dimension.VERSION and actor.may(Permission.MODELS_READ):
        versions = registry.list_versions(actor=actor)
        return {version.id: f"{version.model.name} v{version.number}" for version in versions}
    return {}
