"""Where the time of a request goes, told by the engine's own events. A step takes 100 ms."""

import pytest
from engine_harness import Driver

from dataplane.contracts.catalog import Share
from dataplane.contracts.usage import Phases


def waits(phases: Phases) -> tuple[int | None, int | None, int | None]:
    return phases.own_budget_ms, phases.fair_share_ms, phases.memory_ms


def steps_ms(tokens: int) -> int:
    return 100 * tokens


def test_a_request_alone_waits_for_nothing_and_decodes_after_its_first_token() -> None:
    driver = Driver()
    request = driver.submit("acme", [1] * 20, 10, ignore_eos=True)
    driver.run()
    phases = driver.phases(request)
    assert waits(phases) == (0, 0, 0)
    assert (phases.prefill_ms, phases.decode_ms) == (steps_ms(1), steps_ms(9))
    assert (phases.preempted_ms, phases.preemptions, phases.batch_rows) == (0, 0, 1)
    assert phases.kv_blocks == 4  # of 8 tokens: the last of the 30 is never computed


def test_a_head_that_its_cap_holds_waits_for_its_own_budget_and_so_does_everything_behind_it() -> None:
    driver = Driver({"acme": Share(cap_tokens=32)})
    first, head, behind = (driver.submit("acme", [n] * 20, 12, ignore_eos=True) for n in range(1, 4))
    driver.run()
    assert waits(driver.phases(first)) == (0, 0, 0)
    assert waits(driver.phases(head)) == (steps_ms(12), 0, 0)
    assert waits(driver.phases(behind)) == (steps_ms(24), 0, 0)


def test_a_head_that_finds_no_blocks_waits_for_memory() -> None:
    driver = Driver(num_blocks=4, prefix_cache=False)
    driver.submit("big", [1] * 20, 12, ignore_eos=True)
    driver.step()
    late = driver.submit("late", [1] * 20, 4, ignore_eos=True)
    driver.run()
    phases = driver.phases(late)
    assert waits(phases) == (0, 0, steps_ms(11))


def test_a_head_that_finds_no_slot_waits_for_memory_too_since_nobody_could_run() -> None:
    driver = Driver(max_num_seqs=1)
    driver.submit("big", [1] * 20, 12, ignore_eos=True)
    driver.step()
    late = driver.submit("late", [2] * 20, 4, ignore_eos=True)
    driver.run()
    assert waits(driver.phases(late)) == (0, 0, steps_ms(11))


def test_a_head_whose_turn_has_not_come_waits_for_its_fair_share() -> None:
    driver = Driver(step_token_budget=16, max_num_seqs=8)
    driver.submit("first", [1] * 60, 4, ignore_eos=True)
    driver.step()
    driver.engine._accounts.of("late").counter = 100.0  # it had service before
    late = driver.submit("late", [2] * 10, 4, ignore_eos=True)
    driver.run()
    own_budget_ms, fair_share_ms, memory_ms = waits(driver.phases(late))
    assert (own_budget_ms, memory_ms) == (0, 0)
    assert fair_share_ms == steps_ms(2)  # until the last piece of the first leaves room in a step


def test_causes_that_follow_each_other_are_told_apart() -> None:
    driver = Driver({"acme": Share(cap_tokens=32)}, max_num_seqs=1)
    driver.submit("acme", [1] * 20, 12, ignore_eos=True)
    driver.step()
    late = driver.submit("acme", [2] * 20, 4, ignore_eos=True)
    for _ in range(5):
        driver.step()
    driver.engine.set_tenants({"acme": Share()})  # what holds it now is that there is one slot
    driver.run()
    assert waits(driver.phases(late)) == (steps_ms(5), 0, steps_ms(6))


def test_what_is_spent_preempted_is_told_and_stays_in_the_phase_that_it_interrupted() -> None:
    driver = Driver(num_blocks=8, prefix_cache=False)
    request = driver.submit("acme", [1] * 20, 10, ignore_eos=True)
    for _ in range(4):
        driver.step()
    driver.preempt(request)
    driver.now_s += 7
    driver.run()
    phases = driver.phases(request)
    assert waits(phases) == (0, 0, 0)
    assert (phases.preemptions, phases.preempted_ms) == (1, 7_000)
    assert phases.prefill_ms == steps_ms(1)
    assert phases.decode_ms == steps_ms(9) + 7_000
    assert phases.kv_blocks == 4


def test_batch_rows_is_the_mean_over_the_steps_that_computed_the_request() -> None:
    driver = Driver()
    long = driver.submit("acme", [1] * 5, 8, ignore_eos=True)
    short = driver.submit("acme", [2] * 5, 2, ignore_eos=True)
    driver.run()
    assert driver.phases(short).batch_rows == 2
    assert driver.phases(long).batch_rows == pytest.approx((2 + 2 + 6) / 8)


def test_a_request_that_fails_at_once_has_phases_too() -> None:
    driver = Driver()
    request = driver.submit("acme", [1] * 5, 8)
    driver.runner.fails_for.add(request)
    driver.run()
    assert driver.phases(request).prefill_ms == steps_ms(1)
    assert driver.phases(request).decode_ms == 0


def test_phases_so_far_come_with_the_first_token_and_every_16th_after_it() -> None:
    driver = Driver()
    driver.submit("acme", [1] * 5, 40, ignore_eos=True)
    told = [delta.phases is not None for _ in range(40) for delta in driver.step()]
    assert [number for number, phases in enumerate(told, 1) if phases] == [1, 17, 33, 40]
