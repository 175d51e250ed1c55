"""Jobs: which are dead and why, which wait or run, when the periodic ones run next."""

from datetime import datetime
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_GET, require_POST

from console.access import platform_page
from console.choices import chosen
from controlplane.jobs import selectors, services
from controlplane.jobs.lease import MAX_ATTEMPTS, JobState
from controlplane.jobs.selectors import LATE
from tenants.actor import Actor
from tenants.roles import Permission

ANY = ""
_DONE_ROWS = 5


@require_GET
@platform_page(Permission.PLATFORM_JOBS)
def index(request: HttpRequest, actor: Actor) -> HttpResponse:
    """Show the dead first: each of them is something that did not happen."""
    now = timezone.now()
    kinds = {ANY: "Every kind"} | {kind: kind for kind in sorted(settings.JOB_HANDLERS)}
    picked = chosen(request, "kind", kinds, ANY)
    kind = picked or None
    counts = selectors.count_jobs(actor=actor, kind=kind)
    queued = selectors.list_jobs(actor=actor, state=JobState.QUEUED, kind=kind)
    running = selectors.list_jobs(actor=actor, state=JobState.RUNNING, kind=kind)
    beats = selectors.list_beats(actor=actor)
    waiting = sorted(queued, key=lambda job: job.run_at)
    context = {
        "counts": {state.value: number for state, number in counts.items()},
        "dead": selectors.list_jobs(actor=actor, state=JobState.DEAD, kind=kind),
        "done": selectors.list_jobs(actor=actor, state=JobState.DONE, kind=kind, limit=_DONE_ROWS),
        "num_late": sum(standing(job, now) == "late" for job in waiting),
        "lines": [(job, standing(job, now)) for job in (*running, *waiting)],
        "beats": [(beat, late_s(beat, now)) for beat in beats if kind in (None, beat.kind)],
        "kinds": kinds,
        "picked": picked,
    }
    partial = request.headers.get("HX-Request")
    return render(request, "console/parts/jobs_live.html" if partial else "console/pages/jobs.html", context)


def standing(job: Any, now: datetime) -> str:  # noqa: ANN401 - a row
    """Return a job's state; one that is queued is late, due, or planned for later."""
    if job.state != JobState.QUEUED:
        return str(job.state)
    return "late" if now - job.run_at > LATE else "due" if job.run_at <= now else "planned"


def late_s(beat: selectors.Beat, now: datetime) -> int:
    """Return for how many whole seconds the next job of a periodic kind should have been made by now."""
    return 0 if beat.next_run_at is None else max(0, int((now - beat.next_run_at).total_seconds()))


@require_GET
@platform_page(Permission.PLATFORM_JOBS)
def detail(request: HttpRequest, actor: Actor, job_id: str) -> HttpResponse:
    """Show one job: the ids it carries, its attempts, and why the last one failed."""
    job = selectors.get_job(actor=actor, job_id=job_id)
    context = {
        "job": job,
        "state": standing(job, timezone.now()),
        "max_attempts": MAX_ATTEMPTS,
        "is_over": job.ended_at is not None,
    }
    partial = request.headers.get("HX-Request")
    return render(request, "console/parts/job_live.html" if partial else "console/pages/job.html", context)


@require_POST
@platform_page(Permission.PLATFORM_JOBS)
def retry(request: HttpRequest, actor: Actor, job_id: str) -> HttpResponse:
    """Give a dead job another three attempts."""
    job = services.retry_dead_job(actor=actor, job_id=job_id)
    messages.success(request, f"{job.kind} is queued again.")
    return redirect("console:jobs")
