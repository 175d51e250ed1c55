"""The judge over made-up traffic: like versions are hardly ever stopped, bad ones nearly always, and it says why."""

import random
from collections import Counter

import numpy as np
import pytest
from msgspec.structs import replace
from traffic import Version, requests

from controlplane.rollouts.gates import NEEDS_WAIVER, Judgement, Outcome, Sample, judge, watch
from controlplane.rollouts.plan import DEFAULT_PLAN, Gate, JudgeSettings, scaled
from controlplane.rollouts.samples import FAULTS, Fault, fault_of
from dataplane.contracts.errors import Code

SETTINGS = JudgeSettings()
GOOD = Version()
LIMITED = {Outcome.FAIL, Outcome.HARD_STOP}


def said(judgement: Judgement, gate: Gate):
    return next(verdict for verdict in judgement.verdicts if verdict.gate is gate)


def worlds(count: int, candidate: Version, stable: Version = GOOD, sizes=(1500, 765), **how: object):
    """``count`` pairs of (stable, candidate) samples, the same in every run."""
    for seed in range(count):
        rng = np.random.default_rng(seed)
        yield requests(rng, sizes[0], stable, **how), requests(rng, sizes[1], candidate, **how)


def steady(count: int, **fields: object) -> list[Sample]:
    """Requests that are all alike, of 25 tenants."""
    usual = {
        "ttft_ms": 180.0, "tpot_ms": 20.0, "prompt_tokens": 100, "output_tokens": 50, "kv_blocks": 10,
        "preemptions": 0, "batch_rows": 2.0,
    }  # fmt: skip
    return [Sample(tenant_id=f"ten_{i % 25}", at_ms=i, **(usual | fields)) for i in range(count)]


# --- whose fault an error is


def test_every_code_of_the_data_plane_is_somebodys_fault():
    assert set(FAULTS) == set(Code)


def test_limits_and_callers_mistakes_are_the_callers_and_what_is_500_or_more_is_ours():
    for code, fault in FAULTS.items():
        if code.status == 429 or code.status in (401, 403, 404, 405, 413):
            assert fault is Fault.CALLER, code
        if code.status >= 500 and code is not Code.MODEL_PAUSED:
            assert fault is Fault.OURS, code
    assert fault_of("template_failed") is Fault.EITHER
    assert fault_of("a code of tomorrow") is Fault.OURS


# --- no data


@pytest.mark.parametrize(("stable", "candidate"), [(0, 0), (1000, 0), (0, 1000), (5, 5)])
def test_no_data_is_neither_a_pass_nor_a_failure(stable, candidate):
    judgement = judge(steady(stable), steady(candidate), SETTINGS, 1)
    assert judgement.outcome is Outcome.INCONCLUSIVE
    assert not {verdict.outcome for verdict in judgement.verdicts} & LIMITED
    assert watch(steady(stable), steady(candidate), SETTINGS).outcome is Outcome.INCONCLUSIVE


def test_one_request_too_few_cannot_prove_the_error_margin_and_the_words_say_how_many_can():
    assert judge(steady(1000), steady(765), SETTINGS, 1).outcome is Outcome.PASS
    judgement = judge(steady(1000), steady(764), SETTINGS, 1)
    assert (judgement.outcome, said(judgement, Gate.ERRORS).needed) == (Outcome.INCONCLUSIVE, 765)
    assert judgement.words.startswith("Cannot tell yet: failed requests 0.00% against 0.00% (+0.00 pp), limit +0.50 pp")


def test_a_measure_that_no_replica_reports_passes_nothing():
    judgement = judge(steady(1000), steady(1000, kv_blocks=None), SETTINGS, 1)
    assert judgement.words == "Cannot tell yet: KV memory per request: nothing is known of the candidate."


def test_each_look_may_spend_less_so_it_needs_more():
    assert judge(steady(1000), steady(765), SETTINGS, 2).outcome is Outcome.INCONCLUSIVE
    assert judge(steady(2000), steady(1200), SETTINGS, 2).outcome is Outcome.PASS
    with pytest.raises(ValueError, match="from 1"):
        judge(steady(10), steady(10), SETTINGS, 0)


# --- like versions


@pytest.mark.parametrize("tenants", [1, 3, 40])
def test_a_version_like_the_other_is_never_failed_and_mostly_passes(tenants):
    outcomes = Counter(judge(*arms, SETTINGS, 1).outcome for arms in worlds(12, GOOD, tenants=tenants))
    assert not outcomes.keys() & LIMITED
    assert outcomes[Outcome.PASS] >= 7, outcomes


