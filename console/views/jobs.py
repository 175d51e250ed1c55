"""Jobs: how many are due, which are dead and why, when the periodic ones run next."""

from datetime import timedelta

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_GET, require_POST

from console.access import platform_page
from controlplane.jobs import selectors, services
from controlplane.jobs.lease import JobState
from tenants.actor import Actor
from tenants.roles import Permission

LATE = timedelta(minutes=1)
"""A job that is due for so long waits for a worker that is not there."""


@require_GET
@platform_page(Permission.PLATFORM_JOBS)
def index(request: HttpRequest, actor: Actor) -> HttpResponse:
    """Show the dead first: each of them is something that did not happen."""
    now = timezone.now()
    counts = selectors.count_jobs(actor=actor)
    queued = selectors.list_jobs(actor=actor, state=JobState.QUEUED)
    context = {
        "counts": {state.value: number for state, number in counts.items()},
        "late": [job for job in queued if now - job.run_at > LATE],
        "dead": selectors.list_jobs(actor=actor, state=JobState.DEAD),
        "running": selectors.list_jobs(actor=actor, state=JobState.RUNNING),
        "ticks": selectors.list_ticks(actor=actor),
    }
    partial = request.headers.get("HX-Request")
    return render(request, "console/parts/jobs_live.html" if partial else "console/pages/jobs.html", context)


@require_POST
@platform_page(Permission.PLATFORM_JOBS)
def retry(request: HttpRequest, actor: Actor, job_id: str) -> HttpResponse:
    """Give a dead job another three attempts."""
    job = services.retry_dead_job(actor=actor, job_id=job_id)
    messages.success(request, f"{job.kind} is queued again.")
    return redirect("console:jobs")
