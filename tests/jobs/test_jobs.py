import threading
from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from controlplane.jobs import run, selectors, services
from controlplane.jobs.lease import JobState, LeaseLostError
from controlplane.jobs.models import Job, Tick
from controlplane.jobs.queue import enqueue
from tenants.actor import acting_as, member_actor, platform_actor, system_actor
from tenants.errors import Conflict, Forbidden
from tenants.models import AuditEvent, Tenant

SYSTEM = system_actor("test")


def succeed(lease):
    with services.completing(lease):
        Tenant.objects.filter(slug="acme").update(name=f"done by claim {lease.fence}")


def explode(lease):
    raise OSError("no such disk")


@pytest.fixture(autouse=True)
def handlers(settings):
    settings.JOB_HANDLERS = {"good": f"{__name__}.succeed", "bad": f"{__name__}.explode", "plain": "builtins.id"}
    settings.JOB_TICKS = {}
    return settings


def queued(kind="good", key="one", **more):
    with acting_as(SYSTEM):
        return enqueue(kind=kind, key=key, payload={}, **more)


def stored(job):
    with acting_as(SYSTEM):
        return Job.objects.get(pk=job.pk)


def age(job, **fields):
    with acting_as(SYSTEM):
        Job.objects.filter(pk=job.pk).update(**fields)


