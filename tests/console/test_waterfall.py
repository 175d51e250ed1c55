import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from console.waterfall import ROW, UNTOLD, Measured, waterfall
from dataplane.contracts.usage import Phases

durations = st.none() | st.integers(0, 3_600_000)
phases = st.builds(
    Phases,
    auth_ms=durations, admission_ms=durations, cold_ms=durations, own_budget_ms=durations, fair_share_ms=durations,
    memory_ms=durations, prefill_ms=durations, decode_ms=durations, preempted_ms=durations,
)  # fmt: skip
measurements = st.builds(
    Measured,
    phases=phases,
    earlier_ms=st.lists(durations, max_size=2).map(tuple),
    ttft_ms=durations,
    duration_ms=durations,
    reached=st.booleans(),
)

WHOLE = Measured(
    phases=Phases(
        auth_ms=2, admission_ms=3, cold_ms=640, own_budget_ms=0, fair_share_ms=180, memory_ms=40, prefill_ms=310,
        decode_ms=1850, preempted_ms=240,
    ),
    ttft_ms=1215,
    duration_ms=3080,
)  # fmt: skip


def took(fall) -> dict[str, int | None]:
    return {step.name: step.took_ms for step in fall.steps}


def test_phases_follow_one_another_from_the_arrival_to_the_end():
    fall = waterfall(WHOLE)
    assert [(step.name, step.began_ms, step.took_ms) for step in fall.steps] == [
        ("Auth", 0, 2), ("Admission", 2, 3), ("Cold wait", 5, 640), ("Handover", 645, 45), ("Own budget", 690, 0),
        ("Fair share", 690, 180), ("Full memory", 870, 40), ("Prefill", 910, 310), ("Decode", 1220, 1850),
        ("Delivery", 3070, 15),
    ]  # fmt: skip
    assert (fall.total_ms, fall.is_whole, fall.has_gaps) == (3085, True, False)


def test_the_preempted_part_of_the_decode_is_marked():
    fall = waterfall(WHOLE)
    assert next(step.detail for step in fall.steps if step.name == "Decode") == "240 ms of it preempted"
    decode, preempted = [span for span in fall.spans if 8 * ROW <= span.y < 9 * ROW]
    assert preempted.width < decode.width
    assert preempted.series != decode.series


def test_what_is_unknown_has_no_bar_and_the_rest_is_one_of_its_own():
    fall = waterfall(Measured(phases=Phases(auth_ms=1, admission_ms=2, cold_ms=0), duration_ms=900))
    assert took(fall)["Prefill"] is None
    assert took(fall)["Not told apart"] == 900
    assert ("Prefill", "unknown") in fall.lines
    assert [span.series for span in fall.spans if span.width > 50] == [UNTOLD]
    assert fall.has_gaps


def test_a_call_that_came_to_no_replica_has_no_phases_of_one():
    fall = waterfall(Measured(phases=Phases(auth_ms=1, admission_ms=2, cold_ms=500), duration_ms=500, reached=False))
    assert list(took(fall)) == ["Auth", "Admission", "Cold wait"]


@pytest.mark.parametrize(("earlier_ms", "expected"), [((), "none"), ((800,), 800), ((800, 20), 820), ((None, 3), None)])
def test_earlier_attempts_are_a_phase_whose_length_may_be_unknown(earlier_ms, expected):
    fall = waterfall(Measured(phases=WHOLE.phases, earlier_ms=earlier_ms, ttft_ms=1215, duration_ms=3080))
    assert took(fall).get("Earlier attempts", "none") == expected
    assert fall.is_whole == (None not in earlier_ms)


def test_before_anything_is_known_nothing_is_drawn():
    fall = waterfall(Measured(phases=Phases()))
    assert fall.spans == ()
    assert fall.total_ms == 0
    assert not fall.is_whole


@settings(deadline=None)  # a busy machine is no failure
@given(measurements)
def test_every_bar_lies_in_the_picture_and_in_its_row(measured):
    fall = waterfall(measured)
    assert fall.height == ROW * len(fall.steps)
    for span in fall.spans:
        assert 0 <= span.x <= span.x + span.width <= 100.01
        assert span.width > 0
        assert 0 <= span.y <= span.y + span.height <= fall.height


@settings(deadline=None)  # a busy machine is no failure
@given(measurements)
def test_an_unknown_phase_is_never_told_as_a_number_and_known_ones_add_up_to_the_whole(measured):
    fall = waterfall(measured)
    drawn = {int(span.y // ROW) for span in fall.spans}
    for row, (step, (_, words)) in enumerate(zip(fall.steps, fall.lines, strict=True)):
        assert (words == "unknown") == (step.took_ms is None)
        assert (row in drawn) == bool(step.took_ms)
    assert sum(step.took_ms or 0 for step in fall.steps) == fall.total_ms
