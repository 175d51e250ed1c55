"""Browsers of the personas, and a tenant with much to show."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest
from console_world import fill
from django.test import Client
from django.utils import timezone
from django_fixtures import PASSWORD
from rollout_pages_world import GOOD, said
from rollout_world import World, make_world

from controlplane import servers
from controlplane.rollouts.gates import Outcome
from controlplane.servers import Answer, GatewayAnswer
from tenants.actor import member_actor


@pytest.fixture
def signed_in(personas) -> Callable[[str], Client]:
    """Return a signed_in in which the persona of that name is signed in."""

    def sign_in(name: str) -> Client:
        client = Client()
        client.force_login(getattr(personas, name))
        return client

    return sign_in


@pytest.fixture
def alice(signed_in) -> Client:
    return signed_in("alice")


@pytest.fixture
def root(signed_in) -> Client:
    return signed_in("root")


@pytest.fixture
def busy(personas) -> SimpleNamespace:
    """Acme with a served deployment, keys and requests of the last hour."""
    return fill(personas)


@pytest.fixture
def answering(monkeypatch) -> Callable[..., None]:
    """Let Redis and gateway answer well, or as the test says, without asking any that runs on this machine."""

    def answer(redis: Answer | None = None, gateway: GatewayAnswer | None = None) -> None:
        monkeypatch.setattr(servers, "ask_redis", lambda: redis or Answer(timezone.now(), 1))
        monkeypatch.setattr(servers, "ask_gateway", lambda: gateway or GatewayAnswer(2, catalog=7))

    answer()
    return answer


@pytest.fixture
def proven(signed_in) -> Callable[[str], Client]:
    """Sign a persona in who has just shown the password."""

    def sign_in(name: str) -> Client:
        client = signed_in(name)
        client.post("/account/reauthenticate/", {"password": PASSWORD})
        return client

    return sign_in


@pytest.fixture
def world(personas, monkeypatch) -> World:
    """Acme's rollouts, which the judge finds good."""
    made = make_world(personas.acme).install(monkeypatch)
    made.judgement = said(Outcome.PASS, GOOD)
    return made


@pytest.fixture
def bobs(personas) -> object:
    return member_actor(personas.bob, "acme")


@pytest.fixture
def bob(signed_in) -> Client:
    return signed_in("bob")