def in_parallel(count, act):
    """Run ``act`` in threads that start together; return what they returned."""
    barrier, results = threading.Barrier(count), []

    def worker():
        try:
            barrier.wait()
            results.append(act())
        finally:
            connection.close()

    threads = [threading.Thread(target=worker) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_the_effect_and_the_end_of_a_job_are_committed_together(personas):
    job = queued()
    assert run.run_job(job.id) is JobState.DONE
    with acting_as(SYSTEM):
        assert Tenant.objects.get(slug="acme").name == "done by claim 1"
    assert (stored(job).state, stored(job).ended_at is not None) == ("done", True)


def test_a_handler_without_an_effect_of_its_own_is_completed_by_the_runner(db):
    assert run.run_job(queued(kind="plain").id) is JobState.DONE


def test_a_message_delivered_again_does_nothing(db):
    job = queued()
    assert [run.run_job(job.id), run.run_job(job.id)] == [JobState.DONE, None]


def test_asking_twice_for_one_effect_makes_one_job(db):
    assert queued(key="same").id == queued(key="same").id
    assert queued(key="same").id != queued(key="other").id


def test_a_job_needs_a_known_kind_and_the_transaction_of_its_cause(committed):
    with acting_as(SYSTEM), pytest.raises(ValueError, match="no handler"):
        enqueue(kind="unknown", key="x", payload={})
    with pytest.raises(RuntimeError, match="transaction"):
        enqueue(kind="good", key="x", payload={})


def test_a_failing_job_is_retried_twice_then_dead_and_visible(personas):
    job = queued(kind="bad")
    states = []
    for _ in range(3):
        states.append(run.run_job(job.id))
        assert run.run_job(job.id) is None, "it waits before the next attempt"
        age(job, run_at=timezone.now() - timedelta(seconds=1))
    assert states == [JobState.QUEUED, JobState.QUEUED, JobState.DEAD]
    root = platform_actor(personas.root)
    assert [dead.error for dead in selectors.list_jobs(actor=root, state=JobState.DEAD)] == ["OSError: no such disk"]
    assert selectors.count_jobs(actor=root)[JobState.DEAD] == 1


def test_a_poison_job_does_not_block_the_queue(personas):
    bad, good = queued(kind="bad"), queued()
    for job_id in services.due_job_ids(limit=10):
        run.run_job(job_id)
    assert (stored(bad).state, stored(good).state) == ("queued", "done")


def test_a_dead_job_is_retried_by_a_platform_admin_and_the_audit_says_so(personas, handlers):
    job = queued(kind="bad")
    for _ in range(3):
        run.run_job(job.id)
        age(job, run_at=timezone.now() - timedelta(seconds=1))
    root = platform_actor(personas.root)
    services.retry_dead_job(actor=root, job_id=job.id)
    handlers.JOB_HANDLERS = {"bad": f"{__name__}.succeed"}
    assert run.run_job(job.id) is JobState.DONE
    with pytest.raises(Conflict, match="done"):
        services.retry_dead_job(actor=root, job_id=job.id)
    with acting_as(SYSTEM):
        assert AuditEvent.objects.filter(verb="job.retry", target_id=job.id).count() == 1


def test_members_of_tenants_do_not_see_the_jobs_of_the_platform(personas):
    queued()
    with pytest.raises(Forbidden):
        selectors.list_jobs(actor=member_actor(personas.alice, "acme"))
    with acting_as(member_actor(personas.alice, "acme")):
        assert Job.objects.count() == 0


def test_a_silent_worker_loses_its_job_and_cannot_commit_any_more(personas):
    job = queued()
    first = services.claim(job_id=job.id, worker="asleep")
    assert services.sweep() == 0, "the lease holds"
    age(job, expires_at=timezone.now() - timedelta(seconds=1))
    assert services.sweep() == 1
    age(job, run_at=timezone.now() - timedelta(seconds=1))
    second = services.claim(job_id=job.id, worker="awake")
    for stale in (lambda: succeed(first), lambda: services.heartbeat(first), lambda: services.fail(first, "late")):
        with pytest.raises(LeaseLostError):
            stale()
    succeed(second)
    with acting_as(SYSTEM):
        assert Tenant.objects.get(slug="acme").name == "done by claim 2"


def test_a_heartbeat_keeps_the_lease(db):
    job = queued()
    held = services.claim(job_id=job.id, worker="slow")
    age(job, expires_at=timezone.now() - timedelta(seconds=1))
    services.heartbeat(held)
    assert services.sweep() == 0


def test_an_effect_that_fails_to_commit_leaves_no_trace(personas):
    job = queued()
    held = services.claim(job_id=job.id, worker="unlucky")

    def break_off():
        with services.completing(held):
            Tenant.objects.filter(slug="acme").update(name="half done")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        break_off()
    with acting_as(SYSTEM):
        assert Tenant.objects.get(slug="acme").name == "Acme"
    assert stored(job).state == "running"


def test_of_eight_workers_with_one_message_one_runs_the_job(committed):
    job = queued()
    results = in_parallel(8, lambda: services.claim(job_id=job.id, worker="racer"))
    assert len([lease for lease in results if lease]) == 1
    assert stored(job).fence == 1


def test_of_a_late_worker_and_the_sweeper_one_wins(committed, personas):
    for round_ in range(10):
        job = queued(key=f"round {round_}")
        held = services.claim(job_id=job.id, worker="late")
        age(job, expires_at=timezone.now() - timedelta(seconds=1))

        def commit(held=held):
            try:
                succeed(held)
            except LeaseLostError:
                return "lost"
            return "committed"

        steps = iter([commit, services.sweep])
        lock = threading.Lock()

        def either(steps=steps, lock=lock):
            with lock:
                step = next(steps)
            return step()

        outcome = set(in_parallel(2, either))
        assert outcome in ({"committed", 0}, {"lost", 1})
        assert stored(job).state == ("done" if "committed" in outcome else "queued")


def test_asking_for_one_effect_from_many_threads_makes_one_job(committed):
    assert len(set(in_parallel(6, lambda: queued(key="same").id))) == 1


def test_two_clocks_make_one_job_of_a_tick(committed, handlers):
    handlers.JOB_TICKS = {"good": 60}
    made = in_parallel(2, services.advance_ticks)
    made += [services.advance_ticks()]
    assert len([job_id for ids in made for job_id in ids]) == 1


def test_a_slow_periodic_job_is_not_overtaken(db, handlers):
    handlers.JOB_TICKS = {"good": 60}

    def again():
        with acting_as(SYSTEM):
            Tick.objects.update(next_run_at=timezone.now() - timedelta(seconds=1))
        return services.advance_ticks()

    (first,) = services.advance_ticks()
    assert again() == []
    run.run_job(first)
    assert len(again()) == 1


def test_a_kind_that_is_no_longer_periodic_makes_no_jobs(db, handlers):
    handlers.JOB_TICKS = {"good": 60}
    (first,) = services.advance_ticks()
    run.run_job(first)
    handlers.JOB_TICKS = {}
    with acting_as(SYSTEM):
        Tick.objects.update(next_run_at=timezone.now() - timedelta(seconds=1))
    assert services.advance_ticks() == []


def test_a_job_asked_for_in_a_change_that_is_rolled_back_never_runs(committed):
    def break_off():
        with acting_as(SYSTEM):
            enqueue(kind="good", key="never", payload={})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        break_off()
    assert services.due_job_ids(limit=10) == []


# --- crowds


@pytest.fixture
def crowd(handlers, personas):
    """A kind of which two run at once, one of each tenant."""
    handlers.JOB_HANDLERS["slow"] = "builtins.id"
    handlers.JOB_CROWDS = {"slow": (2, 1)}
    return personas


def test_one_tenant_does_not_take_every_worker(crowd):
    mine = [queued(kind="slow", key=f"mine {n}", tenant=crowd.acme) for n in range(8)]
    theirs = queued(kind="slow", key="theirs", tenant=crowd.evil)
    held = services.claim(job_id=mine[0].id, worker="one")
    assert [services.claim(job_id=job.id, worker="two") for job in mine[1:]] == [None] * 7
    assert services.claim(job_id=theirs.id, worker="two")
    with services.completing(held):
        pass
    assert services.claim(job_id=mine[1].id, worker="one"), "what has ended makes room"


def test_a_crowd_leaves_workers_to_what_is_periodic(crowd):
    tenants = (crowd.acme, crowd.evil, None)
    crowded = [queued(kind="slow", key=f"{n}", tenant=tenant) for n, tenant in enumerate(tenants)]
    plain = queued()
    assert services.due_job_ids(limit=10) == [plain.id, crowded[0].id, crowded[1].id]
    assert [bool(services.claim(job_id=job.id, worker="w")) for job in crowded] == [True, True, False]
    assert services.due_job_ids(limit=10) == [plain.id]


def test_a_backlog_does_not_push_out_what_came_later(crowd):
    for n in range(5):
        queued(kind="slow", key=f"{n}", tenant=crowd.acme)
    plain = queued()
    assert services.due_job_ids(limit=1) == [plain.id]


def test_of_workers_that_claim_the_last_place_at_once_one_gets_it(committed, crowd):
    jobs = iter([queued(kind="slow", key=f"{n}", tenant=crowd.acme) for n in range(6)])
    lock = threading.Lock()

    def claim():
        with lock:
            job = next(jobs)
        return services.claim(job_id=job.id, worker="racer")

    assert len([lease for lease in in_parallel(6, claim) if lease]) == 1
