"""Home: is it well? Deployments, use against limits, the last day, the last errors."""

from datetime import timedelta

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_GET

from console import charts
from console.access import member_page
from controlplane.deployments import selectors as deployments
from controlplane.metering import selectors as metering
from tenants import selectors as tenants
from tenants.actor import Actor
from tenants.roles import Permission

_ERROR_ROWS = 5
_HOURS = 24


@require_GET
@member_page(Permission.TENANT_READ)
def home(request: HttpRequest, actor: Actor) -> HttpResponse:
    """Show what the member may see of each; the live part asks again every few seconds."""
    limits = tenants.tenant_limits(actor=actor)
    context = {
        "month": metering.month_usage(actor=actor),
        "limits": limits,
        "last_minute": metering.last_minute(actor=actor),
        "deployments": deployments.list_deployments(actor=actor) if actor.may(Permission.DEPLOYMENTS_READ) else None,
        "errors": metering.list_requests(actor=actor, limit=_ERROR_ROWS, failed=True)
        if actor.may(Permission.REQUESTS_READ)
        else None,
        "chart": requests_by_hour(actor),
    }
    template = "console/parts/home_live.html" if request.headers.get("HX-Request") else "console/pages/home.html"
    return render(request, template, context)


def requests_by_hour(actor: Actor) -> charts.Bars:
    """Return the chart of the requests of the last 24 hours, an hour a bar, quiet hours included."""
    last = timezone.now().replace(minute=0, second=0, microsecond=0)
    hours = [last - timedelta(hours=back) for back in range(_HOURS - 1, -1, -1)]
    lines = metering.usage(
        actor=actor, since=hours[0], until=last + timedelta(hours=1), by=metering.Dimension.HOUR
    )  # fmt: skip
    counted = {line.label: line.requests for line in lines}
    return charts.bars([(f"{hour:%H}:00", counted.get(hour.isoformat(), 0)) for hour in hours])
