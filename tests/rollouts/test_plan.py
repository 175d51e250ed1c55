import json
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from controlplane.rollouts.plan import (
    DEFAULT_PLAN,
    MAX_SAMPLES,
    Gate,
    JudgeSettings,
    Plan,
    Step,
    from_json,
    in_words,
    least_samples,
    minimum_samples,
    plan_faults,
    scaled,
    span,
    step_times,
    to_json,
)
from tenants.errors import Invalid


def plan_of(*steps: tuple[int, int, int], **changes: object) -> Plan:
    return Plan(steps=tuple(Step(*step) for step in steps), approval_at=steps[-1][0], **changes)


def test_the_default_plan_is_1_5_25_50_then_a_person_then_all():
    assert [step.weight for step in DEFAULT_PLAN.steps] == [1, 5, 25, 50]
    assert (DEFAULT_PLAN.approval_at, DEFAULT_PLAN.keep_previous_s) == (50, 3600)
    assert plan_faults(DEFAULT_PLAN) == {}


def test_samples_follow_from_the_gates():
    needs = minimum_samples(JudgeSettings())
    assert needs[Gate.ERRORS] == 765, "539 of one look at 5 %, more where half of that is kept for later looks"
    assert needs[Gate.TTFT_P95] == needs[Gate.TPOT_P95] == 500
    assert all(step.min_samples == least_samples(JudgeSettings()) == 765 for step in DEFAULT_PLAN.steps)
    later = minimum_samples(JudgeSettings(), look=2)
    assert later[Gate.ERRORS] > needs[Gate.ERRORS], "a second look may spend less, so it needs more"


@given(margin=st.floats(0.001, 0.1))
def test_a_narrower_margin_needs_more_samples(margin):
    wide, narrow = (minimum_samples(JudgeSettings(error_margin=m))[Gate.ERRORS] for m in (margin, margin / 2))
    assert narrow > wide


@dataclass(frozen=True)
class Bad:
    plan: Plan
    field: str
    says: str


BAD = {
    "no steps": Bad(Plan(steps=()), "steps", "from 1 to"),
    "a weight of all": Bad(plan_of((100, 60, 765)), "steps", "1 to 99"),
    "a weight of nothing": Bad(plan_of((0, 60, 765)), "steps", "1 to 99"),
    "falling weights": Bad(plan_of((25, 60, 765), (5, 60, 765)), "steps", "greater than the one before"),
    "the same weight twice": Bad(plan_of((5, 60, 765), (5, 60, 765)), "steps", "greater"),
    "time that goes back": Bad(plan_of((5, -1, 765)), "steps", "hold_s"),
    "too few samples": Bad(plan_of((5, 60, 764)), "steps", "Fewer than 765 samples cannot prove what the gate errors"),
    "more samples than are read": Bad(plan_of((5, 60, MAX_SAMPLES + 1)), "steps", "min_samples"),
    "approval at no step": Bad(replace(plan_of((5, 60, 765)), approval_at=50), "approval_at", "one of them"),
    "a ramp without end": Bad(plan_of((5, 60, 765), ramp_s=10**9), "ramp_s", "seconds"),
    "kept for ever": Bad(plan_of((5, 60, 765), keep_previous_s=10**6), "keep_previous_s", "seconds"),
    "a judge that never errs": Bad(plan_of((5, 60, 765), judge=JudgeSettings(alpha=0.0)), "alpha", "from 0.001"),
    "a limit that is no number": Bad(
        plan_of((5, 60, 765), judge=JudgeSettings(ttft_limit=float("nan"))), "ttft_limit", "from"
    ),
    "a stop before its limit": Bad(
        plan_of((5, 60, 765), judge=JudgeSettings(tpot_limit=1.4)), "tpot_stop", "not before its limit"
    ),
    "a p95 of few": Bad(plan_of((5, 60, 765), judge=JudgeSettings(quantile_samples=10)), "quantile_samples", "from 20"),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
def test_what_is_out_of_bounds_is_refused_by_its_field(bad):
    faults = plan_faults(bad.plan)
    assert list(faults) == [bad.field]
    assert bad.says in faults[bad.field]
    with pytest.raises(Invalid) as refused:
        from_json(json.loads(json.dumps(to_json(bad.plan))))
    assert bad.field in refused.value.fields or "plan" in refused.value.fields


def test_too_few_samples_are_taken_where_the_settings_say_so_and_the_words_tell():
    plan = plan_of((5, 60, 30), judge=JudgeSettings(accept_unproven=True))
    assert plan_faults(plan) == {}
    assert "too few to prove" in in_words(plan)[-1]
    assert not any("too few" in line for line in in_words(DEFAULT_PLAN))


@pytest.mark.parametrize("change", [{"step": []}, {"ramp_s": "soon"}, {"ramp_s": True}, {"judge": {"alfa": 1}}])
def test_json_is_a_closed_form(change):
    with pytest.raises(Invalid, match="no plan"):
        from_json(to_json(DEFAULT_PLAN) | change)


@given(samples=st.floats(0.02, 1.0), time=st.floats(0, 1))
def test_a_scaled_plan_is_a_plan_whose_margins_its_samples_can_prove(samples, time):
    plan = scaled(DEFAULT_PLAN, samples=samples, time=time)
    assert plan_faults(plan) == {}
    assert from_json(json.loads(json.dumps(to_json(plan)))) == plan
    for name in ("error_margin", "ttft_limit", "tpot_stop", "length_limit", "share_margin", "kv_limit"):
        assert getattr(plan.judge, name) >= getattr(DEFAULT_PLAN.judge, name), "fewer samples prove less"


def test_a_plan_scaled_by_one_is_itself():
    assert scaled(DEFAULT_PLAN, samples=1.0) == DEFAULT_PLAN


def test_a_step_takes_its_time_or_its_samples_whichever_is_later():
    first, *_, last = step_times(DEFAULT_PLAN, requests_per_minute=100)
    assert (first.waits_for, first.seconds) == ("samples", 60 + 765 * 60)
    assert first.words == "1 %: about 12 h 46 min; 765 samples take that long at 100 requests a minute."
    assert (last.waits_for, last.seconds) == ("hold", 60 + 1800)


def test_without_traffic_a_step_never_ends():
    assert {(time.seconds, time.waits_for) for time in step_times(DEFAULT_PLAN, 0)} == {(None, "samples")}


@given(low=st.floats(0.1, 1e4), factor=st.floats(1, 100))
def test_more_traffic_never_makes_a_step_longer(low, factor):
    for slow, fast in zip(step_times(DEFAULT_PLAN, low), step_times(DEFAULT_PLAN, low * factor), strict=True):
        assert fast.seconds <= slow.seconds


def test_a_plan_is_told_step_by_step():
    lines = in_words(DEFAULT_PLAN)
    assert lines[0] == "1 % of the traffic for at least 10 min and 765 requests."
    assert lines[3].endswith("Then a person other than the author approves.")
    assert sum("approves" in line for line in lines) == 1


@pytest.mark.parametrize(
    ("seconds", "words"), [(0, "0 s"), (59, "59 s"), (90, "1 min 30 s"), (3600, "1 h"), (90_061, "1 d 1 h")]
)
def test_a_span_has_its_two_largest_units(seconds, words):
    assert span(seconds) == words
