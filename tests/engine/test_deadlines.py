"""A request without a token in time ends with an error that says what it waited for, and leaves nothing behind."""

import pytest
from engine_harness import Driver
from hypothesis import given
from hypothesis import strategies as st

from dataplane.contracts.catalog import Share
from dataplane.contracts.generation import FinishReason

STEP_S = 0.1
LONG = [5, 4, 3, 2, 1] * 8


def timed_out(driver: Driver, request_id: str) -> str:
    """The sentence of a request that ended at its deadline."""
    end = driver.ends[request_id]
    assert (end.finish_reason, end.error_code, end.token_ids) == (FinishReason.ERROR, "queue_timeout", [])
    assert driver.tokens[request_id] == []
    return end.error_message


def steps_until_end(driver: Driver, request_id: str) -> int:
    steps = 0
    while request_id not in driver.ends:
        driver.step()
        driver.check()
        steps += 1
    return steps


@pytest.mark.parametrize(
    ("cause", "engine", "share"),
    [
        ("free KV memory or a free slot", {"num_blocks": 9}, Share()),
        ("free KV memory or a free slot", {"max_num_seqs": 1}, Share()),
        ("a part of its tenant's own cap", {}, Share(cap_tokens=72)),
    ],
    ids=["memory", "slots", "cap"],
)
def test_a_request_that_waits_too_long_says_for_what_and_its_neighbour_goes_on(
    cause: str, engine: dict[str, int], share: Share
) -> None:
    driver = Driver({"acme": share}, step_s=STEP_S, **engine)
    running = driver.submit("acme", LONG, 20, ignore_eos=True)
    driver.step()
    waiting = driver.submit("acme", LONG[::-1], 8, queue_wait_s=0.45)
    assert steps_until_end(driver, waiting) == 6  # the first that begins after 0.45 s
    sentence = timed_out(driver, waiting)
    assert cause in sentence
    assert "0.5 s" in sentence
    assert driver.engine.load().num_waiting == 0
    driver.run()
    driver.check_answers()
    assert len(driver.tokens[running]) == 20


def test_a_prompt_that_is_not_computed_in_time_is_freed_at_once() -> None:
    driver = Driver(step_s=STEP_S, prefill_chunk_tokens=8)
    slow = driver.submit("acme", LONG, queue_wait_s=0.25)
    assert steps_until_end(driver, slow) == 4
    assert "its prompt to be computed" in timed_out(driver, slow)
    load = driver.engine.load()
    assert load.owned_blocks == load.num_running == 0


def test_with_its_first_token_in_time_a_request_may_take_as_long_as_it_likes() -> None:
    driver = Driver(step_s=STEP_S)
    quick = driver.submit("acme", [5, 4], 40, queue_wait_s=0.15, ignore_eos=True)
    driver.step()
    driver.step()
    driver.preempt(quick)
    driver.run()
    driver.check_answers()
    assert driver.ends[quick].finish_reason is FinishReason.LENGTH


def test_another_choice_that_finds_no_room_in_time_ends_too() -> None:
    driver = Driver(step_s=STEP_S, max_num_seqs=1)
    first, second = driver.submit_several("acme", [5, 4], 40, n=2, queue_wait_s=0.35, ignore_eos=True)
    steps_until_end(driver, second)
    timed_out(driver, second)
    assert first not in driver.ends


def test_the_deadline_of_an_ended_request_is_not_that_of_the_next_one_of_its_id() -> None:
    driver = Driver(step_s=STEP_S, prefill_chunk_tokens=8)
    first = driver.submit("acme", [5, 4], 1, queue_wait_s=0.35)
    driver.run()
    del driver.requests[first], driver.ends[first]
    assert driver.submit("acme", LONG, ignore_eos=True) == first  # no token before 0.6 s
    driver.run()
    assert driver.ends[first].finish_reason is FinishReason.LENGTH


@given(
    st.lists(st.tuples(st.integers(1, 40), st.sampled_from([None, 0.15, 0.45, 0.95, 2.95])), min_size=1, max_size=12)
)
def test_only_what_has_no_token_in_time_ends_so_and_all_blocks_come_back(
    requests: list[tuple[int, float | None]],
) -> None:
    driver = Driver(step_s=STEP_S, num_blocks=12, max_num_seqs=2, step_token_budget=8)
    waits = {driver.submit("acme", LONG[:length], 6, queue_wait_s=wait_s): wait_s for length, wait_s in requests}
    heard_s: dict[str, float] = {}
    while driver.engine.has_work:
        begun_s = driver.now_s
        for delta in driver.step():
            heard_s.setdefault(delta.request_id, begun_s - driver.arrived_s[delta.request_id])
        driver.check()
    driver.check_answers()
    for request_id, wait_s in waits.items():
        if driver.ends[request_id].error_code:
            timed_out(driver, request_id)
            assert wait_s is not None
            assert wait_s <= heard_s[request_id] < wait_s + STEP_S
        else:
            assert wait_s is None or heard_s[request_id] < wait_s
    load = driver.engine.load()
    assert load.free_blocks + load.cached_blocks == load.total_blocks
