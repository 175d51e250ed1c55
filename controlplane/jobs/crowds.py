"""Kinds of jobs of which people can make many, each minutes long: how many run at once, and how many of one tenant.

Without bounds one tenant's uploads take every worker, and what bills, cleans up and validates for others waits for
hours behind them; so does the clock, which the workers run too.
"""

from collections import Counter

from django.conf import settings
from django.db import connection

from controlplane.jobs.lease import JobState
from controlplane.jobs.models import Job

_LOCKS = 0x6A6F6273
"""The space of this module's advisory locks."""


def has_place(job: Job) -> bool:
    """Say whether one more job of this kind and tenant may run. The open transaction that asks is to make it run."""
    if job.kind not in settings.JOB_CROWDS:
        return True
    # Race: two workers that claim the last place. One waits here until the other's job is seen to run.
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s, hashtext(%s))", [_LOCKS, job.kind])
    return bool(admitted(job.kind, [job]))


def admitted(kind: str, waiting: list[Job]) -> list[Job]:
    """Return those of ``waiting``, in their order, for which there are places beside what runs now."""
    most, most_of_tenant = settings.JOB_CROWDS[kind]
    running = Counter(Job.objects.filter(kind=kind, state=JobState.RUNNING.value).values_list("tenant_id", flat=True))
    found: list[Job] = []
    for job in waiting:
        if running.total() < most and running[job.tenant_id] < most_of_tenant:
            running[job.tenant_id] += 1
            found.append(job)
    return found
