"""Two people, and the clock, on one rollout: one winner and a Conflict for the other, and no rollback ever loses."""

import random
from collections.abc import Callable
from functools import partial

import pytest
from domain import PLATFORM
from racing import MANY, at_once
from rollout_world import (
    ONE_STEP,
    World,
    approve,
    begun,
    change,
    journal,
    make_world,
    path,
    publish,
    stored,
    walk,
)

from controlplane.deployments.models import DeploymentArm
from controlplane.deployments.services.arms import set_arms
from controlplane.jobs.queue import enqueue
from controlplane.jobs.run import run_job
from controlplane.rollouts import services
from controlplane.rollouts.models import Rollout
from controlplane.rollouts.states import RolloutState
from controlplane.rollouts.view import arms_of
from tenants.actor import Actor, acting_as, member_actor, platform_actor
from tenants.errors import Conflict

FEW = [6, pytest.param(200, marks=pytest.mark.slow)]


@pytest.fixture
def world(committed, personas, monkeypatch) -> World:
    return make_world(personas.acme).install(monkeypatch)


@pytest.fixture
def people(world, personas) -> tuple[Actor, Actor, Actor]:
    """Alice, who owns; bob, who drafts; root, who runs the platform."""
    return member_actor(personas.alice, "acme"), member_actor(personas.bob, "acme"), platform_actor(personas.root)


def put_into(rollout: Rollout, state: RolloutState, **fields: object) -> Rollout:
    """Set a rollout back for the next race, its arms with it: a walk for each would take most of the time."""
    change(
        rollout, state=state.value, paused_from="", reason="", ended_at=None, previous_until=None, unready_since=None,
        **fields,
    )  # fmt: skip
    put = stored(rollout)
    with acting_as(PLATFORM):
        set_arms(put.deployment, arms_of(put.view))
    publish()
    return put


def waiting(rollout: Rollout) -> Rollout:
    """Let the rollout wait for an approval."""
    nobody = {"approved_by": None, "approved_at": None, "approved_step": None, "approved_digest": ""}
    return put_into(rollout, RolloutState.AWAITING_APPROVAL, step=0, due_at=None, **nobody)


def race(*calls: Callable[[], object]) -> list[object]:
    """Start the calls together, in any order; return what came of each, in the order given."""
    order = random.sample(range(len(calls)), len(calls))
    results = dict(zip(order, at_once(*(calls[index] for index in order)), strict=True))
    return [results[index] for index in range(len(calls))]


def moves_since(rollout: Rollout, revision: int) -> list[str]:
    return [event.new for event in journal(rollout) if event.sequence > revision]


def is_whole(world: World, rollout: Rollout) -> None:
    """The arms are those of the state, and the journal has each revision once."""
    found = stored(rollout)
    with acting_as(PLATFORM):
        arms = list(DeploymentArm.objects.filter(deployment=world.deployment))
    assert sum(arm.weight for arm in arms) == 100
    assert {(arm.name, arm.version_id, arm.weight) for arm in arms} == {
        (arm.name, arm.version_id, arm.weight) for arm in arms_of(found.view)
    }
    assert [event.sequence for event in journal(rollout)] == list(range(1, found.revision + 1))


@pytest.mark.parametrize("many", MANY)
def test_of_two_who_approve_abort_or_pause_what_both_have_seen_one_does(world, people, many):
    alice, bob, root = people
    rollout = walk(begun(world, bob, ONE_STEP), "awaiting_approval")

    def act(service: Callable[..., object], actor: Actor, seen: Rollout) -> Callable[[], object]:
        return partial(service, actor=actor, rollout_id=seen.id, expected_revision=seen.revision)

    for number in range(many):
        seen = waiting(rollout)
        one = partial(approve, alice, seen)
        other, leads_to = [
            (partial(approve, root, seen), {"promoting"}),
            (act(services.abort_rollout, bob, seen), {"promoting"}),  # it has traffic: to abort is refused as well
            (act(services.pause_rollout, root, seen), {"promoting", "paused"}),
        ][number % 3]
        results = race(one, other)
        assert sorted(type(result).__name__ for result in results) == ["Conflict", "Rollout"]
        (moved,) = moves_since(rollout, seen.revision)
        assert moved in leads_to
        is_whole(world, rollout)


@pytest.mark.parametrize("many", FEW)
def test_of_a_start_and_an_abort_of_one_draft_one_is_done(world, people, many):
    _, bob, root = people
    rollout = services.create_rollout(
        actor=bob, deployment_id=world.deployment.id, candidate_version_id=world.candidate.id, plan=ONE_STEP
    )
    for _ in range(many):
        seen = put_into(rollout, RolloutState.DRAFT, due_at=None)
        said = {"rollout_id": seen.id, "expected_revision": seen.revision}
        results = race(
            partial(services.start_rollout, actor=bob, **said), partial(services.abort_rollout, actor=root, **said)
        )
        assert sorted(type(result).__name__ for result in results) == ["Conflict", "Rollout"]
        assert moves_since(rollout, seen.revision) in (["preflight"], ["aborted"])


