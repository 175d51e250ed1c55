"""All rows taken: who has most per weight gives one to who has fewest, and goes on where it was."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import pytest
from engine_harness import Driver
from hypothesis import given
from hypothesis import strategies as st

from dataplane.contracts.catalog import Share
from dataplane.engine.runner import Row, RowResult


def crowded(shares: dict[str, Share] | None = None, **settings: Any) -> Driver:
    """A driver whose rows one tenant has all."""
    driver = Driver(shares or {}, **{"max_num_seqs": 4, "num_blocks": 200} | settings)
    for number in range(6):
        driver.submit("many", [number + 1] * 8, 30, ignore_eos=True)
    driver.step()
    return driver


def test_one_that_comes_gets_a_row_at_once_and_nothing_is_computed_again() -> None:
    driver = crowded()
    newcomer = driver.submit("few", [9] * 8, 4, ignore_eos=True)
    driver.step()
    assert driver.tokens[newcomer]
    many, few = driver.tenant("many"), driver.tenant("few")
    assert (many.num_rows, few.num_rows, many.load().num_paused, many.load().pauses) == (3, 1, 1, 1)
    load = driver.engine.load()
    assert (load.num_running, load.num_waiting) == (4, 3)  # the paused one waits beside the two that never ran
    driver.run()
    assert driver.engine.load().num_preemptions == 0
    assert driver.runner.computed == {
        id_: len(request.prompt_token_ids) + request.sampling.max_tokens - 1 for id_, request in driver.requests.items()
    }
    driver.check_answers()


def test_the_newest_pauses_and_goes_on_before_any_of_its_tenant_that_never_ran() -> None:
    driver = crowded()
    newcomer = driver.submit("few", [9] * 8, 4, ignore_eos=True)
    driver.run()
    first, *others = driver.requests
    assert list(driver.ends) == [newcomer, first, *(id_ for id_ in others if id_ != newcomer)]


def test_who_comes_after_a_paused_one_went_on_is_behind_by_no_more_than_what_it_then_took() -> None:
    driver = Driver({}, max_num_seqs=2)
    for number in range(2):
        driver.submit("many", [number + 1] * 8, 100, ignore_eos=True)
    for _ in range(40):
        driver.step()
    newcomer = driver.submit("few", [9] * 8, 4, ignore_eos=True)
    driver.step()
    many = driver.tenant("many")
    assert many.paused
    while many.paused:
        driver.step()
    assert newcomer in driver.ends
    assert many.counter - driver.engine._queue.virtual_time <= 2 * 2 * 2  # two steps of two rows


@pytest.mark.parametrize(("weight", "rows"), [(1, 2), (3, 3)])
def test_rows_are_shared_by_weight(weight: int, rows: int) -> None:
    driver = crowded({"few": Share(weight=weight)})
    for number in range(5):
        driver.submit("few", [number + 20] * 8, 30, ignore_eos=True)
    for _ in range(6):
        driver.step()
    assert (driver.tenant("few").num_rows, driver.tenant("many").num_rows) == (rows, 4 - rows)


def test_one_whose_turn_it_is_not_takes_no_row() -> None:
    driver = crowded(turn_gap_units=0.0, return_credit_steps=0)
    driver.engine.add_service({"few": 1e6})
    newcomer = driver.submit("few", [9] * 8, 4, ignore_eos=True)
    driver.step()
    assert not driver.tokens.get(newcomer)


def test_what_is_paused_can_be_aborted_and_preempted_and_leaves_nothing_behind() -> None:
    driver = crowded()
    driver.submit("few", [9] * 8, 4, ignore_eos=True)
    driver.step()
    (paused,) = driver.tenant("many").paused
    driver.engine.abort(paused)
    assert not driver.tenant("many").paused
    driver.submit("few", [8] * 8, 4, ignore_eos=True)
    driver.step()
    driver.engine.set_tenants({"many": Share(cap_tokens=16)})
    driver.run()
    assert not driver.tenant("many").paused


@given(
    st.lists(
        st.tuples(st.sampled_from("abcd"), st.integers(1, 40), st.integers(1, 30), st.integers(0, 6)), max_size=40
    ),
    st.dictionaries(st.sampled_from("abcd"), st.integers(1, 4)),
)
def test_whoever_pauses_the_answers_are_those_of_each_alone(
    calls: list[tuple[str, int, int, int]], weights: dict[str, int]
) -> None:
    driver = Driver(
        {id_: Share(weight=weight) for id_, weight in weights.items()}, max_num_seqs=3, num_blocks=40, max_model_len=80
    )
    for tenant, prompt_tokens, max_tokens, steps in calls:
        driver.submit(tenant, [ord(tenant) % 50] * prompt_tokens, max_tokens, ignore_eos=True)
        for _ in range(steps):
            driver.step()
            tenants = driver.engine._queue.tenants.values()
            assert sum(each.num_rows for each in tenants) <= 3
            paused = {id_ for each in tenants for id_ in each.paused}
            assert paused == set(driver.engine._queue.paused)
    driver.run()
    driver.check_answers()


def test_a_prompt_whose_row_another_took_waits_with_it() -> None:
    driver = Driver(num_blocks=400, max_num_seqs=2, step_token_budget=16, max_model_len=256, return_credit_steps=0)
    driver.submit("many", [1] * 8, 40, ignore_eos=True)
    driver.submit("many", [2] * 100, 4, ignore_eos=True)  # in chunks: its prompt is not computed when its row is taken
    driver.step()
    driver.step()
    driver.submit("few", [3] * 8, 4, ignore_eos=True)
    driver.step()
    assert driver.tenant("many").paused
    assert driver.most_rows == 2
    driver.run()
    driver.check_answers()


def flooded(prompt_tokens: int, output_tokens: int, **settings: Any) -> Driver:
    """A driver with a hundred requests of one tenant."""
    driver = Driver(**{"num_blocks": 2000, "step_token_budget": 128, "queue_limit_per_tenant": 500} | settings)
    for number in range(100):
        driver.submit("flood", [number % 50] * prompt_tokens, output_tokens, ignore_eos=True)
    return driver


def watched(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, int]]:
    """Return the steps that ``driver`` will run: tokens by request."""
    steps: list[dict[str, int]] = []
    execute = driver.runner.execute

    def watching(rows: Sequence[Row]) -> list[RowResult]:
        steps.append({row.request_id: len(row.token_ids) for row in rows})
        return execute(rows)

    monkeypatch.setattr(driver.runner, "execute", watching)
    return steps


@pytest.mark.parametrize(
    ("prompt_tokens", "calm_tokens", "calm_prompt_tokens", "most_tokens"),
    [
        pytest.param(60, 2, 8, 25, id="a fifth of the tokens of a step"),
        pytest.param(60, 2, 80, 60, id="three quarters of the prompt that is served as it comes"),
        pytest.param(400, 20, 8, 25, id="prompts so long that it has fewest rows"),
    ],
)
def test_the_prompts_of_a_backlog_leave_steps_short_while_another_is_served_as_it_comes(
    prompt_tokens: int, calm_tokens: int, calm_prompt_tokens: int, most_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def longest_step(*, beside: bool) -> int:
        driver = flooded(prompt_tokens, 6, max_num_seqs=8, max_model_len=512)
        steps = watched(driver, monkeypatch)
        for step in range(60):
            if beside and step % 5 == 0:
                driver.submit("calm", [7] * calm_prompt_tokens, calm_tokens, ignore_eos=True)
            driver.step()
        flood = {id_ for id_, call in driver.requests.items() if call.tenant_id == "flood"}
        return max(sum(tokens for id_, tokens in step.items() if id_ in flood) for step in steps[10:])

    assert longest_step(beside=True) <= most_tokens
    assert longest_step(beside=False) > 100


def test_who_had_less_takes_a_row_of_who_had_more_though_it_holds_as_many() -> None:
    driver = crowded(turn_gap_units=64.0)
    for number in range(3):
        driver.submit("few", [number + 20] * 8, 30, ignore_eos=True)
    for _ in range(3):
        driver.step()
    rows = [(driver.tenant("few").num_rows, driver.tenant("many").num_rows)]
    driver.tenant("many").counter += 1000.0
    for _ in range(3):
        driver.step()
        rows.append((driver.tenant("few").num_rows, driver.tenant("many").num_rows))
    assert rows == [(2, 2), (3, 1), (3, 1), (3, 1)]
    driver.run()
    driver.check_answers()


@pytest.mark.parametrize("most", [1, 2, 4])
def test_a_backlog_gives_way_to_the_prompts_of_another_a_few_times_in_a_row(
    monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    driver = flooded(60, 20, max_num_seqs=8, give_way_steps=most)
    steps = watched(driver, monkeypatch)
    for step in range(120):
        if step % 40 > 34:
            driver.submit("calm", [step % 50, *[7] * 119], 1, ignore_eos=True)
        driver.step()
    flood = {id_ for id_, call in driver.requests.items() if call.tenant_id == "flood"}
    gave_way = [not flood & step.keys() for step in steps[10:]]
    assert max(len(list(steps)) for gives_way, steps in groupby(gave_way) if gives_way) == most
    driver.run()
    driver.check_answers()


def test_of_two_backlogs_one_goes_on_while_both_are_long_beside_a_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = flooded(8, 40, max_num_seqs=64)
    for number in range(100):
        driver.submit("second", [number % 50] * 8, 40, ignore_eos=True)
    steps = watched(driver, monkeypatch)
    for step in range(80):
        if step % 8 == 0:
            driver.submit("calm", [step % 50, *[7] * 7], 1, ignore_eos=True)
        driver.step()  # it sees that a step does something
    assert min(map(len, steps[20:])) >= 10


def test_rows_that_only_decode_beside_a_backlog_do_not_stop_it(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = flooded(8, 40, max_num_seqs=64)
    for number in range(30):
        driver.submit("long", [number] * 8, 200, ignore_eos=True)
    driver.submit("calm", [7] * 8, 1, ignore_eos=True)
    while driver.tenant("long").num_unserved or driver.tenant("calm").num_unserved:
        driver.step()
    steps = watched(driver, monkeypatch)
    for _ in range(20):
        driver.step()
    assert driver.scheduler._delayed_prompt_tokens(driver.tenant("flood"), 9) is not None
    flood = {id_ for id_, call in driver.requests.items() if call.tenant_id == "flood"}
    assert all(flood & step.keys() for step in steps)


def test_what_a_backlog_computes_again_leaves_steps_as_short(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = flooded(100, 40, max_num_seqs=8, prefix_cache=False)
    for _ in range(20):
        driver.step()
    driver.submit("calm", [7] * 8, 1, ignore_eos=True)
    driver.step()
    driver.preempt(driver.tenant("flood").newest_running().request_id)
    steps = watched(driver, monkeypatch)
    driver.submit("calm", [8] * 8, 1, ignore_eos=True)
    for _ in range(20):
        driver.step()
    flood = {id_ for id_, call in driver.requests.items() if call.tenant_id == "flood"}
    assert max(sum(tokens for id_, tokens in step.items() if id_ in flood) for step in steps) <= 33


def test_a_burst_of_a_tenant_that_is_owed_service_is_not_taken_for_a_backlog(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = flooded(60, 6, max_num_seqs=16, burst_requests=0)
    for step in range(40):
        if step % 8 == 0:
            driver.submit("calm", [7] * 8, 2, ignore_eos=True)
            driver.submit("bursty", [8] * 8, 4, ignore_eos=True)
        driver.step()
    steps = watched(driver, monkeypatch)
    burst = [driver.submit("bursty", [number] * 36, 2, ignore_eos=True) for number in range(3)]
    driver.step()
    assert [steps[0].get(each) for each in burst] == [36, 36, 36]


@pytest.mark.parametrize(("requests", "late", "first_tokens"), [(5, True, 148), (12, True, 25), (5, False, 25)])
def test_a_few_requests_that_come_of_late_are_no_backlog_though_their_tenant_had_more(
    monkeypatch: pytest.MonkeyPatch, requests: int, late: bool, first_tokens: int
) -> None:
    driver = Driver(num_blocks=400, step_token_budget=148, max_num_seqs=16, burst_steps=64 if late else 0)
    for step in range(40):
        if step % 8 == 0:
            driver.submit("calm", [7] * 8, 1, ignore_eos=True)
            driver.submit("busy", [step] * 36, 1, ignore_eos=True)
        driver.step()
    steps = watched(driver, monkeypatch)
    for number in range(requests):
        driver.submit("busy", [number + 50] * 36, 2, ignore_eos=True)
    driver.step()
    assert sum(steps[0].values()) == first_tokens


def test_where_nothing_may_be_paused_a_newcomer_waits_for_an_end() -> None:
    driver = crowded(pause_limit=0)
    newcomer = driver.submit("few", [9] * 8, 4, ignore_eos=True)
    driver.step()
    assert not driver.tokens.get(newcomer)
