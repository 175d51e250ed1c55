"""Workers killed at each named point of the validation: the next one goes on, and there is one effect."""

import multiprocessing
import signal
from collections.abc import Callable, Iterator

import pytest
from django.db import connections
from validation_world import (
    PLATFORM,
    blobs_in,
    bring,
    collect,
    digests,
    grow_old,
    job_of,
    let_time_pass,
    lines,
    stored,
    validate,
    verbs,
)

from controlplane.jobs.lease import JobState
from controlplane.registry import lifecycle
from controlplane.registry.models import Artifact, VersionFile
from controlplane.registry.validation import steps, workspace
from controlplane.registry.validation.checklist import LINES
from dataplane.contracts import failpoints
from dataplane.contracts.replica import TrialReport, TrialState
from tenants.actor import acting_as, member_actor

ALL_PASSED = dict.fromkeys((line.name for line in LINES), "passed")
POINTS = (
    "registry.validating.files",
    "registry.validating.files=kill@3",
    "registry.validating.inspect",
    "registry.validating.memory",
    "registry.validating.smoke",
    "registry.validating.publish",
    "jobs.completing",
)


@pytest.fixture(autouse=True)
def quick(monkeypatch, good_verdict) -> Iterator[None]:
    """The inspector's word without its second, and a fleet that has answered by the first question."""
    monkeypatch.setattr(steps, "inspect", lambda *_, **__: good_verdict)
    yield
    monkeypatch.undo()


def killed_at(point: str, work: Callable[[], object]) -> None:
    """Do ``work`` in a process of its own, which is killed when it passes ``point``."""

    def armed() -> None:
        failpoints._armed.update(failpoints.parse(point if "=" in point else f"{point}=kill"))
        work()

    connections.close_all()  # a process that is forked must not share our conversation with the database
    process = multiprocessing.get_context("fork").Process(target=armed)
    process.start()
    process.join(timeout=60)
    assert process.exitcode == -signal.SIGKILL, f"it did not pass {point}"


@pytest.mark.parametrize("point", POINTS)
def test_a_worker_killed_there_is_followed_by_one_that_goes_on(committed, personas, carded, home_store, fleet, point):
    version = bring(personas.acme, carded, home_store)
    killed_at(point, lambda: validate(version))
    assert stored(version).state == "validating"
    let_time_pass(version)
    assert validate(version) is JobState.DONE
    assert (stored(version).state, lines(version)) == ("ready", ALL_PASSED)
    assert verbs(version) == ["version.ready"]
    assert job_of(version).attempts == 2
    assert blobs_in(home_store) == digests(carded)
    assert list(home_store.uploads()) == []
    assert [request.version.id for request in fleet.asked] == [version.id], "it was tried twice"
    with acting_as(PLATFORM):
        assert (VersionFile.objects.count(), Artifact.objects.count()) == (len(digests(carded)),) * 2
    collect()
    assert list(workspace.root().iterdir()) == [], "the killed worker's folder is still there"
    assert blobs_in(home_store) == digests(carded)


def test_a_worker_killed_while_it_rejects_rejects_once(committed, personas, carded, home_store, fleet):
    fleet.script = [TrialReport(version_id="", state=TrialState.FAILED, cause="it broke")]
    version = bring(personas.acme, carded, home_store)
    killed_at("registry.validating.reject", lambda: validate(version))
    assert stored(version).state == "validating"
    let_time_pass(version)
    assert validate(version) is JobState.DONE
    assert stored(version).state == "rejected"
    assert verbs(version) == ["version.reject"]
    grow_old()
    collect()
    assert blobs_in(home_store) == set(), "bytes of a rejected version are kept"


@pytest.mark.parametrize("point", ["registry.collecting", "registry.collected"])
def test_a_collector_killed_there_is_followed_by_one_that_ends_the_same(
    committed, personas, carded, home_store, fleet, point
):
    version, kept = bring(personas.acme, carded, home_store), bring(personas.evil, carded, home_store)
    validate(version)
    validate(kept)
    bob = member_actor(personas.bob, "acme")
    lifecycle.delete_version(actor=bob, version_id=version.id)
    grow_old()
    killed_at(point, collect)
    assert blobs_in(home_store) == digests(carded), "bytes went that another tenant refers to"
    lifecycle.delete_version(actor=member_actor(personas.mallory, "evil"), version_id=kept.id)
    killed_at(point, collect)
    collect()
    assert blobs_in(home_store) == set()
    with acting_as(PLATFORM):
        assert not Artifact.objects.filter(deleted_at=None).exists()
