"""The clock: what it sees, what it does about it, and that a crash at any point loses no step and repeats none."""

import multiprocessing
import signal
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from django.db import connections
from django.utils import timezone
from domain import PLATFORM
from rollout_world import (
    ONE_STEP,
    Said,
    World,
    approve,
    begun,
    change,
    journal,
    make_world,
    path,
    publish,
    quick_plan,
    step,
    stored,
    walk,
)

from controlplane.deployments.models import FleetNode
from controlplane.jobs.lease import JobState
from controlplane.jobs.models import Job
from controlplane.jobs.queue import enqueue
from controlplane.jobs.run import run_job
from controlplane.rollouts import services
from controlplane.rollouts.models import Rollout
from controlplane.rollouts.services import ticks
from controlplane.rollouts.states import RolloutState
from dataplane.contracts import failpoints
from dataplane.contracts.failpoints import FailpointError
from dataplane.contracts.replica import ReplicaState
from tenants.actor import Actor, acting_as, system_actor
from tenants.errors import Conflict
from tenants.models import AuditEvent, OutboxEvent

POINTS = [f"rollouts.{state}.{when}" for state in RolloutState for when in ("before_commit", "after_commit")]
"""A draft is made, not moved to: it has no such points."""


def tick() -> JobState | None:
    """Run the periodic job once."""
    with acting_as(PLATFORM):
        job = enqueue(kind="rollouts.tick", key=timezone.now().isoformat(), payload={})
    return run_job(job.id)


def test_a_tick_moves_every_rollout_and_one_that_stumbles_holds_up_no_other(world, personas, bob, monkeypatch):
    first, second = begun(world, bob, ONE_STEP), begun(make_world(personas.acme, name="other"), bob, ONE_STEP)
    observe = ticks.observe

    def stumble(rollout_id: str):
        if rollout_id == first.id:
            raise OSError("no such file")
        return observe(rollout_id)

    monkeypatch.setattr(ticks, "observe", stumble)
    assert tick() is JobState.DONE
    assert [(row.state, row.stumble) for row in map(stored, (first, second))] == [
        ("preflight", "OSError: no such file"), ("loading", ""),
    ]  # fmt: skip
    monkeypatch.setattr(ticks, "observe", observe)
    tick()
    assert (stored(first).state, stored(first).stumble) == ("loading", "")


def test_a_weight_counts_when_the_data_plane_has_heard_of_it(world, bob):
    rollout = walk(begun(world, bob, ONE_STEP), "ramp")
    assert services.advance(rollout_id=rollout.id, revision=rollout.revision) is None
    publish()
    assert services.advance(rollout_id=rollout.id, revision=rollout.revision) == "bake"


def test_a_candidate_gets_no_traffic_before_a_living_fleet_says_that_it_is_ready(world, bob):
    rollout = begun(world, bob, ONE_STEP)
    for state in (None, ReplicaState.LOADING, ReplicaState.WARMING, ReplicaState.ASLEEP):
        world.report(state)
        assert walk(rollout).state == "loading"
    world.report(ReplicaState.READY)
    fall_silent()
    assert walk(rollout).state == "loading"
    world.report(ReplicaState.READY)
    assert walk(rollout, "ramp").state == "ramp"


def fall_silent() -> None:
    with acting_as(PLATFORM):
        FleetNode.objects.update(seen_at=timezone.now() - timedelta(hours=2))


@pytest.mark.parametrize("lose", [fall_silent, lambda: None], ids=["silence", "a report"])
def test_a_candidate_that_is_lost_under_traffic_is_rolled_back_with_the_reason(world, bob, lose):
    rollout = walk(begun(world, bob, ONE_STEP), "bake")
    world.judgement, world.samples = Said("inconclusive"), 0
    world.report(ReplicaState.READY if lose is fall_silent else ReplicaState.COLD)
    lose()
    assert step(rollout) is None
    since = stored(rollout).unready_since
    assert since is not None
    assert step(rollout) is None
    assert stored(rollout).unready_since == since, "each tick would begin the grace anew"
    change(rollout, unready_since=since - timedelta(seconds=30))
    assert step(rollout) == "rolling_back"
    assert "no READY replica" in stored(rollout).reason
    assert world.arms() == {"stable": ("old", 100, "none")}


def test_a_candidate_that_comes_back_in_time_goes_on(world, bob):
    rollout = walk(begun(world, bob, ONE_STEP), "bake")
    world.samples = 0
    world.report(ReplicaState.DRAINING)
    assert step(rollout) is None
    world.report(ReplicaState.READY)
    assert step(rollout) is None
    assert stored(rollout).unready_since is None


