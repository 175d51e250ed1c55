"""Requests made up from the OpenAPI document, sent into a world of two tenants, and what every answer must keep to.

What a request does is undone after it, so each is sent by several callers into the same world.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import schemathesis
import yaml
from django.conf import settings
from django.core.handlers.wsgi import WSGIHandler
from django.core.signals import request_finished, request_started
from django.db import close_old_connections
from django.test import Client
from django_fixtures import Personas, undone
from schemathesis import Case, Response
from schemathesis.specs.openapi import checks
from world import canary, things

from controlplane.api.access import TENANT

CHECKED = [
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]
"""A status that the document does not have, such as 500, is refused by the first of them."""
_CSRF = "f" * 32
_SAME = {
    "model": "model_id", "since": "version_id", "derived_from": "version_id", "before": "request_id",
    "deployment_ids": "deployment_id",
}  # fmt: skip
"""Inputs that name a thing in other words than most routes do."""
_WRONG: dict[str, tuple[Any, ...]] = {
    "string": (7, True, []), "integer": ("1", 1.5, True), "number": ("1", True), "boolean": ("true", 1),
    "array": ({}, "x"), "object": ([], "x"),
}  # fmt: skip
"""Values that are not of a type of the document, though they look like it."""


@contextmanager
def one_connection() -> Iterator[None]:
    """Let requests leave the database's connection open, and with it the test's transaction."""
    for signal in (request_started, request_finished):
        signal.disconnect(close_old_connections)
    yield
    for signal in (request_started, request_finished):
        signal.connect(close_old_connections)


def load_operations() -> dict[str, Any]:
    """Return the operations of the committed document by their ids."""
    path = Path(__file__).parents[2] / "controlplane" / "api" / "openapi.yaml"
    document = yaml.load(path.read_text(), Loader=yaml.CSafeLoader)
    for methods in document["paths"].values():
        for operation in methods.values():
            operation.pop("security", None)  # keys and sessions are not made up
    found = [result.ok() for result in schemathesis.openapi.from_dict(document).get_all_operations()]
    return {operation.definition.raw["operationId"]: operation for operation in found}


def example_of(operation: Any) -> dict[str, Any] | None:
    """Return the body that the document gives as an example, or None."""
    body = operation.definition.raw.get("requestBody", {}).get("content", {}).get("application/json", {})
    return next((each["value"] for each in body.get("examples", {}).values()), None)


def spoiled(operation: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Return the example with one thing wrong at a time, each with the field at fault: of another type, or unknown."""
    schemas = operation.schema.raw_schema["components"]["schemas"]
    body = operation.definition.raw["requestBody"]["content"]["application/json"]
    yield from _spoiled(body["schema"], example_of(operation) or {}, schemas)


def _spoiled(schema: Any, value: dict[str, Any], schemas: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "colour", value | {"colour": "red"}
    for name, field_schema in _resolved(schema, schemas)["properties"].items():
        resolved = _resolved(field_schema, schemas)
        for wrong in _WRONG[resolved.get("type", "string")]:
            yield name, value | {name: wrong}
        if isinstance(value.get(name), dict) and "properties" in resolved:
            for inner, spoilt in _spoiled(resolved, value[name], schemas):
                yield f"{name}.{inner}", value | {name: spoilt}


def _resolved(schema: Any, schemas: Any) -> Any:
    (outer,) = schema.get("allOf", [schema])
    return schemas[outer["$ref"].rpartition("/")[2]] if "$ref" in outer else outer


def is_platform(operation: Any) -> bool:
    return operation.path.startswith("/api/v1/platform/")


@dataclass(frozen=True)
class Caller:
    """Somebody who sends requests. ``tenant`` is None for who runs the platform."""

    kind: str
    tenant: str | None
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    cookies: dict[str, str] = field(default_factory=dict, repr=False)


class Place:
    """Acme and evil with one thing of each kind, their keys and owners, and who runs the platform."""

    def __init__(self, personas: Personas) -> None:
        owners = {"acme": personas.alice, "evil": personas.mallory}
        self.things = {slug: things(getattr(personas, slug), owner) for slug, owner in owners.items()}
        self.root = _person(personas.root, None)
        self.persons = {slug: _person(owner, slug) for slug, owner in owners.items()}
        self.keys = {
            slug: Caller("key", slug, {"Authorization": f"Bearer {own['key']}"}) for slug, own in self.things.items()
        }
        self._application = WSGIHandler()

    def of(self, tenant: str) -> tuple[Caller, Caller]:
        """A tenant's key with every scope, and its owner."""
        return self.keys[tenant], self.persons[tenant]

    def send(self, case: Case, caller: Caller) -> Response:
        """Send a request, undo what it did, and check the answer against the document and for what is others'."""
        with undone():
            answer = case.call(app=self._application, headers=caller.headers, cookies=caller.cookies)
        case.validate_response(answer, checks=CHECKED)
        for tenant in self.things.keys() - {caller.tenant} if caller.tenant else ():
            leaked = [secret for secret in self._secrets(tenant) if secret in answer.text and secret not in _said(case)]
            assert not leaked, f"{caller} reads of {tenant}: {leaked}"
        return answer

    def _secrets(self, tenant: str) -> list[str]:
        own = self.things[tenant]
        return [canary(tenant), own["key"], *(value for name, value in own.items() if name.endswith("_id"))]


def _person(user: Any, tenant: str | None) -> Caller:
    client = Client()
    client.force_login(user)
    session = settings.SESSION_COOKIE_NAME
    cookies = {session: client.cookies[session].value, settings.CSRF_COOKIE_NAME: _CSRF}
    return Caller("person", tenant, {"X-CSRFToken": _CSRF}, cookies)


def _said(case: Case) -> str:
    """What the caller said itself, which an answer may repeat."""
    return f"{case.path_parameters} {case.query} {json.dumps(case.body, default=str, ensure_ascii=False)}"


def aim(case: Case, own: dict[str, str]) -> bool:
    """Let a made-up request be about the things ``own``; return whether its address or body names any of them."""
    known = {name: value for name, value in own.items() if name.endswith("_id")}
    known |= {name: own[same] for name, same in _SAME.items()}
    case.path_parameters = {name: known.get(name) or own[name] for name in case.path_parameters}
    case.query = {name: _meant(name, value, known) for name, value in (case.query or {}).items() if name != TENANT}
    if isinstance(case.body, dict):
        case.body = _meant("", case.body, known | {"revision": 1})
    named = {*_leaves(case.path_parameters), *_leaves(case.body)}
    return bool(named & set(known.values()))


def _meant(name: str, value: Any, known: dict[str, Any]) -> Any:
    if isinstance(value, dict):
        return {key: _meant(key, each, known) for key, each in value.items()}
    if isinstance(value, list):
        return [_meant(name, each, known) for each in value]
    meant = known.get(name, value)
    return meant if type(meant) is type(value) else value


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _leaves(each)
    elif isinstance(value, str):
        yield value