@pytest.mark.parametrize("errors", [0.0, 0.01, 0.05])
def test_a_version_like_the_other_is_not_stopped_however_often_it_is_watched(errors):
    version = GOOD.but(errors=errors)
    for stable, candidate in worlds(6, version, version, sizes=(800, 400)):
        for seen in range(20, 401, 20):
            assert watch(stable[: 2 * seen], candidate[:seen], SETTINGS).outcome is Outcome.INCONCLUSIVE


def test_a_scaled_judge_passes_like_versions_and_stops_bad_ones_on_few_requests():
    plan = scaled(DEFAULT_PLAN, samples=0.1)
    few = plan.steps[0].min_samples
    assert few < 80
    like = Counter(judge(*arms, plan.judge, 1).outcome for arms in worlds(12, GOOD, sizes=(400, few)))
    assert not like.keys() & LIMITED
    assert like[Outcome.PASS] >= 7, like
    for bad in (GOOD.but(errors=0.4), GOOD.but(tpot=4), GOOD.but(length=0.02)):
        caught = [judge(*arms, plan.judge, 1).outcome in LIMITED for arms in worlds(6, bad, sizes=(400, few))]
        assert all(caught), bad


# --- bad versions


STOPPED = {
    "errors": (GOOD.but(errors=0.1), Gate.ERRORS, "failed requests"),
    "slow to begin": (GOOD.but(ttft=4.0), Gate.TTFT_P95, "p95 TTFT"),
    "slow steps": (GOOD.but(tpot=3.0), Gate.TPOT_P95, "p95 TPOT"),
    "answers that never end": (GOOD.but(length=50.0, limit_share=1.0), Gate.LENGTH_LIMIT, "cut at their length limit"),
    "answers cut to a token": (GOOD.but(length=0.001), Gate.LENGTH, "median answer"),
    "twice the memory": (GOOD.but(kv=2.5), Gate.KV_BLOCKS, "KV memory per request"),
}


@pytest.mark.parametrize(("bad", "gate", "noun"), STOPPED.values(), ids=STOPPED.keys())
def test_a_clearly_bad_version_is_stopped_long_before_it_could_be_judged(bad, gate, noun):
    found = [watch(*arms, SETTINGS) for arms in worlds(8, bad, sizes=(1500, 250))]
    assert all(judgement.outcome is Outcome.HARD_STOP for judgement in found)
    assert all(judgement.words.startswith("Stopped: ") and noun in judgement.words for judgement in found)
    assert all(said(judgement, gate).outcome is Outcome.HARD_STOP for judgement in found)


HARMED = {
    "errors": GOOD.but(errors=0.02),
    "slow to begin": GOOD.but(ttft=1.5),
    "slow steps": GOOD.but(tpot=1.25),
    "longer answers": GOOD.but(length=1.5),
    "shorter answers": GOOD.but(length=0.67),
    "more answers cut": GOOD.but(limit_share=0.15),
    "more memory": GOOD.but(kv=1.3),
    "preempted": GOOD.but(preempted=0.1),
}


@pytest.mark.parametrize("bad", HARMED.values(), ids=HARMED.keys())
def test_a_version_that_does_harm_beyond_a_limit_is_not_passed(bad):
    outcomes = [judge(*arms, SETTINGS, 1).outcome for arms in worlds(6, bad)]
    assert Outcome.PASS not in outcomes
    assert any(outcome in LIMITED for outcome in outcomes)


def test_slow_first_tokens_are_told_in_numbers():
    judgement = judge(steady(1000), steady(765, ttft_ms=412.0), SETTINGS, 1)
    assert judgement.words == ("Stopped: p95 TTFT 412 ms against 180 ms (×2.29), limit ×1.15, stopped beyond ×1.50.")
    verdict = said(judgement, Gate.TTFT_P95)
    assert (verdict.stable_value, verdict.candidate_value, verdict.limit) == (180, 412, 1.15)
    assert (verdict.samples_stable, verdict.samples_candidate, verdict.needed) == (1000, 765, 500)


def test_every_verdict_says_which_effect_it_could_have_seen():
    stable, candidate = next(worlds(1, GOOD))
    verdicts = judge(stable, candidate, SETTINGS, 1).verdicts
    measured = [verdict for verdict in verdicts if verdict.outcome is not Outcome.NOT_RUN]
    assert len(measured) == 7
    assert all(verdict.effect_words.startswith("could have seen ") for verdict in measured)
    (more_stable, more), less = next(worlds(1, GOOD, sizes=(4000, 3000))), Gate.TPOT_P95
    seen = [float(said(judge(*arms, SETTINGS, 1), less).effect_words.split("×")[1])
            for arms in ((stable, candidate), (more_stable, more))]  # fmt: skip
    assert seen[0] > seen[1] > 1, "more samples see smaller effects"


