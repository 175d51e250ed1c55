"""Within a tenant: a long generation makes room for the tenant's other requests, and for nobody else's."""

from statistics import fmean
from typing import Any

import pytest
from engine_harness import Driver
from essays import answers, int8_on_two_cores, p99
from fairness_simulation import Simulation

from dataplane.contracts.catalog import Share


def essay_under_way(
    share: Share | None = None, *, usual: float = 5.0, tokens: int = 60, **settings: Any
) -> tuple[Driver, str]:
    """Return an engine and the id of a request of acme that has generated 50 of its tokens."""
    driver = Driver({"acme": share or Share(), "other": Share()}, **settings)
    driver.tenant("acme").usual_output_tokens = usual
    essay = driver.submit("acme", [1] * 8, tokens, ignore_eos=True)
    for _ in range(50):
        driver.step()
    return driver, essay


BLOCKED_BY: dict[str, tuple[dict[str, Any], int]] = {
    "slots": ({"max_num_seqs": 1}, 8),
    "memory": ({"num_blocks": 10}, 40),
    "its cap": ({"share": Share(cap_tokens=80)}, 24),
}
"""What stands in the way of a short request with so long a prompt."""
blocked = pytest.mark.parametrize(("settings", "prompt_tokens"), BLOCKED_BY.values(), ids=BLOCKED_BY)


@blocked
def test_a_long_generation_makes_room_at_once_and_goes_on_later_with_the_same_tokens(
    settings: dict[str, Any], prompt_tokens: int
) -> None:
    driver, essay = essay_under_way(**settings)
    short = driver.submit("acme", [2] * prompt_tokens, 4, ignore_eos=True)
    driver.step()
    assert driver.tokens[short]
    assert [load.preemptions for load in driver.engine.tenant_loads()] == [{"own": 1}, {}]
    driver.run()
    assert list(driver.ends) == [short, essay]
    driver.check_answers()


@blocked
def test_one_that_is_not_long_for_its_tenant_keeps_its_place(settings: dict[str, Any], prompt_tokens: int) -> None:
    driver, essay = essay_under_way(usual=50, **settings)
    short = driver.submit("acme", [2] * prompt_tokens, 4, ignore_eos=True)
    driver.run()
    assert list(driver.ends) == [essay, short]


def test_nobody_makes_room_for_another_tenant_in_that_way() -> None:
    driver, essay = essay_under_way(max_num_seqs=1)
    stranger = driver.submit("other", [2] * 8, 4, ignore_eos=True)
    driver.run()
    assert list(driver.ends) == [essay, stranger]


@pytest.mark.parametrize(("share", "place"), [(0.125, 4), (8.0, 2)], ids=["when nothing waits", "when its part is due"])
def test_who_made_room_goes_on_in_time_though_most_of_it_is_in_the_cache(share: float, place: int) -> None:
    driver, essay = essay_under_way(max_num_seqs=1, long_share=share)
    others = [driver.submit("acme", [number] * 8, 4, ignore_eos=True) for number in (2, 3, 4)]
    driver.step()
    driver.tenant("acme").usual_output_tokens = 40  # what goes on has a turn again
    others.append(driver.submit("acme", [5] * 8, 4, ignore_eos=True))
    driver.run()
    assert list(driver.ends) == [*others[:place], essay, *others[place:]]


def test_what_is_aside_is_passed_by_one_that_comes_while_it_waits_for_room() -> None:
    driver, essay = essay_under_way(Share(cap_tokens=80))
    short, later = (driver.submit("acme", [number] * 24, 4, ignore_eos=True) for number in (2, 3))
    for _ in range(2):
        driver.step()
    assert driver.tenant("acme").running.keys() == {short, later}
    last = driver.submit("acme", [4] * 8, 4, ignore_eos=True)
    driver.step()
    assert driver.tokens[last]
    driver.run()
    assert list(driver.ends) == [short, later, last, essay]
    driver.check_answers()


def test_what_is_aside_finds_nothing_of_an_epoch_that_is_over() -> None:
    driver, essay = essay_under_way(max_num_seqs=1)
    driver.submit("acme", [2] * 8, 4, ignore_eos=True)
    driver.step()
    assert essay in driver.tenant("acme").aside
    before = driver.runner.computed[essay]
    driver.engine.set_tenants({"acme": Share(cache_epoch=1), "other": Share()})
    driver.run()
    assert driver.runner.computed[essay] - before == 8 + 60 - 1
    driver.check_answers()


def test_a_tenant_does_not_keep_slots_for_its_own_while_others_wait_for_one() -> None:
    driver = Driver({"acme": Share(), "other": Share()}, max_num_seqs=2, max_model_len=300)
    driver.tenant("acme").usual_output_tokens = 5
    for _ in range(2):
        driver.submit("acme", [1] * 8, 250, ignore_eos=True)
    for _ in range(60):
        driver.step()
    driver.submit("other", [2] * 8, 4, ignore_eos=True)
    for number in range(20):
        driver.submit("acme", [3 + number] * 8, 250, ignore_eos=True)
    before = driver.counter("acme")
    while driver.tenant("other").waiting:
        driver.step()
    assert driver.counter("acme") - before <= 2 * 2 * 250 + 8 * 20
    assert sum(load.preemptions.get("own", 0) for load in driver.engine.tenant_loads()) <= 2


