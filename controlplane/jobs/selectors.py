"""What the platform's people see of the jobs: due, late, dead, and what the clock makes of its own."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import Count, Max, Min, Q
from django.utils import timezone

from controlplane.jobs.lease import JobState
from controlplane.jobs.models import Job, Tick
from tenants.actor import Actor, reading_as, require
from tenants.errors import NotFound
from tenants.roles import Permission

LATE = timedelta(minutes=1)
"""A job that is due for so long waits for a worker that is not there."""


@dataclass(frozen=True, slots=True)
class Beat:
    """A periodic kind. None is not yet.

    Args:
        kind: what it is.
        every_s: how often the settings want it, in seconds.
        next_run_at: when its next job is made.
        last_run_at: when one last ended well; the rows of a day are kept.
    """

    kind: str
    every_s: int
    next_run_at: datetime | None
    last_run_at: datetime | None = None

    @property
    def ticked_at(self) -> datetime | None:
        """When the clock last looked at it, at the latest: its grid's last point."""
        return None if self.next_run_at is None else self.next_run_at - timedelta(seconds=self.every_s)


@dataclass(frozen=True, slots=True)
class Pulse:
    """How the jobs fare in all. ``late_since`` is when the longest due was due, ``dead_since`` when the first died."""

    running: int
    late: int
    late_since: datetime | None
    dead: int
    dead_since: datetime | None


def list_jobs(*, actor: Actor, state: JobState | None = None, kind: str | None = None, limit: int = 100) -> list[Job]:
    """Return the newest jobs, of one state and one kind where these are given."""
    require(actor, Permission.PLATFORM_JOBS)
    exact = {"state": state.value if state else None, "kind": kind}
    with reading_as(actor):
        jobs = Job.objects.filter(**{name: value for name, value in exact.items() if value is not None})
        return list(jobs.select_related("tenant").order_by("-pk")[:limit])  # ids sort by the time they were minted


def get_job(*, actor: Actor, job_id: str) -> Job:
    """Return one job, with its tenant.

    Raises:
        NotFound: there is none; a periodic one that ended well is kept for a day.
    """
    require(actor, Permission.PLATFORM_JOBS)
    with reading_as(actor):
        job = Job.objects.select_related("tenant").filter(pk=job_id).first()
    if job is None:
        raise NotFound("There is no such job.")
    return job


def count_jobs(*, actor: Actor, kind: str | None = None) -> dict[JobState, int]:
    """Return how many jobs there are of each state, of one kind where it is given."""
    require(actor, Permission.PLATFORM_JOBS)
    with reading_as(actor):
        jobs = Job.objects.all() if kind is None else Job.objects.filter(kind=kind)
        counted = dict(jobs.values_list("state").annotate(Count("id")))
    return {state: counted.get(state.value, 0) for state in JobState}


def list_beats(*, actor: Actor, with_runs: bool = True) -> list[Beat]:
    """Return the periodic kinds by name; ``with_runs`` says when each last ended well, which is one question more."""
    require(actor, Permission.PLATFORM_JOBS)
    with reading_as(actor):
        due = dict(Tick.objects.values_list("kind", "next_run_at"))
        ended = Job.objects.filter(periodic=True, state=JobState.DONE.value).values_list("kind")
        ran = dict(ended.annotate(Max("ended_at"))) if with_runs else {}
    return [Beat(kind, every_s, due.get(kind), ran.get(kind)) for kind, every_s in sorted(settings.JOB_TICKS.items())]


def pulse(*, actor: Actor) -> Pulse:
    """Return how the jobs fare, in one question."""
    require(actor, Permission.PLATFORM_JOBS)
    late = Q(state=JobState.QUEUED.value, run_at__lt=timezone.now() - LATE)
    dead = Q(state=JobState.DEAD.value)
    with reading_as(actor):
        found = Job.objects.exclude(state=JobState.DONE.value).aggregate(
            running=Count("pk", filter=Q(state=JobState.RUNNING.value)),
            late=Count("pk", filter=late),
            late_since=Min("run_at", filter=late),
            dead=Count("pk", filter=dead),
            dead_since=Min("ended_at", filter=dead),
        )
    return Pulse(**found)