def test_a_candidate_that_does_not_start_is_given_up_with_what_the_fleet_says(world, bob):
    rollout = walk(begun(world, bob, ONE_STEP), "loading")
    world.report(ReplicaState.COLD, restarts=3)
    assert walk(rollout, "rolled_back").reason == "The candidate failed to start 3 times. a bad file"
    assert world.arms() == {"stable": ("old", 100, "none")}


def test_a_plan_that_does_not_fit_the_memory_ends_before_anything_is_loaded(world, bob):
    world.fit = Said("refused", "7 GiB are missing.")
    rollout = walk(begun(world, bob, ONE_STEP))
    assert (rollout.state, rollout.reason) == ("aborted", "Preflight refused: 7 GiB are missing.")
    assert world.arms() == {"stable": ("old", 100, "none")}


@pytest.mark.parametrize(
    "where", ["ramp", "bake", "judge", "inconclusive", "awaiting_approval", "paused", "promoting", "baking_100"]
)
def test_a_hard_stop_takes_all_traffic_away_wherever_there_is_some(world, bob, alice, where):
    rollout = begun(world, bob, ONE_STEP)
    if where == "inconclusive":
        world.judgement = Said("inconclusive")
    if where in ("promoting", "baking_100"):
        approve(alice, walk(rollout, "awaiting_approval"))
    rollout = walk(rollout, "bake" if where == "paused" else where)
    if where == "paused":
        services.pause_rollout(actor=bob, rollout_id=rollout.id, expected_revision=rollout.revision)
    assert stored(rollout).state == where
    world.judgement = Said("hard_stop", "Errors: 9 of the first 100.")
    assert step(rollout) == "rolling_back"
    assert world.arms() == {"stable": ("old", 100, "none")}
    assert walk(rollout, "rolled_back").reason == "Errors: 9 of the first 100."


# --- crashes


@pytest.fixture
def all_armed() -> Iterator[dict[str, int]]:
    """Every point raises when it is first passed; the value counts how often each was."""
    failpoints._hits.clear()
    failpoints._armed.update(failpoints.parse(",".join(f"{point}=raise" for point in POINTS)))
    yield failpoints._hits
    failpoints._armed.clear()
    failpoints._hits.clear()


def insisting(rollout: Rollout, act: Callable[[Rollout], object]) -> None:
    """Do what a person does who hears of a crash: look what has become of it, and ask again where nothing has."""
    before = stored(rollout)
    for _ in range(3):
        now = stored(rollout)
        if now.revision != before.revision:
            return
        try:
            act(now)
        except FailpointError:
            continue


def insistently(rollout: Rollout, *until: str) -> Rollout:
    """Tick on, whatever crashes, until the rollout is in one of these states, or nothing happens any more."""
    for _ in range(60):
        before = stored(rollout)
        if before.state in until:
            break
        try:
            if step(rollout) is None:
                break
        except FailpointError:
            pass
    return stored(rollout)


def good(world: World, bob: Actor, alice: Actor) -> Rollout:
    """Approved, promoted, and its version before let go."""
    rollout = drafted(world, bob, quick_plan(5, 50, approval_at=5, keep_previous_s=0))
    insistently(rollout, "awaiting_approval")
    insisting(rollout, lambda now: approve(alice, now))
    return insistently(rollout)


def bad(world: World, bob: Actor, alice: Actor) -> Rollout:
    """Inconclusive, then paused, then taken back by a person."""
    world.judgement = Said("inconclusive")
    rollout = drafted(world, bob, ONE_STEP)
    insistently(rollout)
    insisting(rollout, lambda now: services.roll_back(actor=bob, rollout_id=now.id))
    return insistently(rollout)


def refused(world: World, bob: Actor, alice: Actor) -> Rollout:
    world.fit = Said("refused")
    return insistently(drafted(world, bob, ONE_STEP))


def superseded(world: World, bob: Actor, alice: Actor) -> Rollout:
    rollout = drafted(world, bob, ONE_STEP)
    insistently(rollout, "bake")
    insisting(
        rollout,
        lambda now: services.create_rollout(
            actor=bob, deployment_id=world.deployment.id, candidate_version_id=world.candidate.id, plan=ONE_STEP,
            supersede=True,
        ),
    )  # fmt: skip
    return stored(rollout)


