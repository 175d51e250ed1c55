"""Scores of prompt and output: each token once, whatever is cached, cut into chunks or preempted."""

from typing import Any

import pytest
from engine_harness import Driver
from hypothesis import given, settings
from hypothesis import strategies as st

PROMPT = [5, 4, 3, 2, 1] * 13


def scored(driver: Driver, request_id: str) -> list[int]:
    return [score.token_id for score in driver.scores[request_id]]


@pytest.mark.parametrize("chunk", [1, 7, 64, None])
@pytest.mark.parametrize("num_tokens", [1, 2, 8, 9, 65])
def test_every_token_of_the_prompt_but_the_first_is_scored_before_the_output(
    chunk: int | None, num_tokens: int
) -> None:
    driver = Driver(prefill_chunk_tokens=chunk)
    prompt = PROMPT[:num_tokens]
    request_id = driver.submit("acme", prompt, 5, ignore_eos=True, logprobs=2, score_prompt=True)
    driver.run()
    driver.check_answers()
    assert scored(driver, request_id) == prompt[1:] + driver.tokens[request_id]


def test_a_hot_prefix_is_computed_again_for_scores_and_still_serves_others() -> None:
    driver = Driver()
    plain: dict[str, Any] = {"ignore_eos": True, "seed": 3}
    cold = driver.submit("acme", PROMPT, 5, **plain)
    driver.run()
    hot = driver.submit("acme", PROMPT, 5, logprobs=0, score_prompt=True, **plain)
    driver.run()
    assert driver.ends[hot].cached_tokens == 0
    assert scored(driver, hot) == PROMPT[1:] + driver.tokens[cold]
    after = driver.submit("acme", PROMPT, 5, logprobs=0, **plain)
    driver.run()
    assert driver.ends[after].cached_tokens == 64
    assert scored(driver, after) == driver.tokens[after] == driver.tokens[cold]


@settings(max_examples=40, deadline=None)
@given(when=st.sets(st.integers(0, 60), max_size=12), chunk=st.sampled_from([1, 7, 64]), n=st.integers(1, 3))
def test_preemption_at_any_step_repeats_no_score_and_loses_none(when: set[int], chunk: int, n: int) -> None:
    driver = Driver(prefill_chunk_tokens=chunk)
    first, *others = driver.submit_several(
        "acme", PROMPT, 10, n=n, ignore_eos=True, logprobs=1, score_prompt=True, presence_penalty=1.0
    )
    for step in range(4_000):
        if not driver.engine.has_work:
            break
        if step in when and first in driver.scheduler.running:
            driver.preempt(first)
        driver.step()
    driver.check_answers()
    assert scored(driver, first) == PROMPT[1:] + driver.tokens[first]
    for other in others:
        assert scored(driver, other) == driver.tokens[other]


def test_penalties_see_the_output_and_the_repetition_penalty_the_prompt_too() -> None:
    driver = Driver()
    with_prompt = driver.submit("acme", PROMPT, 6, ignore_eos=True, repetition_penalty=1.2)
    without = driver.submit("acme", PROMPT, 6, ignore_eos=True, presence_penalty=0.2)
    neither = driver.submit("acme", PROMPT, 6, ignore_eos=True)
    for _ in range(3):
        driver.step()
    counts = driver.sequence(with_prompt).counts
    assert counts is not None
    assert counts.token_ids[:5].tolist() == [5, 4, 3, 2, 1]
    assert sum(counts.counts) == len(driver.tokens[with_prompt])
    own = driver.sequence(without).counts
    assert own is not None
    assert set(own.token_ids) == set(driver.tokens[without])
    assert driver.sequence(neither).counts is None


def test_a_runner_that_scores_too_little_fails_that_row_only() -> None:
    driver = Driver()
    driver.runner.forgets_scores = True
    scoring = driver.submit("acme", PROMPT, 5, logprobs=1)
    plain = driver.submit("acme", PROMPT, 5, ignore_eos=True)
    driver.run()
    assert driver.ends[scoring].error_code == "request_failed"
    assert len(driver.tokens[plain]) == 5
