"""A real Celery worker, killed in the middle of a job, and the one that comes after it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from django.utils import timezone
from django_fixtures import process_environment

from controlplane.jobs.lease import JobState
from controlplane.jobs.models import Job, Tick
from tenants.actor import acting_as, system_actor

ROOT = Path(__file__).parents[2]
SYSTEM = system_actor("test")
_PATIENCE_S = 60


@pytest.fixture
def environment(postgres, redis_server, committed, short_dir) -> dict[str, str]:
    (short_dir / "run").mkdir()
    return process_environment(postgres, redis_server.url) | {"PAGODA_HOME": str(short_dir)}


@contextmanager
def celery(environment: dict[str, str], *arguments: str, failpoints: str = "") -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "celery", "-A", "controlplane.celery", *arguments]
    # What it writes is shown where the test fails.
    process = subprocess.Popen(
        command, cwd=ROOT, env={**environment, "PAGODA_FAILPOINTS": failpoints}, start_new_session=True
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def worker(environment, **more):
    return celery(environment, "worker", "--pool", "solo", "--without-gossip", "--without-mingle", **more)


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.1)


def stored(**which: object) -> Job:
    with acting_as(SYSTEM):
        return Job.objects.get(**which)


def change(job: Job, **fields: object) -> None:
    with acting_as(SYSTEM):
        Job.objects.filter(pk=job.pk).update(**fields)


def test_a_job_whose_worker_is_killed_is_finished_by_another_once(environment):
    beat = celery(environment, "beat", "--max-interval", "1")
    with beat, worker(environment, failpoints="jobs.claimed=kill") as doomed:
        wait_for(lambda: doomed.poll() is not None)
        assert doomed.returncode == -signal.SIGKILL
        job = stored(state=JobState.RUNNING)
        assert job.fence == 1
        change(job, expires_at=timezone.now() - timedelta(seconds=1))  # its lease runs out sooner than in life
        with worker(environment):
            wait_for(lambda: stored(pk=job.pk).state == JobState.QUEUED)
            change(job, run_at=timezone.now())  # and so does the pause before the next attempt
            wait_for(lambda: stored(pk=job.pk).state == JobState.DONE)
    assert (stored(pk=job.pk).attempts, stored(pk=job.pk).fence) == (2, 2)
    with acting_as(SYSTEM):
        assert Tick.objects.get(kind=job.kind).next_run_at > timezone.now() - timedelta(minutes=1)