def taken_back(world: World, bob: Actor, alice: Actor) -> Rollout:
    """Promoted, then taken back while the version before is kept."""
    rollout = drafted(world, bob, quick_plan(50))
    insistently(rollout, "awaiting_approval")
    insisting(rollout, lambda now: approve(alice, now))
    insistently(rollout, "promoted")
    insisting(rollout, lambda now: services.roll_back(actor=bob, rollout_id=now.id))
    return insistently(rollout)


def drafted(world: World, bob: Actor, plan) -> Rollout:
    rollout = services.create_rollout(
        actor=bob, deployment_id=world.deployment.id, candidate_version_id=world.candidate.id, plan=plan
    )
    insisting(
        rollout,
        lambda now: services.start_rollout(actor=bob, rollout_id=now.id, expected_revision=now.revision),
    )
    return rollout


STORIES = {
    good: "draft preflight loading warm shadow ramp bake judge awaiting_approval ramp bake judge promoting baking_100 "
    "promoted promoted",
    bad: "draft preflight loading warm shadow ramp bake judge inconclusive bake judge paused rolling_back rolled_back",
    refused: "draft preflight aborted",
    superseded: "draft preflight loading warm shadow ramp bake superseded",
    taken_back: "draft preflight loading warm shadow ramp bake judge awaiting_approval promoting baking_100 promoted "
    "rolling_back rolled_back",
}


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_a_crash_at_every_point_on_the_way_leaves_no_step_out_and_takes_none_twice(world, bob, alice, all_armed, story):
    rollout = story(world, bob, alice)
    states = STORIES[story].split()
    assert [state for state, _ in path(rollout)] == states
    assert [event.sequence for event in journal(rollout)] == list(range(1, len(states) + 1))
    assert stored(rollout).revision == len(states)
    points = {f"rollouts.{state}.{when}" for state in states[1:] for when in ("before_commit", "after_commit")}
    assert {point for point, hits in all_armed.items() if hits} == points
    with acting_as(PLATFORM):
        audited = AuditEvent.objects.filter(target_kind="rollout", target_id=rollout.id).count()
        told = OutboxEvent.objects.filter(topic="deployment").count()
    assert audited == len(states)
    assert told == 1 + changes_of_arms(rollout), "the data plane was told twice, or not at all"


def changes_of_arms(rollout: Rollout) -> int:
    """How often the story changes what is served: when a candidate comes, at each weight, at each end."""
    changing = {"loading", "ramp", "promoting", "promoted", "rolling_back", "superseded"}
    after_promotion = "promoted" in [event.new for event in journal(rollout)]
    return sum(event.new in changing or (event.new == "rolled_back" and after_promotion) for event in journal(rollout))


def test_the_stories_pass_every_point_there_is():
    passed = {state for story in STORIES.values() for state in story.split()}
    assert passed == {state.value for state in RolloutState}


@pytest.mark.parametrize("when", ["before_commit", "after_commit"])
def test_a_worker_that_is_killed_is_followed_by_one_that_goes_on(committed, world, bob, when):
    rollout = walk(begun(world, bob, ONE_STEP), "shadow")
    killed_at(f"rollouts.ramp.{when}", lambda: step(rollout))
    assert stored(rollout).state == ("shadow" if when == "before_commit" else "ramp")
    walk(rollout, "awaiting_approval")
    assert [state for state, _ in path(rollout)].count("ramp") == 1
    assert [event.sequence for event in journal(rollout)] == list(range(1, stored(rollout).revision + 1))


def killed_at(point: str, work: Callable[[], object]) -> None:
    """Do ``work`` in a process of its own, which is killed when it passes ``point``."""

    def armed() -> None:
        failpoints._armed.update(failpoints.parse(f"{point}=kill"))
        work()

    connections.close_all()  # a process that is forked must not share our conversation with the database
    process = multiprocessing.get_context("fork").Process(target=armed)
    process.start()
    process.join(timeout=60)
    assert process.exitcode == -signal.SIGKILL, f"it did not pass {point}"


def test_a_decision_that_was_made_on_an_old_revision_is_not_written(world, bob):
    rollout = begun(world, bob, ONE_STEP)
    revision = rollout.revision
    publish()
    assert services.advance(rollout_id=rollout.id, revision=revision) == "loading"
    assert services.advance(rollout_id=rollout.id, revision=revision) is None
    with pytest.raises(Conflict):
        services.pause_rollout(actor=system_actor("tests", world.deployment.tenant), rollout_id=rollout.id,
                               expected_revision=revision)  # fmt: skip
    with acting_as(PLATFORM):
        assert not Job.objects.exists()
