"""Browsers of the personas, and a tenant with much to show."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest
from console_world import fill
from django.test import Client
from django_fixtures import PASSWORD


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
def proven(signed_in) -> Callable[[str], Client]:
    """Sign a persona in who has just shown the password."""

    def sign_in(name: str) -> Client:
        client = signed_in(name)
        client.post("/account/reauthenticate/", {"password": PASSWORD})
        return client

    return sign_in