def test_a_tenant_pays_for_what_its_own_requests_make_it_compute_again() -> None:
    simulation = Simulation({"acme": Share()}, max_num_seqs=1, prefix_cache=False)
    simulation.driver.tenant("acme").usual_output_tokens = 5
    simulation.submit("acme", 8, 60)
    simulation.run(50, lambda step: None)
    simulation.submit("acme", 8, 4)
    simulation.driver.run()
    assert simulation.recomputed_tokens > 40
    paid = 16 + 2 * 64 + simulation.recomputed_tokens
    assert simulation.service["acme"] == paid


def test_at_least_half_of_what_a_long_generation_costs_goes_into_its_answer_but_for_the_last_time() -> None:
    simulation = Simulation({"acme": Share()}, max_num_seqs=2, prefix_cache=False, max_model_len=2000, num_blocks=300)
    simulation.driver.tenant("acme").usual_output_tokens = 16
    simulation.submit("acme", 100, 1500)
    simulation.run(2500, lambda step: simulation.backlog("acme", 2, 10, 10))
    load = simulation.driver.engine.tenant_loads()[0]
    assert load.preemptions["own"] >= 3
    assert simulation.recomputed_tokens <= 2 * 1500 + 1600


def test_answers_of_like_lengths_see_no_turns() -> None:
    simulation = Simulation({"acme": Share()}, max_num_seqs=4, num_blocks=200)
    simulation.run(1200, lambda step: simulation.backlog("acme", 6, (5, 30), (20, 60)))
    assert len(simulation.driver.ends) > 100
    assert not simulation.driver.engine.tenant_loads()[0].preemptions


def test_short_requests_take_at_p99_no_more_than_half_as_long_again_with_essays_in_the_mix() -> None:
    load: dict[str, Any] = {"shorts_per_s": 0.78, "seconds": 300.0, "seed": 3}
    alone_s = p99(answers(**load, essays=False).shorts_s)
    assert p99(answers(**load, essays=True).shorts_s) <= 1.5 * alone_s
    assert p99(answers(**load, essays=True, long_output_factor=1e9).shorts_s) > 1.5 * alone_s


def test_and_where_rows_are_not_short_but_make_steps_long() -> None:
    load: dict[str, Any] = {
        "shorts_per_s": 4.3, "seconds": 200.0, "slots": 32, "step_ms": int8_on_two_cores, "seed": 3,
    }  # fmt: skip
    alone_s = p99(answers(**load, essays=False).shorts_s)
    mixed, unheld = (answers(**load, essays=True, long_beside_rows=rows) for rows in (4, 33))
    assert p99(mixed.shorts_s) <= 1.35 * alone_s < 1.5 * alone_s < p99(unheld.shorts_s)
    assert fmean(mixed.essays_s) <= 1.5 * fmean(unheld.essays_s)


def essay_beside(shorts: int) -> tuple[Driver, str]:
    """Return an engine and the id of a long generation of acme, with so many that are not long beside it."""
    driver, essay = essay_under_way(tokens=100)
    driver.tenant("acme").usual_output_tokens = 200.0
    for number in range(shorts):
        driver.submit("acme", [2 + number] * 8, 100, ignore_eos=True)
    driver.step()
    return driver, essay


@pytest.mark.parametrize(("shorts", "tokens"), [(3, 16), (4, 2)])
def test_beside_many_of_its_tenant_a_long_generation_computes_in_one_step_of_eight(shorts: int, tokens: int) -> None:
    driver, essay = essay_beside(shorts)
    before = driver.runner.computed[essay]
    for _ in range(16):
        driver.step()
    assert driver.runner.computed[essay] - before == tokens
    driver.run()
    driver.check_answers()


def test_it_sits_out_no_step_while_another_tenant_waits() -> None:
    driver, essay = essay_beside(4)
    before = driver.runner.computed[essay]
    for number in range(9):
        driver.submit("other", [9 + number] * 60, 1, ignore_eos=True)
    for steps in range(1, 4):
        driver.step()
        assert driver.tenant("other").waiting
        assert driver.runner.computed[essay] - before == steps


def test_who_comes_after_steps_that_were_sat_out_is_not_behind_by_what_was_served_in_them() -> None:
    driver, essay = essay_beside(4)
    before = driver.runner.computed[essay]
    driver.step()
    assert driver.runner.computed[essay] == before
    driver.submit("other", [9] * 8, 4, ignore_eos=True)
    behind = driver.counter("acme") - driver.engine._queue.virtual_time
    assert behind <= 2 * 5  # that step's tokens


def longest_wait_under_a_cap(**settings: Any) -> int:
    """Return for how many steps a request waited for room under its tenant's cap, which an essay comes to fill."""
    sizes = {"num_blocks": 600, "max_num_seqs": 8, "step_token_budget": 256, "max_model_len": 2400}
    simulation = Simulation({"capped": Share(cap_tokens=2400)}, **sizes, **settings)
    simulation.driver.tenant("capped").usual_output_tokens = 20
    simulation.submit("capped", 100, 2200)

    def feed(step: int) -> None:
        if step % 100 == 99:
            simulation.submit("capped", 1500, 10)

    return simulation.run(2300, feed).longest_wait["capped"]


def test_a_request_under_a_cap_waits_for_half_of_what_an_essay_computes_again_and_not_for_its_end() -> None:
    assert longest_wait_under_a_cap() <= (100 + 1500) / 2 < 1300 < longest_wait_under_a_cap(long_output_factor=1e9)
