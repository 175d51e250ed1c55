"""Every route, every method, every persona: generated from the URLconf, judged by the table in ``matrix``."""

from collections.abc import Iterator

import pytest
from django.conf import settings as django_settings
from django.db import transaction
from django.http import HttpResponse
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver, reverse
from matrix import MATRIX, PERSONAS
from world import build

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
REFUSED = (401, 403, 404, 405)


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


def clients(personas, world) -> dict[str, Client]:
    made = {name: Client(raise_request_exception=False) for name in PERSONAS}
    for name in ("alice", "bob", "carol", "bill", "mallory", "root"):
        made[name].force_login(getattr(personas, name))
    made["akey"].defaults["HTTP_AUTHORIZATION"] = f"Bearer {world['acme_key']}"
    made["ekey"].defaults["HTTP_AUTHORIZATION"] = f"Bearer {world['evil_key']}"
    made["proc"].defaults["HTTP_AUTHORIZATION"] = f"Bearer {django_settings.PAGODA_INTERNAL_SECRET}"
    return made


def ask(client: Client, method: str, url: str) -> HttpResponse:
    """Send one request, undo what it did, return the answer."""
    undone = transaction.atomic()
    undone._from_testcase = True  # as the test's own transaction: a service's durable one may run inside
    with undone:
        response = client.generic(method, url)
        transaction.set_rollback(True)
    return response


def is_refused(response: HttpResponse) -> bool:
    to_sign_in = response.status_code == 302 and response["Location"].startswith(reverse("account_login"))
    return to_sign_in or response.status_code in REFUSED


def test_every_route_has_a_row_and_every_row_a_route():
    assert ROWS.keys() == ROUTES.keys()


@pytest.mark.parametrize("route", ROUTES)
def test_each_persona_gets_what_the_table_says(route, personas, settings):
    settings.CACHES = {"default": {"BACKEND": "django.core.cache.backends.dummy.DummyCache"}}  # no rate limits
    world = build(personas)
    url = reverse(route, kwargs={name: world[name] for name in ROUTES[route]})
    people = clients(personas, world)
    wrong = []
    rows = ROWS.get(route, {})
    for method in METHODS:
        answers = [ask(people[name], method, url) for name in PERSONAS]
        expected = rows.get(method) or rows.get("ANY")
        got = tuple(answer.status_code for answer in answers)
        if got != expected if expected else not all(map(is_refused, answers)):
            wrong.append(f"{route} {method}: expected {expected or 'refusals'}, got {' '.join(map(str, got))}")
    assert not wrong, "\n".join(wrong)
