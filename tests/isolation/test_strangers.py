"""What is another tenant's and what is not there are one thing to a stranger, in each byte and each query.

Evil's owner and evil's key ask each route that takes an id or a name about acme's things, and about things that nobody
has. The answers must be equal but for the name that was asked for and the request's own id, and so must the statements
be that the database was given: what takes the same way cannot be told apart by how long it takes.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from asking import METHODS, NO_LIMITS, ROUTES, ROWS, Asker, asking
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django_fixtures import undone
from world import things

from dataplane.contracts import keys
from tenants import services
from tenants.errors import Unauthenticated

STRANGERS = ("mallory", "ekey")
UNNAMED = {
    "token": "whoever has the link of an invitation may read it",
    "number": "of a part: it follows the name of its file",
}
"""Arguments that are no names of things, each with its reason."""
OWN_NAMES = {"api:uploads": "a model is named by who uploads to it, among its own"}
"""Routes whose names are the caller's, each with its reason."""
SIGNED = "api:upload-part"
"""Its address is the permission: it is refused before anything is looked up."""
_DOCUMENT = Path(__file__).parents[2] / "controlplane" / "api" / "openapi.yaml"
_LITERAL = re.compile(r"""'(?:[^']|'')*'|\b\d+(?:\.\d+)?\b|"s\d+_x\d+\"""")
"""What differs between two runs of one statement: its values, and the names of savepoints."""
_CSRF = re.compile(r"\b[0-9A-Za-z]{64}\b")


class Heard(NamedTuple):
    """An answer and what the database was asked for it, without what is the request's own."""

    status: int
    headers: dict[str, str]
    body: str
    statements: list[str]


def ghost(name: str) -> str:
    """Return what looks as ``name`` does and names nothing."""
    return name[:-1] + ("0" if name[-1] != "0" else "1")


def hear(asker: Asker, who: str, method: str, url: str, name: str, body: Any = None) -> Heard:
    """Ask; ``name`` is what the request asks for, which an answer may repeat."""
    with CaptureQueriesContext(connection) as asked:
        answer = asker.ask(who, method, url, "" if body is None else json.dumps(body))

    def blind(text: str) -> str:
        return _CSRF.sub("CSRF", text.replace(name, "NAME").replace(answer["x-request-id"], "REQUEST"))

    headers = {key: blind(value) for key, value in answer.items()}
    headers["cookies"] = ", ".join(sorted(answer.cookies))
    statements = [_LITERAL.sub("?", query["sql"]) for query in asked.captured_queries]
    return Heard(answer.status_code, headers, blind(answer.content.decode()), statements)


@pytest.fixture(scope="module")
def asker(django_db_setup: None, django_db_blocker: Any) -> Iterator[Asker]:
    with asking(django_db_blocker) as asker:
        asker.prove("mallory")  # so that pages which want the password again are looked at too
        yield asker


@pytest.fixture(autouse=True)
def _unlimited(settings: Any) -> None:
    settings.CACHES = NO_LIMITS


@pytest.fixture(scope="module")
def own(asker: Asker) -> dict[str, str]:
    """Evil's own things, for requests that must name some to be about acme's."""
    return things(asker.personas.evil, asker.personas.mallory)


@pytest.fixture(scope="module")
def bodies(asker: Asker) -> dict[tuple[str, str], Any]:
    """A body for each address and method of the API that takes one, as the document gives it."""
    paths = yaml.load(_DOCUMENT.read_text(), Loader=yaml.CSafeLoader)["paths"]
    found = {}
    for path, methods in paths.items():
        for method, operation in methods.items():
            content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            for example in content.get("examples", {}).values():
                found[path.format(**asker.world), method.upper()] = example["value"]
    found[address("api:webhook", asker.world), "PATCH"] = {"enabled": False}  # the document has none: all is optional
    return found


def address(route: str, names: dict[str, str]) -> str:
    return reverse(route, kwargs={each: names[each] for each in ROUTES[route]})


