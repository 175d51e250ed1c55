from datetime import timedelta

import pytest
from console_world import PLATFORM_FRAME_QUERIES, num_queries, page
from django.utils import timezone

from controlplane.jobs.lease import JobState
from controlplane.jobs.models import Job, Tick
from controlplane.jobs.services import claim
from tenants.actor import acting_as, system_actor

TESTS = system_actor("tests")


def make_job(key: str, state: JobState = JobState.QUEUED, kind: str = "metering.roll_up", **fields) -> Job:
    now = timezone.now()
    ended_at = now if state in (JobState.DEAD, JobState.DONE) else None
    with acting_as(TESTS):
        return Job.objects.create(kind=kind, key=key, state=state, **({"run_at": now, "ended_at": ended_at} | fields))


def test_a_dead_job_is_shown_with_its_reason_and_retried(root, personas):
    job = make_job("k1", JobState.DEAD, error="<b>full</b>")
    make_job("k2", run_at=timezone.now() - timedelta(minutes=2))
    text = page(root, "/platform/jobs")
    assert "&lt;b&gt;full" in text
    assert "No worker?" in text
    assert root.post(f"/platform/jobs/{job.pk}/retry").status_code == 302
    assert "No job is dead" in page(root, "/platform/jobs")
    assert root.post(f"/platform/jobs/{job.pk}/retry").status_code == 409


def test_what_waits_is_late_due_or_planned_and_what_runs_comes_first(root, personas):
    now = timezone.now()
    for key, run_at in (("of tomorrow", timedelta(days=1)), ("of now", timedelta(0)), ("of old", timedelta(hours=-1))):
        make_job(key, run_at=now + run_at)
    running = make_job("of this worker")
    assert claim(job_id=running.pk, worker="here:1") is not None
    text = page(root, "/platform/jobs")
    table = text.split("Running, due and planned")[1]
    order = ["of this worker", "Running<", "of old", "Late<", "of now", "Due</span>", "of tomorrow", "Planned<"]
    assert [table.index(words) for words in order] == sorted(table.index(words) for words in order)


def test_one_kind_is_shown_alone_and_none_that_does_not_exist(root, personas):
    make_job("of uploads", kind="registry.sweep_uploads")
    make_job("of hours")
    for query, shown, hidden in (
        ("?kind=registry.sweep_uploads", "of uploads", "of hours"),
        ("?kind=metering.roll_up", "of hours", "of uploads"),
        ("?kind=nonsense", "of uploads", "no such"),
    ):
        text = page(root, f"/platform/jobs{query}")
        assert shown in text
        assert hidden not in text


def test_the_clock_says_when_each_kind_ran_is_due_and_how_late(root, personas):
    now = timezone.now()
    with acting_as(TESTS):
        Tick.objects.create(kind="metering.roll_up", next_run_at=now - timedelta(seconds=90))
        Tick.objects.create(kind="jobs.prune", next_run_at=now + timedelta(minutes=30))
    make_job("one", JobState.DONE, periodic=True, ended_at=now - timedelta(minutes=3))
    table, done = page(root, "/platform/jobs").split("On the clock")[1].split("Done last")
    assert "one" in done
    rows = {kind: table.split(kind)[1].split("</tr>")[0] for kind in ("metering.roll_up", "jobs.prune")}
    assert "3 min ago" in rows["metering.roll_up"]
    assert "badge warn" in rows["metering.roll_up"]
    assert "never" in rows["jobs.prune"]
    assert "badge" not in rows["jobs.prune"]
    assert "when the clock ticks" in table


def test_a_job_tells_its_ids_attempts_and_error(root, personas):
    job = make_job("k", JobState.DEAD, payload={"version_id": "ver_9"}, attempts=3, error="OSError: <disk>")
    url = f"/platform/jobs/{job.pk}"
    text = page(root, url)
    for words in ("ver_9", "3 <small>of 3", "OSError: &lt;disk&gt;", "Three more attempts", job.pk):
        assert words in text
    assert "data-poll" not in text
    assert num_queries(root, url) == PLATFORM_FRAME_QUERIES + 1
    assert "data-poll" in page(root, f"/platform/jobs/{make_job('waits').pk}")
    assert "Three more attempts" not in page(root, f"/platform/jobs/{make_job('other').pk}")
    page(root, "/platform/jobs/job_of_nobody", status=404)


@pytest.mark.parametrize("name", ["alice", "mallory"])
def test_jobs_are_for_those_who_run_the_platform(name, signed_in, personas):
    page(signed_in(name), f"/platform/jobs/{make_job('k').pk}", status=404)
