"""The two messages of the job system: the clock's tick, and the id of a job to run. Both are safe twice."""

from celery import shared_task

from controlplane.jobs import run, services

_DISPATCH_LIMIT = 100
_MESSAGE_LIFETIME_S = 5
"""A due job is announced at every tick until it is claimed, so an old message is worth nothing."""


@shared_task(name="jobs.clock")  # type: ignore[untyped-decorator]
def clock() -> None:
    """Take back what is silent, make what is periodic, announce what is due."""
    services.sweep()
    services.advance_ticks()
    for job_id in services.due_job_ids(limit=_DISPATCH_LIMIT):
        run_job.apply_async((job_id,), expires=_MESSAGE_LIFETIME_S)


@shared_task(name="jobs.run")  # type: ignore[untyped-decorator]
def run_job(job_id: str) -> None:
    """Run one job."""
    run.run_job(job_id)
