"""acme's deployment with a candidate at hand, and the people who move it."""

import pytest
from rollout_world import World, make_world

from tenants.actor import Actor, member_actor, platform_actor


@pytest.fixture
def world(personas, monkeypatch) -> World:
    return make_world(personas.acme).install(monkeypatch)


@pytest.fixture
def alice(personas) -> Actor:
    return member_actor(personas.alice, "acme")


@pytest.fixture
def bob(personas) -> Actor:
    return member_actor(personas.bob, "acme")


@pytest.fixture
def root(personas) -> Actor:
    return platform_actor(personas.root)