# --- errors


def early(errors: int, of: int = 60, code: str = "request_failed") -> list[Sample]:
    return steady(of - errors) + [
        Sample(tenant_id=f"ten_{i}", at_ms=1000 + i, error=True, error_code=code) for i in range(errors)
    ]


def test_five_errors_in_the_first_hundred_stop_a_candidate_and_four_do_not():
    assert watch(steady(2000), early(4, of=250), SETTINGS).outcome is Outcome.INCONCLUSIVE
    judgement = watch(steady(2000), early(5), SETTINGS)
    assert judgement.outcome is Outcome.HARD_STOP
    assert "5 of them among its first 60 requests" in judgement.words


def test_errors_that_the_stable_version_makes_as_well_stop_nothing():
    assert watch(early(80, of=1000), early(5), SETTINGS).outcome is Outcome.INCONCLUSIVE


def test_with_nothing_to_compare_with_errors_count_in_full():
    assert watch([], early(5), SETTINGS).outcome is Outcome.HARD_STOP


def test_texts_that_a_template_refuses_stop_nothing_at_once_but_are_not_promoted():
    candidate = early(200, of=1000, code="template_failed")
    assert watch(steady(2000), candidate, SETTINGS).outcome is Outcome.INCONCLUSIVE
    assert judge(steady(2000), candidate, SETTINGS, 1).outcome is Outcome.FAIL


def test_a_caller_that_left_is_no_error_and_its_answer_is_not_measured():
    left = [replace(sample, error_code="client_gone", output_tokens=1) for sample in steady(700)]
    judgement = judge(steady(1000), steady(765) + left, SETTINGS, 1)
    assert judgement.outcome is Outcome.PASS
    assert said(judgement, Gate.LENGTH).samples_candidate == 765
    assert said(judgement, Gate.ERRORS).samples_candidate == 1465


# --- like with like


def test_a_candidate_in_small_batches_is_compared_with_the_stable_versions_small_batches():
    """Latency grows with the batch: raw p95s would fail the stable version against itself, or let a slow one pass."""
    rng = np.random.default_rng(4)
    stable = requests(rng, 4000, GOOD, batch=8)
    like, slow = requests(rng, 900, GOOD, batch=2), requests(rng, 900, GOOD.but(tpot=1.35), batch=2)
    raw = [np.quantile([sample.tpot_ms for sample in arm], 0.95) for arm in (stable, like, slow)]
    assert raw[1] < raw[2] < raw[0], "even the slow one looks faster"
    assert said(judge(stable, like, SETTINGS, 1), Gate.TPOT_P95).outcome is Outcome.PASS
    assert said(judge(stable, slow, SETTINGS, 1), Gate.TPOT_P95).outcome in LIMITED


def test_batches_that_the_stable_version_never_had_are_not_compared():
    judgement = judge(steady(1000, batch_rows=30.0), steady(1000), SETTINGS, 1)
    assert judgement.outcome is Outcome.INCONCLUSIVE
    assert said(judgement, Gate.TPOT_P95).words == "p95 TPOT: no request has a like in the other arm"


def test_a_candidate_so_slow_that_its_batches_have_no_like_is_stopped():
    """Who answers slowly keeps its callers, so its batches grow: that must not hide it."""
    stable = steady(300, batch_rows=1.0)
    slow = steady(100, batch_rows=8.0, tpot_ms=20.0 * 4)
    for judgement in (watch(stable, slow, SETTINGS), judge(stable, slow, SETTINGS, 1)):
        assert judgement.outcome is Outcome.HARD_STOP
        assert "batches that have no like" in judgement.words
    assert watch(steady(300, batch_rows=None), slow, SETTINGS).outcome is Outcome.INCONCLUSIVE


def test_what_more_load_explains_stops_nothing():
    """Of half the traffic a single replica may have what two stable ones share: twice the batch, twice the time."""
    twice = steady(300, batch_rows=8.0, tpot_ms=20.0 * 2, ttft_ms=180.0 * 2)
    assert watch(steady(300, batch_rows=4.0), twice, SETTINGS).outcome is Outcome.INCONCLUSIVE
    small = steady(100, batch_rows=1.0)
    assert watch(steady(300, batch_rows=8.0, tpot_ms=40.0), small, SETTINGS).outcome is Outcome.INCONCLUSIVE


