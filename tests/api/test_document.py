import io
from pathlib import Path

import pytest
import yaml
from django.core.management import call_command

COMMITTED = Path(__file__).parents[2] / "controlplane" / "api" / "openapi.yaml"


SIGNED = {"put_part": "its address, which another operation returns, is the permission"}
"""Operations that ask for no key, each with its reason."""


@pytest.fixture(scope="module")
def current() -> str:
    output = io.StringIO()
    call_command("spectacular", "--validate", "--fail-on-warn", stdout=output)
    return output.getvalue()


def test_the_committed_document_is_current(current):
    assert current == COMMITTED.read_text(), "run: python manage.py spectacular --file controlplane/api/openapi.yaml"


def test_every_operation_says_how_to_authenticate_and_how_it_fails(current):
    for path, operations in yaml.safe_load(current)["paths"].items():
        for method, operation in operations.items():
            asks = {"apiKey": []} in operation.get("security", [])
            assert asks != (operation["operationId"] in SIGNED), (path, method)
            assert {"401", "403", "404", "409", "422"} <= set(operation["responses"]), (path, method)
