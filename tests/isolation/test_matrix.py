"""Every route, every method, every persona: generated from the URLconf, judged by the table in ``matrix``."""

from collections.abc import Iterator
from http.cookies import SimpleCookie
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.http import HttpResponse
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver, reverse
from django_fixtures import Personas, make_personas, undone
from matrix import MATRIX, PERSONAS
from world import build

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
REFUSED = (401, 403, 404, 405)
MIGHTIEST = ("nobody", "alice", "root", "akey", "proc")
"""Where a method has no row and so is refused, one of each way to come in: each with all that its way may do."""


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
        self.world = build(personas)
        self._people = {name: Client(raise_request_exception=False) for name in PERSONAS}
        for name, bearer in {
            "akey": self.world["acme_key"],
            "ekey": self.world["evil_key"],
            "proc": django_settings.PAGODA_INTERNAL_SECRET,
        }.items():
            self._people[name].defaults["HTTP_AUTHORIZATION"] = f"Bearer {bearer}"
        for name in ("alice", "bob", "carol", "bill", "mallory", "root"):
            self._people[name].force_login(getattr(personas, name))
        self._cookies = {name: client.cookies.output(header="") for name, client in self._people.items()}
        handler = self._people["nobody"].handler
        for client in self._people.values():
            client.handler = handler  # loading the middleware takes longer than a request

    def ask(self, name: str, method: str, url: str) -> HttpResponse:
        """Send one request, undo what it did, return the answer."""
        client = self._people[name]
        client.cookies = SimpleCookie(self._cookies[name])
        with undone():
            return client.generic(method, url)


@pytest.fixture(scope="module")
def asker(django_db_setup: None, django_db_blocker: Any) -> Iterator[Asker]:
    """The world is made once: what a request does to it is rolled back."""
    with django_db_blocker.unblock(), undone():
        yield Asker(make_personas())


def is_refused(response: HttpResponse) -> bool:
    to_sign_in = response.status_code == 302 and response["Location"].startswith(reverse("account_login"))
    return to_sign_in or response.status_code in REFUSED


def test_every_route_has_a_row_and_every_row_a_route():
    assert ROWS.keys() == ROUTES.keys()


@pytest.mark.parametrize("route", ROUTES)
def test_each_persona_gets_what_the_table_says(route, asker, settings):
    settings.CACHES = {"default": {"BACKEND": "django.core.cache.backends.dummy.DummyCache"}}  # no rate limits
    url = reverse(route, kwargs={name: asker.world[name] for name in ROUTES[route]})
    rows, wrong = ROWS.get(route, {}), []
    for method in METHODS:
        expected = rows.get(method) or rows.get("ANY")
        answers = [asker.ask(name, method, url) for name in (PERSONAS if expected else MIGHTIEST)]
        got = tuple(answer.status_code for answer in answers)
        if got != expected if expected else not all(map(is_refused, answers)):
            wrong.append(f"{route} {method}: expected {expected or 'refusals'}, got {' '.join(map(str, got))}")
    assert not wrong, "\n".join(wrong)
