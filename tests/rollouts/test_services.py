"""What people do with rollouts: alice owns, bob develops and drafts, carol looks, root runs the platform."""

import pytest
from rollout_world import (
    WAIVERS,
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

from controlplane.rollouts import services
from dataplane.contracts.replica import ReplicaState
from tenants.actor import acting_as, member_actor, platform_actor, system_actor


@pytest.fixture
def world(personas, monkeypatch) -> World:
    return make_world(personas.acme).install(monkeypatch)


@pytest.fixture
def bob(personas):
    return member_actor(personas.bob, "acme")


@pytest.fixture
def alice(personas):
    return member_actor(personas.alice, "acme")


def test_a_good_version_goes_through_every_step_is_approved_and_promoted(world, bob, alice):
    rollout = walk(begun(world, bob), "awaiting_approval")
    assert rollout.state == "awaiting_approval"
    assert world.arms() == {"stable": ("old", 50, "ready"), "candidate": ("new", 50, "ready")}
    approve(alice, rollout)
    assert world.arms() == {"stable": ("old", 0, "ready"), "candidate": ("new", 100, "ready")}
    assert walk(rollout, "promoted").state == "promoted"
    assert world.arms() == {"stable": ("new", 100, "none"), "previous": ("old", 0, "asleep")}
    assert path(rollout) == [
        ("draft", -1), ("preflight", -1), ("loading", -1), ("warm", -1), ("shadow", -1),
        ("ramp", 0), ("bake", 0), ("judge", 0), ("ramp", 1), ("bake", 1), ("judge", 1), ("awaiting_approval", 1),
        ("promoting", 1), ("baking_100", 1), ("promoted", 1),
    ]  # fmt: skip
    assert [event.sequence for event in journal(rollout)] == list(range(1, 16))
