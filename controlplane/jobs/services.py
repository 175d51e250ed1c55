"""The steps of a job's life, each one transaction on its locked row. Time is the database's."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.conf import settings
from django.db import connection

from controlplane.jobs import crowds
from controlplane.jobs import lease as rules
from controlplane.jobs.lease import JobLife, JobState, LeaseLostError
from controlplane.jobs.models import Job, Tick
from controlplane.jobs.queue import enqueue
from dataplane.contracts import failpoints
from tenants import audit
from tenants.actor import Actor, acting_as, require, system_actor
from tenants.chain import Json
from tenants.errors import Conflict, NotFound
from tenants.roles import Permission

_ERROR_MAX_CHARS = 2_000
_CLOCK = system_actor("jobs")
VERIFY_AUDIT = "audit.verify"


@dataclass(slots=True)
class Lease:
    """A worker's hold on a job.

    Args:
        job_id: the job.
        kind: what it is.
        key: which effect.
        payload: the ids it carries.
        fence: the token that its commit shows.
        completed: whether the effect has been committed.
    """

    job_id: str
    kind: str
    key: str
    payload: dict[str, Json]
    fence: int
    completed: bool = field(default=False)

    @property
    def actor(self) -> Actor:
        """Who acts in the handler's transactions."""
        return system_actor(f"job:{self.kind}")


def due_job_ids(*, limit: int) -> list[str]:
    """Return the ids of queued jobs whose time has come and for which there is a place, the longest due first.

    Kinds that people make many of come last: a backlog of theirs does not push out what is periodic.
    """
    with acting_as(_CLOCK):
        due = Job.objects.filter(state=JobState.QUEUED.value, run_at__lte=_database_now()).order_by("run_at", "id")
        found = list(due.exclude(kind__in=settings.JOB_CROWDS).values_list("id", flat=True)[:limit])
        for kind in settings.JOB_CROWDS:
            waiting = list(due.filter(kind=kind).only("id", "kind", "tenant_id"))
            found += [job.id for job in crowds.admitted(kind, waiting)]
        return found[:limit]


def claim(*, job_id: str, worker: str) -> Lease | None:
    """Take a job that is due, or return None: it is not due, it ended, another worker is at it, or it has no place."""
    with acting_as(_CLOCK):
        # Race: one id delivered twice. The loser finds the row locked, or RUNNING a moment later, and leaves it.
        job = Job.objects.select_for_update(skip_locked=True, no_key=True).filter(pk=job_id).first()
        life = rules.claim(job.life, _database_now()) if job is not None else None
        if job is None or life is None or not crowds.has_place(job):
            return None
        job.worker = worker
        _save(job, life)
    failpoints.hit("jobs.claimed")
    return Lease(job_id=job.id, kind=job.kind, key=job.key, payload=job.payload, fence=job.fence)


def heartbeat(lease: Lease) -> None:
    """Renew the lease; a handler calls it after each piece of progress, well within the lease's 30 s.

    Raises:
        LeaseLostError: the job was taken back; stop.
    """
    with advancing(lease):
        pass


@contextmanager
def advancing(lease: Lease) -> Iterator[None]:
    """Open the transaction in which a part of the effect is committed and the lease renewed, or neither.

    For work of several parts, each of which a later attempt finds done.

    Raises:
        LeaseLostError: the job was taken back; nothing of this block counts.
    """
    with acting_as(lease.actor):
        # Race: as in `completing`; a part is an effect too.
        job = _locked(lease.job_id)
        _save(job, rules.extend(job.life, lease.fence, _database_now()))
        yield


@contextmanager
def completing(lease: Lease) -> Iterator[None]:
    """Open the transaction in which the effect and the job's end are committed together, or neither.

    Raises:
        LeaseLostError: the job was taken back; nothing of this block counts.
    """
    with acting_as(lease.actor):
        # Race: a worker that slept past its lease against the one that has the job now. The row's lock and the token
        # let exactly the holder of the latest claim commit.
        job = _locked(lease.job_id)
        life = rules.complete(job.life, lease.fence)
        yield
        _save(job, life)
        failpoints.hit("jobs.completing")
    lease.completed = True


def fail(lease: Lease, error: str) -> JobState:
    """Queue the job again after a pause, or bury it after its last attempt; return which.

    Raises:
        LeaseLostError: the job was taken back.
    """
    with acting_as(_CLOCK):
        job = _locked(lease.job_id)
        life = rules.fail(job.life, lease.fence, _database_now(), error[:_ERROR_MAX_CHARS], random.random())  # noqa: S311
        _save(job, life)
    return life.state


