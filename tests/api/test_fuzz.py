"""Made-up requests to every operation of the OpenAPI document, by two tenants and the platform.

The document is the judge: no status and no body that it does not have, nothing taken that it forbids. And nobody
reaches, changes or reads what is another tenant's.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django_fixtures import make_personas, undone
from fuzzing import Place, aim, example_of, is_platform, load_operations, one_connection, spoiled
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import negative_data_rejection

from controlplane.api.access import TENANT

OPERATIONS = load_operations()
TAKING = {name: each for name, each in OPERATIONS.items() if each.body or len(each.query) > 1}
"""The operations that take more than ``tenant``."""
WITH_EXAMPLE = [name for name, each in OPERATIONS.items() if example_of(each)]
REFUSED = (400, 403, 404, 422)
"""What a stranger may hear of a thing. A 409 would say that there is one."""


def examples(name: str) -> int:
    """Return how many requests are made up; fewer where nothing but ids is taken."""
    return 3 if name in TAKING else 2


@pytest.fixture(scope="module")
def place(django_db_setup: None, django_db_blocker: Any) -> Iterator[Place]:
    """The world is made once: what a request does to it is undone."""
    with django_db_blocker.unblock(), one_connection(), undone():
        yield Place(make_personas())


@pytest.fixture(autouse=True)
def _own_store(settings: Any, tmp_path: Path) -> None:
    settings.PAGODA_HOME = tmp_path


def tried(count: int, strategy: st.SearchStrategy[Any], property_: Callable[[Any], None]) -> None:
    """Try a property on the same examples each time."""
    bounded = settings(
        max_examples=count, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],  # a request is short: to shrink it would take minutes
    )  # fmt: skip
    bounded(given(strategy)(property_))()


def sound(place: Place, operation: Any, count: int) -> None:
    """Send requests as the document allows them, most of them about things that there are."""

    def holds(data: st.DataObject) -> None:
        case = data.draw(operation.as_strategy())
        example = example_of(operation)
        if example and case.body and isinstance(case.body, dict) and data.draw(st.integers(0, 2), "made up") < 2:
            made_up = data.draw(st.sampled_from([None, *sorted(case.body)]), "but for")
            case.body = example | ({made_up: case.body[made_up]} if made_up else {})
        ours, theirs = data.draw(st.permutations(["acme", "evil"]), "whose")
        kind = data.draw(st.sampled_from([place.persons, place.keys]), "by")
        mine, other = kind[ours], kind[theirs]
        aimed = data.draw(st.integers(0, 3), "at") < 3
        named = aimed and aim(case, place.things[ours])
        if is_platform(operation):
            place.send(case, place.root)
            assert place.send(case, mine).status_code == 404
            return
        answer, to_other = place.send(case, mine), place.send(case, other)
        if aimed:
            assert answer.status_code != 404, f"{mine} does not reach its own: {answer.text}"
        if named:
            assert to_other.status_code in REFUSED, f"{other} reaches what is not its own: {to_other.text}"
            if answer.status_code < 300 and case.path_parameters:
                assert to_other.status_code == 404, to_other.text

    tried(count, st.data(), holds)


def refused(place: Place, operation: Any, count: int) -> None:
    """Send requests that the document forbids, about things that there are, by who may do everything."""

    def holds(data: st.DataObject) -> None:
        case = data.draw(operation.as_strategy(generation_mode=GenerationMode.NEGATIVE))
        own = place.things["acme"]
        case.path_parameters = {name: own[name] for name in case.path_parameters}
        case.query.pop(TENANT, None)
        caller = place.root if is_platform(operation) else place.persons["acme"]
        answer = place.send(case, caller)
        case.validate_response(answer, checks=[negative_data_rejection])

    tried(count, st.data(), holds)


@pytest.mark.parametrize("name", OPERATIONS)
def test_what_the_document_allows_is_answered_as_it_says_and_reaches_ones_own_things_only(name, place):
    sound(place, OPERATIONS[name], examples(name))


@pytest.mark.parametrize("name", WITH_EXAMPLE)
def test_an_example_with_one_thing_wrong_is_refused_by_the_name_of_that_thing(name, place):
    operation = OPERATIONS[name]
    caller = place.root if is_platform(operation) else place.persons["acme"]
    for field, body in spoiled(operation):
        case = operation.Case(
            path_parameters=dict.fromkeys(each.name for each in operation.path_parameters), body=body,
            media_type="application/json",
        )  # fmt: skip
        aim(case, place.things["acme"])
        answer = place.send(case, caller)
        assert answer.status_code == 422, (field, body, answer.text)
        assert all(name.startswith(field) for name in answer.json()["error"]["fields"]), (field, answer.text)


@pytest.mark.parametrize("name", WITH_EXAMPLE)
def test_each_example_of_the_document_is_taken_or_comes_at_the_wrong_time(name, place):
    operation = OPERATIONS[name]
    own = place.things["acme"]
    case = operation.Case(
        path_parameters=dict.fromkeys(each.name for each in operation.path_parameters),
        body=example_of(operation), media_type="application/json",
    )  # fmt: skip
    aim(case, own)
    answer = place.send(case, place.root if is_platform(operation) else place.persons["acme"])
    assert answer.status_code < 300 or answer.status_code == 409, answer.text


@pytest.mark.parametrize("name", TAKING)
def test_what_the_document_forbids_is_refused(name, place):
    refused(place, OPERATIONS[name], examples(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", OPERATIONS)
def test_what_the_document_allows_is_sound_ten_times_over(name, place):
    sound(place, OPERATIONS[name], 10 * examples(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", TAKING)
def test_what_the_document_forbids_is_refused_ten_times_over(name, place):
    refused(place, OPERATIONS[name], 10 * examples(name))
