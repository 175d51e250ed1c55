"""What the platform's people see of the jobs: due, late, dead."""

from django.db.models import Count

from controlplane.jobs.lease import JobState
from controlplane.jobs.models import Job, Tick
from tenants.actor import Actor, reading_as, require
from tenants.roles import Permission


def list_jobs(*, actor: Actor, state: JobState | None = None, limit: int = 100) -> list[Job]:
    """Return the newest jobs, of one state where one is given."""
    require(actor, Permission.PLATFORM_JOBS)
    with reading_as(actor):
        jobs = Job.objects.select_related("tenant").order_by("-created_at")
        return list(jobs.filter(state=state.value)[:limit] if state else jobs[:limit])


def count_jobs(*, actor: Actor) -> dict[JobState, int]:
    """Return how many jobs there are of each state."""
    require(actor, Permission.PLATFORM_JOBS)
    with reading_as(actor):
        counted = dict(Job.objects.values_list("state").annotate(Count("id")))
    return {state: counted.get(state.value, 0) for state in JobState}


def list_ticks(*, actor: Actor) -> list[Tick]:
    """Return the periodic kinds and when each is due next."""
    require(actor, Permission.PLATFORM_JOBS)
    with reading_as(actor):
        return list(Tick.objects.order_by("next_run_at"))
