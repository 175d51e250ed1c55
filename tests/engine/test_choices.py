"""A request for several: its sequences share the prompt, draw apart, and end together where the first does early."""

import pytest
from engine_harness import Driver, reference
from hypothesis import given, settings
from hypothesis import strategies as st

from dataplane.contracts.errors import Code
from dataplane.contracts.generation import FinishReason, Submit
from dataplane.contracts.sampling import SamplingParams
from dataplane.engine.intake import Refusal

PROMPT = [5, 4, 3, 2, 1] * 13
BLOCK = 8


def run_until(driver: Driver, request_id: str) -> None:
    while request_id in driver.engine._sequences and not driver.tokens[request_id]:
        driver.step()


def test_the_prompt_is_computed_once_but_for_what_no_whole_block_holds() -> None:
    driver = Driver()
    first, *others = driver.submit_several("acme", PROMPT, 4, n=4, ignore_eos=True)
    driver.run()
    driver.check_answers()
    rest = len(PROMPT) % BLOCK
    assert driver.runner.computed[first] == len(PROMPT) + 3
    assert [driver.runner.computed[other] for other in others] == [rest + 3] * 3
    assert driver.ends[first].cached_tokens == 0
    assert driver.engine.load().prompt_tokens == len(PROMPT)
    assert driver.engine.load().generation_tokens == 16


def test_the_sequences_hold_the_same_blocks_of_the_prompt() -> None:
    driver = Driver()
    ids = driver.submit_several("acme", PROMPT, 30, n=3, ignore_eos=True)
    for _ in range(4):
        driver.step()
    tables = [list(driver.sequence(sequence_id).table.block_ids) for sequence_id in ids]
    whole = len(PROMPT) // BLOCK
    assert tables[0][:whole] == tables[1][:whole] == tables[2][:whole]
    assert not set(tables[1][whole:]) & set(tables[2][whole:])
    driver.check()
    driver.run()
    driver.check_answers()


def test_the_others_go_before_what_came_after_their_request_unless_it_is_its_turn() -> None:
    driver = Driver(max_num_seqs=1, step_token_budget=128)
    first, second, third = driver.submit_several("acme", PROMPT, 3, n=3, ignore_eos=True)
    at_its_turn, late = (driver.submit("acme", [token_id] * 20, 3, ignore_eos=True) for token_id in (8, 9))
    driver.run()
    driver.check_answers()
    assert list(driver.ends) == [first, at_its_turn, second, third, late]


@settings(max_examples=40, deadline=None)
@given(data=st.data(), n=st.integers(1, 6), blocks=st.integers(14, 40))
def test_choices_are_what_each_alone_would_be_whatever_is_preempted(data: st.DataObject, n: int, blocks: int) -> None:
    driver = Driver(num_blocks=blocks, max_num_seqs=4, step_token_budget=16)
    ids = driver.submit_several("acme", PROMPT, 20, n=n, seed=3)
    for _ in range(400):
        if not driver.engine.has_work:
            break
        running = sorted(driver.scheduler.running)
        if running and data.draw(st.integers(0, 9)) == 0:
            driver.preempt(data.draw(st.sampled_from(running)))
        driver.step()
        driver.check()
    driver.run()
    driver.check_answers()
    assert set(driver.ends) == set(ids)


def test_one_choice_ends_without_the_others() -> None:
    driver = Driver()
    first, second, third = driver.submit_several("acme", PROMPT, 30, n=3, ignore_eos=True)
    for _ in range(4):
        driver.step()
    assert driver.abort(second)
    driver.run()
    assert len(driver.tokens[first]) == len(driver.tokens[third]) == 30
    driver.check_answers()


@pytest.mark.parametrize("steps", [0, 1])
def test_who_leaves_before_the_first_token_takes_all_choices_along(steps: int) -> None:
    driver = Driver(step_token_budget=16)
    ids = driver.submit_several("acme", PROMPT, 30, n=3)
    for _ in range(steps):
        driver.step()
    assert driver.abort(ids[0])
    assert not driver.abort(ids[1])
    assert not driver.engine.has_work
    assert driver.engine.load().owned_blocks == 0
    again = driver.submit_several("acme", PROMPT, 3, n=3)
    driver.run()
    assert set(again) <= set(driver.ends)


def test_an_id_that_is_used_again_brings_no_choice_of_its_old_request_back() -> None:
    driver = Driver()
    driver.engine.submit(Submit("again", "acme", PROMPT, SamplingParams(max_tokens=3), 3))
    assert driver.engine.abort("again")
    driver.engine.submit(Submit("again", "acme", PROMPT, SamplingParams(max_tokens=3)))
    ended = []
    while driver.engine.has_work:
        ended += [delta.request_id for delta in driver.engine.step() if delta.finish_reason]
    assert ended == ["again"]


def test_a_prompt_that_fails_fails_once_and_nothing_of_its_request_is_left() -> None:
    driver = Driver()
    ids = driver.submit_several("acme", PROMPT, 30, n=3)
    driver.runner.fails_for.add(ids[0])
    neighbour = driver.submit("acme", [1, 2, 3], 5, ignore_eos=True)
    driver.run()
    assert driver.ends[ids[0]].finish_reason is FinishReason.ERROR
    assert set(driver.ends) == {ids[0], neighbour}


@pytest.mark.parametrize("n", [0, 17])
def test_only_so_many_are_made_of_one_request(n: int) -> None:
    driver = Driver()
    with pytest.raises(Refusal, match="from 1 to 16") as refusal:
        driver.submit_several("acme", PROMPT, 3, n=n)
    assert refusal.value.code is Code.INVALID_PARAMETER


def test_each_choice_takes_its_place_in_the_queue() -> None:
    driver = Driver(queue_limit_per_tenant=4)
    with pytest.raises(Refusal) as refusal:
        driver.submit_several("acme", PROMPT, 3, n=5)
    assert refusal.value.code is Code.QUEUE_FULL
    driver.submit_several("acme", PROMPT, 3, n=4)


def test_choices_draw_apart_and_the_first_as_a_request_for_one() -> None:
    driver = Driver()
    ids = driver.submit_several("acme", PROMPT, 30, n=3, seed=5, ignore_eos=True)
    alone = driver.submit("acme", PROMPT, 30, seed=5, ignore_eos=True)
    driver.run()
    assert driver.tokens[ids[0]] == driver.tokens[alone] == reference(driver.requests[alone])
    assert len({tuple(driver.tokens[sequence_id]) for sequence_id in ids}) == 3