def sweep(*, limit: int = 100) -> int:
    """Take back jobs whose workers went silent; return how many."""
    swept = 0
    with acting_as(_CLOCK):
        now = _database_now()
        silent = Job.objects.filter(state=JobState.RUNNING.value, expires_at__lte=now).order_by("id")
        # Race: two clocks, or a clock and the worker's own commit. Whoever has the row decides; the other skips it.
        for job in silent.select_for_update(skip_locked=True, no_key=True)[:limit]:
            life = rules.expire(job.life, now, random.random())  # noqa: S311
            if life is not None:
                _save(job, life)
                swept += 1
    return swept


def advance_ticks() -> list[str]:
    """Make jobs of the periodic kinds that are due; return their ids."""
    made = []
    with acting_as(_CLOCK):
        now = _database_now()
        known = Tick.objects.in_bulk()
        fresh = [Tick(kind=kind, next_run_at=now) for kind in settings.JOB_TICKS if kind not in known]
        Tick.objects.bulk_create(fresh, ignore_conflicts=True)
        due = Tick.objects.filter(kind__in=list(settings.JOB_TICKS), next_run_at__lte=now).order_by("kind")
        # Race: two clocks. One holds the tick's row; the other skips it, and finds it advanced the next time.
        for tick in due.select_for_update(skip_locked=True, no_key=True):
            unfinished = Job.objects.filter(kind=tick.kind, state__in=[JobState.QUEUED.value, JobState.RUNNING.value])
            if not unfinished.exists():  # a slow run is waited for, not overtaken
                key = tick.next_run_at.isoformat()
                job = Job(kind=tick.kind, key=key, periodic=True, state=JobState.QUEUED.value, run_at=now)
                job.save(force_insert=True)
                made.append(job.id)
            interval = timedelta(seconds=settings.JOB_TICKS[tick.kind])
            tick.next_run_at = rules.next_run(tick.next_run_at, interval, now)
            tick.save(update_fields=["next_run_at"])
    return made


def retry_dead_job(*, actor: Actor, job_id: str) -> Job:
    """Give a dead job another three attempts.

    Raises:
        Forbidden: the actor does not run the platform's jobs.
        NotFound: there is no such job.
        Conflict: it is not dead.
    """
    require(actor, Permission.PLATFORM_JOBS)
    with acting_as(actor):
        job = Job.objects.select_for_update(no_key=True).filter(pk=job_id).first()
        if job is None:
            raise NotFound("There is no such job.")
        life = rules.revive(job.life, _database_now())
        if life is None:
            raise Conflict(f"This job is {job.state}; only a dead one can be retried.")
        _save(job, life)
        audit.record(actor=actor, verb="job.retry", target=job, before={"state": "dead"}, after={"state": "queued"})
    return job


def verify_audit_soon(*, actor: Actor) -> Job:
    """Have every audit chain verified now, or return the job that is about to do so.

    Raises:
        Forbidden: the actor does not read the platform's audit.
    """
    require(actor, Permission.PLATFORM_AUDIT)
    with acting_as(actor):
        unfinished = Job.objects.filter(kind=VERIFY_AUDIT, state__in=[JobState.QUEUED.value, JobState.RUNNING.value])
        # Race: two who ask at once make two jobs. Each only reads, so the second costs time and nothing else.
        job = unfinished.first()
        if job is None:
            job = enqueue(kind=VERIFY_AUDIT, key=_database_now().isoformat(), payload={})
            audit.record(actor=actor, verb="audit.verify", target=job)
    return job


def _locked(job_id: str) -> Job:
    job = Job.objects.select_for_update(no_key=True).filter(pk=job_id).first()
    if job is None:
        raise LeaseLostError(f"the job {job_id} is gone")
    return job


def _save(job: Job, life: JobLife) -> None:
    job.state, job.run_at, job.attempts = life.state.value, life.run_at, life.attempts
    job.fence, job.expires_at, job.error = life.fence, life.expires_at, life.error
    job.ended_at = _database_now() if life.state in (JobState.DONE, JobState.DEAD) else None
    job.save()


def _database_now() -> datetime:
    """Return the clock that every lease is measured by, wherever its worker runs."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        row = cursor.fetchone()
    assert row is not None  # noqa: S101  # a SELECT without FROM has one row
    now: datetime = row[0]
    return now