def test_a_tenant_that_only_the_candidate_serves_does_not_count_against_its_answers():
    other = [replace(sample, tenant_id="ten_essays", output_tokens=2000) for sample in steady(400)]
    verdict = said(judge(steady(1000), steady(400) + other, SETTINGS, 1), Gate.LENGTH)
    assert verdict.outcome is Outcome.PASS
    assert "(400 of 800 requests have a like in the stable arm)" in verdict.words


def test_requests_that_waited_for_a_start_are_not_measured():
    cold = [replace(sample, cold=True, ttft_ms=30_000.0) for sample in steady(300)]
    assert judge(steady(1000), steady(765) + cold, SETTINGS, 1).outcome is Outcome.PASS


def test_long_inputs_and_missed_prefixes_are_compared_among_themselves():
    def mixed(count: int, long: int, missed: int) -> list[Sample]:
        return (
            steady(count - long - missed, prompt_tokens=100, cached_tokens=90)
            + steady(long, prompt_tokens=4000, ttft_ms=5000.0)
            + steady(missed, prompt_tokens=100, ttft_ms=900.0)
        )

    verdict = said(judge(mixed(1000, 20, 20), mixed(1000, 300, 300), SETTINGS, 1), Gate.TTFT_P95)
    assert (verdict.outcome, verdict.candidate_value, verdict.stable_value) == (Outcome.PASS, 5000, 5000)


# --- the whole


def test_a_p99_stands_beside_the_p95_where_samples_allow():
    gates = [{verdict.gate for verdict in judge(steady(3000), steady(n), SETTINGS, 1).verdicts} for n in (2499, 2500)]
    assert gates[1] - gates[0] == {Gate.TTFT_P99, Gate.TPOT_P99}
    tail = steady(2430) + steady(70, tpot_ms=90.0)
    judgement = judge(steady(3000), tail, SETTINGS, 1)
    assert said(judgement, Gate.TPOT_P95).outcome is Outcome.PASS
    assert said(judgement, Gate.TPOT_P99).outcome in LIMITED


def test_gates_that_nothing_measures_are_said_to_be_so_and_hold_nothing_up():
    judgement = judge(steady(1000), steady(765), SETTINGS, 1)
    not_run = {verdict.gate: verdict.words for verdict in judgement.verdicts if verdict.outcome is Outcome.NOT_RUN}
    assert set(not_run) == {Gate.EVALS, Gate.SHADOW, Gate.COST}
    assert all("needs the approver's waiver" in not_run[gate] for gate in NEEDS_WAIVER)
    assert judgement.words == "All 7 gates that were run pass."


def test_little_traffic_passes_without_proof_only_where_the_settings_say_so():
    stable, candidate = steady(60), steady(40)
    assert judge(stable, candidate, SETTINGS, 1).outcome is Outcome.INCONCLUSIVE
    judgement = judge(stable, candidate, JudgeSettings(accept_unproven=True), 1)
    assert judgement.outcome is Outcome.PASS
    assert "accepted without proof: it may be +" in said(judgement, Gate.ERRORS).words


def test_neither_the_order_of_samples_nor_the_run_changes_a_judgement():
    stable, candidate = next(worlds(1, GOOD, sizes=(600, 300)))
    once = judge(stable, candidate, SETTINGS, 1)
    shuffled = random.Random(3)
    for arm in (stable, candidate):
        shuffled.shuffle(arm)
    assert judge(stable, candidate, SETTINGS, 1) == once


def test_a_judgement_says_what_it_went_by():
    judgement = judge(steady(1000), early(5), SETTINGS, 1)
    assert (judgement.stable.requests, judgement.stable.errors, judgement.stable.tenants) == (1000, 0, 25)
    assert (judgement.candidate.requests, judgement.candidate.errors) == (60, 5)
    assert (judgement.candidate.from_ms, judgement.candidate.to_ms) == (0, 1004)


def test_who_cannot_tell_says_how_many_requests_would():
    for stable, candidate in worlds(12, GOOD.but(limit_share=0.2), GOOD.but(limit_share=0.2), sizes=(800, 60)):
        verdict = said(judge(stable, candidate, SETTINGS, 1), Gate.LENGTH)
        assert verdict.outcome is Outcome.INCONCLUSIVE
        assert verdict.needed > verdict.samples_candidate
