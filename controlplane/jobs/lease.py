"""The life of a job, pure: queued, running under a lease, done or dead. Time and randomness are arguments.

Source of the fencing token: M. Kleppmann, "How to do distributed locking", 2016. Whoever holds an old token is refused
at the commit, however late it wakes up.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

MAX_ATTEMPTS = 3
LEASE = timedelta(seconds=30)
_FIRST_BACKOFF = timedelta(seconds=5)
_BACKOFF_FACTOR = 4.0


class JobState(StrEnum):
    """Where a job is. DONE is final; DEAD is left only when a person retries it."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    DEAD = "dead"


class LeaseLostError(Exception):
    """Another worker holds the job now, or it has ended: what this one did must not count."""


@dataclass(frozen=True, slots=True)
class JobLife:
    """What decides a job's next step.

    Args:
        state: where it is.
        run_at: it is not claimed before.
        attempts: how many claims it has had.
        fence: the token of the latest claim; each claim gets a greater one.
        expires_at: when the lease ends; set exactly while RUNNING.
        error: why the latest attempt failed.
    """

    state: JobState
    run_at: datetime
    attempts: int = 0
    fence: int = 0
    expires_at: datetime | None = None
    error: str = ""


def claim(life: JobLife, now: datetime) -> JobLife | None:
    """Return the job under a new lease, or None where it is not due."""
    if life.state is not JobState.QUEUED or life.run_at > now:
        return None
    return replace(
        life, state=JobState.RUNNING, attempts=life.attempts + 1, fence=life.fence + 1, expires_at=now + LEASE
    )


def extend(life: JobLife, fence: int, now: datetime) -> JobLife:
    """Return the job with its lease renewed.

    Raises:
        LeaseLostError: ``fence`` is not the running claim's.
    """
    _check(life, fence)
    return replace(life, expires_at=now + LEASE)


def complete(life: JobLife, fence: int) -> JobLife:
    """Return the job done. An expired lease still counts as long as nobody took the job back.

    Raises:
        LeaseLostError: ``fence`` is not the running claim's.
    """
    _check(life, fence)
    return replace(life, state=JobState.DONE, expires_at=None, error="")


def fail(life: JobLife, fence: int, now: datetime, error: str, jitter: float) -> JobLife:
    """Return the job queued again after a pause, or dead after the last attempt.

    Args:
        life: the job.
        fence: the claim's token.
        now: database time.
        error: why it failed.
        jitter: a number in [0, 1) that spreads retries.

    Raises:
        LeaseLostError: ``fence`` is not the running claim's.
    """
    _check(life, fence)
    return _after_failure(life, now, error, jitter)


def expire(life: JobLife, now: datetime, jitter: float) -> JobLife | None:
    """Return what becomes of a job whose worker has gone silent, or None while its lease holds."""
    if life.state is not JobState.RUNNING or life.expires_at is None or life.expires_at > now:
        return None
    return _after_failure(life, now, "The worker went silent and its lease ran out.", jitter)


def revive(life: JobLife, now: datetime) -> JobLife | None:
    """Return a dead job queued with all its attempts before it, or None where it is not dead."""
    return replace(life, state=JobState.QUEUED, attempts=0, run_at=now) if life.state is JobState.DEAD else None


def backoff(attempts: int, jitter: float) -> timedelta:
    """Return the pause after the failure of attempt ``attempts``: 5 s, 20 s, ..., of which a random half is kept."""
    return _FIRST_BACKOFF * _BACKOFF_FACTOR ** (attempts - 1) * (0.5 + jitter / 2)


def next_run(previous: datetime, interval: timedelta, now: datetime) -> datetime:
    """Return the first time after ``now`` on the grid of ``previous``: what was missed is made up once, no storm."""
    missed = max(0, (now - previous) // interval)
    return previous + interval * (missed + 1)


def _check(life: JobLife, fence: int) -> None:
    if life.state is not JobState.RUNNING or life.fence != fence:
        raise LeaseLostError(f"the claim {fence} has ended: the job is {life.state} under claim {life.fence}")


def _after_failure(life: JobLife, now: datetime, error: str, jitter: float) -> JobLife:
    if life.attempts >= MAX_ATTEMPTS:
        return replace(life, state=JobState.DEAD, expires_at=None, error=error)
    pause = backoff(life.attempts, jitter)
    return replace(life, state=JobState.QUEUED, run_at=now + pause, expires_at=None, error=error)