def named(route: str, world: dict[str, str]) -> Iterator[tuple[str, dict[str, str], dict[str, str]]]:
    """Yield each name in an address, with what is acme's and the same where that one is nobody's."""
    for name in ROUTES[route]:
        if name not in UNNAMED:
            acmes = world if name == "tenant" else world | {"tenant": "evil"}
            yield name, acmes, acmes | {name: ghost(acmes[name])}


NAMING = [
    route
    for route, arguments in ROUTES.items()
    if route.startswith(("api:", "console:")) and set(arguments) - UNNAMED.keys() and route not in OWN_NAMES
]


@pytest.mark.parametrize("route", NAMING)
def test_an_address_of_another_tenants_is_one_of_nothing(route, asker, own, bodies):
    methods = [method for method in METHODS if method in ROWS[route] or "ANY" in ROWS[route]]
    for name, theirs, nobodys in named(route, asker.world):
        for who in STRANGERS if route.startswith("api:") else STRANGERS[:1]:
            for method in methods[:1] if name == "tenant" else methods:  # one door finds the tenant for all of them
                body = bodies.get((address(route, asker.world), method), None if method == "GET" else {})
                heard = [
                    hear(asker, who, method, address(route, names), names[name], body) for names in (theirs, nobodys)
                ]
                assert heard[0] == heard[1], f"{who} {method} with another {name}"
                if who == "mallory" and (method == "GET" or route.startswith("api:")):
                    assert heard[0].status == (403 if route == SIGNED else 404), f"{method} with acme's {name}"


INSIDE = [
    ("api:deployments", "POST", "version_id", "version_id"),
    ("api:rollouts", "POST", "deployment_id", "deployment_id"),
    ("api:rollouts", "POST", "candidate_version_id", "version_id"),
    ("api:alias", "PUT", "version_id", "version_id"),
    ("api:uploads", "POST", "derived_from", "version_id"),
    ("api:keys", "POST", "deployment_ids", "deployment_id"),
    ("api:version-diff", "GET", "since", "version_id"),
    ("api:rollouts", "GET", "deployment_id", "deployment_id"),
    *(("api:requests", "GET", name, name) for name in ("key_id", "deployment_id", "version_id")),
    ("api:requests", "GET", "before", "request_id"),
]
"""Names of things in bodies and queries: route, method, field, and which of acme's things it is."""


@pytest.mark.parametrize(("route", "method", "field", "thing"), INSIDE)
def test_another_tenants_thing_in_a_request_is_nothing(route, method, field, thing, asker, own, bodies):
    url, example = address(route, own), bodies.get((address(route, asker.world), method))
    heard = []
    for value in (asker.world[thing], ghost(asker.world[thing])):
        if method == "GET":
            heard.append(hear(asker, "mallory", method, f"{url}?{field}={value}", value))
            continue
        body = example | {key: own[key] for key in example if key in own and key.endswith("_id")}
        meant = [value] if isinstance(example.get(field), list) else value
        heard.append(hear(asker, "mallory", method, url, value, body | {field: meant}))
    assert heard[0] == heard[1]
    assert method == "GET" or heard[0].status in (404, 422)


def test_another_tenant_is_no_tenant(asker):
    heard = [
        hear(asker, who, "GET", f"{reverse('api:me')}?tenant={slug}", slug)
        for who in STRANGERS
        for slug in ("acme", "acm0")
    ]
    assert heard[0] == heard[1]
    assert heard[2] == heard[3]
    assert {each.status for each in heard} == {404}


def test_a_key_that_nobody_has_is_refused_as_one_with_a_wrong_secret(asker, monkeypatch):
    made = []
    monkeypatch.setattr(
        keys, "digest", lambda text, pepper, digest=keys.digest: made.append(pepper) or digest(text, pepper)
    )
    known = keys.parse(asker.world["acme_key"])
    work = []
    for text in (keys.mint("live", known.lookup).text, keys.mint("live").text):
        made.clear()
        with undone(), CaptureQueriesContext(connection) as asked, pytest.raises(Unauthenticated) as refusal:
            services.authenticate_key(text)
        statements = [_LITERAL.sub("?", query["sql"]) for query in asked.captured_queries]
        work.append((str(refusal.value), statements, len(made)))
    assert work[0] == work[1]
