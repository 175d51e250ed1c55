import pytest
from gateway_world import report
from hypothesis import given
from hypothesis import strategies as st

from dataplane.contracts.replica import ReplicaState
from dataplane.gateway import eta

NOW_MS = 1_000_000


@pytest.mark.parametrize(
    ("row", "expected_s"),
    [
        ({"idle": True, "eta_ms": 8_000, "since_ms": 1}, 8.0),
        ({"eta_ms": 8_000, "since_ms": NOW_MS - 3_000}, 5.0),
        ({"eta_ms": 8_000, "since_ms": NOW_MS - 7_500}, 2.0),
        ({"eta_ms": 8_000, "since_ms": NOW_MS - 60_000}, 2.0),
        ({"eta_ms": 8_000, "since_ms": NOW_MS + 60_000}, 8.0),
        ({"eta_ms": None}, None),
    ],
    ids=["at rest", "under way", "nearly", "overdue", "by a clock that is ahead", "never measured"],
)
def test_a_start_is_expected_by_what_starts_took_before(row: dict, expected_s: float | None) -> None:
    assert eta.expected_s([report("rep", state=ReplicaState.LOADING, **row)], NOW_MS) == expected_s


def test_the_first_of_several_counts() -> None:
    rows = [report("a", eta_ms=9_000, idle=True), report("b"), report("c", eta_ms=4_000, idle=True)]
    assert eta.expected_s(rows, NOW_MS) == 4.0
    assert eta.expected_s([], NOW_MS) is None


@given(st.none() | st.floats(0, 600), st.floats(0, 1, exclude_max=True))
def test_nobody_is_told_to_come_before_the_model_is_expected(expected_s: float | None, drawn: float) -> None:
    said_s = eta.come_again_s(expected_s, lambda: drawn)
    assert max(1.0, expected_s or 0) <= said_s
    assert said_s <= max(1.0, expected_s or 5.0) + max(3.0, (expected_s or 0) / 2)


@given(st.none() | st.floats(0, 600))
def test_those_turned_away_together_come_back_over_some_seconds(expected_s: float | None) -> None:
    first, last = (eta.come_again_s(expected_s, lambda drawn=drawn: drawn) for drawn in (0.0, 0.999))
    assert last - first >= 2.9
