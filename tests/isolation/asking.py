"""Every route of the product as the URLconf has it, and requests to each as each persona, into one world."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.cookies import SimpleCookie
from types import SimpleNamespace
from typing import Any

from allauth.account.internal.flows.login import record_authentication
from django.conf import settings
from django.http import HttpResponse
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver
from django_fixtures import Personas, make_personas, undone
from matrix import MATRIX, PERSONAS
from world import build

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
NO_LIMITS = {"default": {"BACKEND": "django.core.cache.backends.dummy.DummyCache"}}
"""Caches in which no rate is counted: there are as many requests as routes."""


def routes() -> dict[str, list[str]]:
    """Return the routes by name, with the names of their arguments."""

    def walk(resolver: URLResolver, namespace: str, outer: list[str]) -> Iterator[tuple[str, list[str]]]:
        for pattern in resolver.url_patterns:
            arguments = [*outer, *pattern.pattern.regex.groupindex]
            if isinstance(pattern, URLPattern):
                assert pattern.name, f"the route {pattern.pattern} has no name"
                yield namespace + pattern.name, arguments
            else:
                inner = f"{namespace}{pattern.namespace}:" if pattern.namespace else namespace
                yield from walk(pattern, inner, arguments)

    return dict(walk(get_resolver(), "", []))


def table() -> dict[str, dict[str, tuple[int, ...]]]:
    """Return the statuses by route and method, in the order of the personas."""
    rows: dict[str, dict[str, tuple[int, ...]]] = {}
    for line in MATRIX.strip().splitlines():
        if line.startswith("#") or not line.strip():
            continue
        route, methods, *cells = line.split()
        statuses = tuple(int(cell) for cell in cells)
        if len(statuses) == 1:
            statuses *= len(PERSONAS)
        assert len(statuses) == len(PERSONAS), f"{route} {methods} has {len(statuses)} statuses"
        for method in methods.split(","):
            assert method in (*METHODS, "ANY"), f"{route} has a row for the unknown method {method}"
            assert method not in rows.setdefault(route, {}), f"{route} {method} has two rows"
            rows[route][method] = statuses
    return rows


ROUTES, ROWS = routes(), table()


class Asker:
    """Sends requests as each persona into a world that is the same before each of them."""

    def __init__(self, personas: Personas) -> None:
        self.personas = personas
        self.world = build(personas)
        self._people = {name: Client(raise_request_exception=False) for name in PERSONAS}
        for name, bearer in {
            "akey": self.world["acme_key"],
            "ekey": self.world["evil_key"],
            "proc": settings.PAGODA_INTERNAL_SECRET,
        }.items():
            self._people[name].defaults["HTTP_AUTHORIZATION"] = f"Bearer {bearer}"
        for name in ("alice", "bob", "carol", "bill", "mallory", "root"):
            self._people[name].force_login(getattr(personas, name))
        self._cookies = {name: client.cookies.output(header="") for name, client in self._people.items()}
        handler = self._people["nobody"].handler
        for client in self._people.values():
            client.handler = handler  # loading the middleware takes longer than a request

    def prove(self, name: str) -> None:
        """Let a person have shown its password just now."""
        session = self._people[name].session
        record_authentication(SimpleNamespace(session=session), getattr(self.personas, name), "password")
        session.save()

    def ask(self, name: str, method: str, url: str, body: str = "") -> HttpResponse:
        """Send one request, undo what it did, return the answer. A body is JSON."""
        client = self._people[name]
        client.cookies = SimpleCookie(self._cookies[name])
        with undone():
            return client.generic(method, url, body, "application/json")


@contextmanager
def asking(blocker: Any) -> Iterator[Asker]:
    """Yield an asker, for a fixture of a module: its world is made once, and gone at the end."""
    with blocker.unblock(), undone():
        yield Asker(make_personas())
