"""Health: whether every part of the product is well, and what to do about those that are not."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_GET

from console import health
from console.access import platform_page
from controlplane import servers
from controlplane.deployments import selectors as deployments
from controlplane.jobs import selectors as jobs
from controlplane.metering import selectors as metering
from tenants.actor import Actor
from tenants.roles import Permission


@require_GET
@platform_page(Permission.PLATFORM_FLEET)
def index(request: HttpRequest, actor: Actor) -> HttpResponse:
    """Ask every part that can be asked, and judge the rest by what it left in the tables."""
    now = timezone.now()
    published = deployments.publishing(actor=actor)
    parts = [
        *health.servers(servers.ask_postgres(), servers.ask_redis()),
        health.clock(jobs.list_beats(actor=actor, with_runs=False), now),
        *health.jobs(jobs.pulse(actor=actor)),
        health.publishing(published, now),
        health.gateway(servers.ask_gateway(), published.number),
        *health.fleet(deployments.list_fleet(actor=actor), now),
        *health.usage(metering.arrivals(actor=actor), now),
        health.certificates(),
    ]
    context = {
        "parts": parts,
        "down": [part.name for part in parts if part.state == health.DOWN],
        "look": [part.name for part in parts if part.state == health.LOOK],
    }
    partial = request.headers.get("HX-Request")
    return render(request, "console/parts/health_live.html" if partial else "console/pages/health.html", context)
