"""What replicas of one version tell each other of the service they gave."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane.fleet.service import Exchange

gains = st.dictionaries(st.sampled_from("xy"), st.integers(0, 50), max_size=2)
rounds = st.lists(st.dictionaries(st.sampled_from("abc"), gains, min_size=1), min_size=1, max_size=12)


@given(rounds)
def test_each_replica_is_told_exactly_what_all_others_served_since_it_is_there(
    told: list[dict[str, dict[str, int]]],
) -> None:
    exchange, served, expected = Exchange(), {}, {}
    for news in told:
        served = {id_: served.get(id_, {}) for id_ in news}
        expected = {id_: expected.get(id_, {}) for id_ in news}
        for id_, units in news.items():
            for tenant_id, gain in units.items():
                served[id_][tenant_id] = served[id_].get(tenant_id, 0) + gain
                for other in news.keys() - {id_}:
                    expected[other][tenant_id] = expected[other].get(tenant_id, 0) + gain
        totals = exchange.round(served, "xy")
        for id_, units in expected.items():
            assert {k: v for k, v in totals[id_].items() if v} == {k: v for k, v in units.items() if v}


def test_a_replica_that_was_started_anew_counts_from_nothing_and_its_former_self_no_more() -> None:
    exchange = Exchange()
    exchange.round({"a": {"x": 100.0}, "b": {}}, "x")
    assert exchange.round({"b": {}, "c": {"x": 7.0}}, "x") == {"b": {"x": 107.0}, "c": {}}
    assert exchange.round({"b": {"x": 5.0}, "c": {"x": 7.0}}, "x")["c"] == {"x": 5.0}


@pytest.mark.parametrize("between", [{}, {"x": 0.0}])
def test_a_tenant_that_an_engine_forgot_begins_again_and_nothing_is_counted_twice(between: dict[str, float]) -> None:
    exchange = Exchange()
    exchange.round({"a": {"x": 100.0}, "b": {}}, "x")
    exchange.round({"a": between, "b": {}}, "x")
    assert exchange.round({"a": {"x": 3.0}, "b": {}}, "x")["b"] == {"x": 103.0}


def test_a_tenant_that_is_granted_again_does_not_bring_what_it_was_served_before() -> None:
    exchange = Exchange()
    exchange.round({"a": {"x": 100.0}, "b": {}}, "x")
    exchange.round({"a": {"x": 150.0}, "b": {}}, "")
    assert exchange.round({"a": {"x": 160.0}, "b": {}}, "x")["b"] == {"x": 110.0}
