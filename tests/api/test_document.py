import io
import re
from pathlib import Path

import pytest
import yaml
from django.core.management import call_command

from controlplane.api.access import TENANT, PlatformView, TenantView
from controlplane.api.urls import urlpatterns

COMMITTED = Path(__file__).parents[2] / "controlplane" / "api" / "openapi.yaml"
METHODS = ("get", "put", "post", "patch", "delete")
SIGNED = {"put_part": "its address, which another operation returns, is the permission"}
"""Operations that ask for no key, each with its reason."""


@pytest.fixture(scope="module")
def current() -> str:
    output = io.StringIO()
    call_command("spectacular", "--validate", "--fail-on-warn", stdout=output)
    return output.getvalue()


@pytest.fixture(scope="module")
def operations(current) -> dict[tuple[str, str], dict]:
    """The operations by path and method."""
    paths = yaml.load(current, Loader=yaml.CSafeLoader)["paths"]
    return {(path, method): operation for path, methods in paths.items() for method, operation in methods.items()}


def views() -> dict[tuple[str, str], type]:
    """The views of ``/api/v1`` by path and method, as the URLconf has them."""
    found = {}
    for route in urlpatterns:
        path = "/" + re.sub(r"<\w+:(\w+)>", r"{\1}", str(route.pattern))
        if path.startswith("/api/v1/"):
            view = route.callback.view_class
            found |= {(path, method): view for method in METHODS if hasattr(view, method)}
    return found


def test_the_committed_document_is_current(current):
    assert current == COMMITTED.read_text(), (
        "run: python -m stack manage spectacular --file controlplane/api/openapi.yaml"
    )


def test_every_route_and_method_has_an_operation_and_every_operation_a_route(operations):
    assert operations.keys() == views().keys()


def test_every_operation_says_how_to_authenticate_and_how_it_fails(operations):
    for place, operation in operations.items():
        asks = {"apiKey": []} in operation.get("security", [])
        assert asks != (operation["operationId"] in SIGNED), place
        answers = set(operation["responses"])
        assert {"400", "403", "404", "406", "422", "503"} <= answers, place
        assert ("401" in answers) == asks, place
        assert ("409" in answers) == (place[1] != "get"), place
        assert ({"408", "413"} <= answers) == ("requestBody" in operation), place


def test_every_operation_says_what_it_does_and_each_answer_what_it_means(operations):
    for place, operation in operations.items():
        assert operation["description"].endswith("."), place
        assert all(answer.get("$ref") or answer["description"] for answer in operation["responses"].values()), place
    names = [operation["operationId"] for operation in operations.values()]
    assert len(names) == len(set(names))


def test_the_document_names_the_parameters_that_are_read_and_no_others(operations):
    named: dict[type, set[str]] = {}
    for place, view in views().items():
        names = {each["name"] for each in operations[place].get("parameters", ()) if each["in"] == "query"}
        assert (TENANT in names) == issubclass(view, TenantView), place
        named[view] = named.get(view, set()) | names
    for view, names in named.items():
        if issubclass(view, TenantView):
            assert names == view.takes | {TENANT}, view
        elif issubclass(view, PlatformView):
            assert names == set(), view


def test_what_comes_in_has_no_other_fields_than_the_document_says(current, operations):
    schemas = yaml.load(current, Loader=yaml.CSafeLoader)["components"]["schemas"]
    for place, operation in operations.items():
        body = operation.get("requestBody", {}).get("content", {}).get("application/json")
        if body is not None:
            name = body["schema"]["$ref"].rpartition("/")[2]
            assert schemas[name]["additionalProperties"] is False, place
