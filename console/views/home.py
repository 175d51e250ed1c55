"""Home: is it well? Deployments, use against limits, the last day, the last errors."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_GET

from console import charts
from console.access import member_page
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


class Failure(Protocol):
    """A request that failed."""

    @property
    def started_at(self) -> datetime:
        """When it began."""


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
    names = {summary.deployment.id: summary.name for summary in served or []}
    context = {
        "month": month,
        "limits": limits,
        "quota_bars": quota_bars(limits, *metering.last_minute(actor=actor)),
        "deployments": served,
        "verdict": judge(served or [], errors or [], timezone.now()) if served is not None else None,
        "errors": None
        if errors is None
        else [(names.get(row.deployment_id, row.deployment_id), row) for row in errors],
        "has_called": has_called,
        "chart": _requests_by_hour(actor) if has_called else None,
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


def judge(served: Sequence[deployments.DeploymentSummary], errors: Sequence[Failure], now: datetime) -> Verdict:
    """Say whether all is well: every active deployment has a replica, and nothing failed in the last hour."""
    if not served:
        return Verdict("info", "Nothing served", "No model is deployed yet.")
    starting = [summary.name for summary in served if summary.state.standing in _NOT_READY]
    if starting:
        return Verdict("warn", "Not ready", f"No replica is ready for {', '.join(starting)}. Calls wait for one.")
    recent = sum(1 for error in errors if now - error.started_at < timedelta(hours=1))
    if recent:
        more = " or more" if recent >= _ERROR_ROWS else ""
        return Verdict("warn", "Look here", f"Requests that failed or were refused in the last hour: {recent}{more}.")
    paused = [summary.name for summary in served if summary.state.standing is Standing.PAUSED]
    if len(paused) == len(served):
        return Verdict("info", "Paused", "Every deployment is paused.")
    return Verdict("good", "All well", "Every active deployment serves, or starts when called.")


def _requests_by_hour(actor: Actor) -> charts.Bars:
    """Return the chart of the requests of the last 24 hours, an hour a bar, quiet hours included."""
    last = timezone.now().replace(minute=0, second=0, microsecond=0)
    hours = [last - timedelta(hours=back) for back in range(_HOURS - 1, -1, -1)]
    lines = metering.usage(
        actor=actor, since=hours[0], until=last + timedelta(hours=1), by=metering.Dimension.HOUR
    )  # fmt: skip
    counted = {line.label: line.requests for line in lines}
    return charts.bars([(f"{hour:%H}:00", counted.get(hour.isoformat(), 0)) for hour in hours])