@pytest.mark.parametrize("many", MANY)
def test_a_rollback_is_applied_whatever_it_races_with(world, people, many):
    alice, bob, root = people
    rollout = walk(begun(world, bob, ONE_STEP), "awaiting_approval")
    for number in range(many):
        seen = waiting(rollout)
        said = {"rollout_id": seen.id, "expected_revision": seen.revision}
        rivals = [
            partial(approve, alice, seen),
            partial(services.pause_rollout, actor=bob, **said),
            partial(services.roll_back, actor=bob, rollout_id=seen.id),
            partial(services.create_rollout, actor=bob, deployment_id=world.deployment.id,
                    candidate_version_id=world.candidate.id, plan=ONE_STEP),
        ]  # fmt: skip
        answer, rival = race(partial(services.roll_back, actor=root, rollout_id=seen.id), rivals[number % 4])
        assert isinstance(answer, services.Rollback)
        applied = [each for each in (answer, rival) if isinstance(each, services.Rollback) and each.applied]
        assert len(applied) == 1
        moves = moves_since(rollout, seen.revision)
        assert moves[-1] == "rolling_back"
        assert moves[:-1] in ([], ["promoting"], ["paused"])
        assert len(moves) == 1 + isinstance(rival, Rollout)
        assert world.arms() == {"stable": ("old", 100, "none")}
        is_whole(world, rollout)


@pytest.mark.parametrize("many", FEW)
def test_a_rollback_beats_the_promotion_that_it_races_with(world, people, many):
    alice, bob, root = people
    rollout = approve(alice, walk(begun(world, bob, ONE_STEP), "awaiting_approval"))
    walk(rollout, "baking_100")
    for _ in range(many):
        seen = put_into(rollout, RolloutState.BAKING_100, due_at=rollout.created_at)
        tick = partial(services.advance, rollout_id=seen.id, revision=seen.revision)
        answer, _ = race(partial(services.roll_back, actor=root, rollout_id=seen.id), tick)
        assert isinstance(answer, services.Rollback)
        assert answer.applied
        moves = moves_since(rollout, seen.revision)
        assert moves in (["rolling_back"], ["promoted", "rolling_back"])
        publish()
        assert walk(rollout, "rolled_back").state == "rolled_back"
        assert world.arms() == {"stable": ("old", 100, "none")}
        is_whole(world, rollout)


@pytest.mark.parametrize("many", MANY)
def test_of_many_rollouts_drafted_at_once_for_one_deployment_one_is_made(world, people, many):
    draft = partial(
        services.create_rollout,
        actor=people[1], deployment_id=world.deployment.id, candidate_version_id=world.candidate.id, plan=ONE_STEP,
    )  # fmt: skip
    results = at_once(*[draft] * many)
    assert sum(isinstance(result, Rollout) for result in results) == 1
    assert sum(isinstance(result, Conflict) for result in results) == many - 1


def test_a_tick_that_is_delivered_ten_times_has_one_effect(world, people):
    _, bob, _ = people
    rollout = begun(world, bob, ONE_STEP)
    while stored(rollout).state != "bake":
        publish()
        seen = stored(rollout)
        advance = partial(services.advance, rollout_id=seen.id, revision=seen.revision)
        effects = [result for result in at_once(*[advance] * 10) if result is not None]
        assert effects == [stored(rollout).state]
        assert stored(rollout).revision == seen.revision + 1
    assert [state for state, _ in path(rollout)] == ["draft", "preflight", "loading", "warm", "shadow", "ramp", "bake"]
    is_whole(world, rollout)


def test_a_job_that_is_delivered_ten_times_is_run_once(world, people):
    _, bob, _ = people
    rollout = begun(world, bob, ONE_STEP)
    with acting_as(PLATFORM):
        job = enqueue(kind="rollouts.tick", key="once", payload={})
    done = [result for result in at_once(*[partial(run_job, job.id)] * 10) if result is not None]
    assert done == ["done"]
    assert (stored(rollout).state, stored(rollout).revision) == ("loading", rollout.revision + 1)


@pytest.mark.parametrize("many", FEW)
def test_what_a_freeze_meets_is_done_before_it_or_refused(world, people, many):
    alice, bob, root = people
    rollout = walk(begun(world, bob, ONE_STEP), "awaiting_approval")
    for _ in range(many):
        seen = waiting(rollout)
        frozen, approved = race(
            partial(services.freeze_rollouts, actor=root, reason="the holidays"), partial(approve, alice, seen)
        )
        assert not isinstance(frozen, Conflict)
        assert isinstance(approved, Rollout | Conflict)
        assert len(moves_since(rollout, seen.revision)) == isinstance(approved, Rollout)
        again = stored(rollout)
        assert services.advance(rollout_id=again.id, revision=again.revision) is None, "it moved on while frozen"
        services.unfreeze_rollouts(actor=root)
