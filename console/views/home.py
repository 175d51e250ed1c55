"""Home: is it well? Deployments, use against limits, the last day, the last errors."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_GET

from console import charts
from console.access import member_page
from console.in_flight import in_flight
from controlplane.deployments import selectors as deployments
from controlplane.deployments.selectors import Standing
from controlplane.metering import selectors as metering
from dataplane.contracts.catalog import Limits
from tenants import selectors as tenants
from tenants.actor import Actor
from tenants.roles import Permission

_ERROR_ROWS = 5
_HOURS = 24
_NOT_READY = (Standing.STARTING, Standing.FAILING, Standing.DRAINING)
"""Neither serving nor resting by its own policy."""
_NEARLY = 0.8
"""From this part of a limit on its bar warns."""


@dataclass(frozen=True, slots=True)
class QuotaBar:
    """What was used of a limit in the last minute."""

    label: str
    meter: charts.Meter
    is_near: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether all is well, as a badge and a sentence."""

    tone: str
    badge: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Hour:
    """How many requests began in an hour, and how many of them failed or were refused."""

    label: str
    requests: int
    failed: int


@require_GET
@member_page(Permission.TENANT_READ)
def home(request: HttpRequest, actor: Actor) -> HttpResponse:
    """Show what the member may see of each; the live part asks again every few seconds."""
    limits = tenants.tenant_limits(actor=actor)
    month = metering.month_usage(actor=actor)
    served = deployments.list_deployments(actor=actor) if actor.may(Permission.DEPLOYMENTS_READ) else None
    may_read_requests = actor.may(Permission.REQUESTS_READ)
    has_called = bool(month.requests) or not may_read_requests or bool(metering.list_requests(actor=actor, limit=1))
    errors = metering.list_requests(actor=actor, limit=_ERROR_ROWS, failed=True) if may_read_requests else None
    day = last_day(actor) if has_called else []
    names = {summary.deployment.id: summary.name for summary in served or []}
    context = {
        "month": month,
        "limits": limits,
        "quota_bars": quota_bars(limits, *metering.last_minute(actor=actor)),
        "deployments": served,
        "verdict": None if served is None else judge(served, day),
        "errors": None
        if errors is None
        else [(row, names.get(row.deployment_id, row.deployment_id), "") for row in errors],
        "in_flight": in_flight(request, actor) if actor.may(Permission.ROLLOUTS_READ) else (),
        "has_called": has_called,
        "chart": charts.bars([(hour.label, hour.requests) for hour in day]) if day else None,
        "may_start": actor.may(Permission.KEYS_WRITE),
    }
    template = "console/parts/home_live.html" if request.headers.get("HX-Request") else "console/pages/home.html"
    return render(request, template, context)


def quota_bars(limits: Limits, requests: int, tokens: int) -> list[QuotaBar]:
    """Return a bar for each limit of a minute that is set."""
    pairs = (
        ("Requests in the last minute", requests, limits.requests_per_minute),
        ("Tokens in the last minute", tokens, limits.tokens_per_minute),
    )
    return [
        QuotaBar(label=label, meter=charts.meter([("Used", used)], limit), is_near=used >= _NEARLY * limit)
        for label, used, limit in pairs
        if limit is not None
    ]


def judge(served: Sequence[deployments.DeploymentSummary], day: Sequence[Hour]) -> Verdict:
    """Say whether all is well: every active deployment has a replica, and nothing failed in this hour or the last."""
    if not served:
        return Verdict("info", "Nothing served", "No model is deployed yet.")
    starting = [summary.name for summary in served if summary.state.standing in _NOT_READY]
    if starting:
        return Verdict("warn", "Not ready", f"No replica is ready for {', '.join(starting)}. Calls wait for one.")
    late = day[-2:]
    num_failed = sum(hour.failed for hour in late)
    if num_failed:
        requests = "1 request failed or was" if num_failed == 1 else f"{num_failed:,} requests failed or were"
        return Verdict("warn", "Look here", f"{requests} refused since {late[0].label} UTC.")
    paused = [summary.name for summary in served if summary.state.standing is Standing.PAUSED]
    if len(paused) == len(served):
        return Verdict("info", "Paused", "Every deployment is paused.")
    return Verdict("good", "All well", "Every active deployment serves, or starts when called.")


def last_day(actor: Actor) -> list[Hour]:
    """Return the last 24 hours, quiet ones included; the last has not ended."""
    last = timezone.now().replace(minute=0, second=0, microsecond=0)
    hours = [last - timedelta(hours=back) for back in range(_HOURS - 1, -1, -1)]
    lines = metering.usage(
        actor=actor, since=hours[0], until=last + timedelta(hours=1), by=metering.Dimension.HOUR
    )  # fmt: skip
    counted = {line.label: (line.requests, line.failed_requests + line.refused_requests) for line in lines}
    return [Hour(f"{hour:%H}:00", *counted.get(hour.isoformat(), (0, 0))) for hour in hours]
