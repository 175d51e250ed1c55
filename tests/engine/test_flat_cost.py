"""What a step costs does not grow with who waits: counted in lines of Python that run, never in time."""

import gc
import sys
from types import FrameType
from typing import Any

import pytest
from engine_harness import Driver, NullRunner

from dataplane.contracts.catalog import Share

STEPS = 10


def lines_of(work: Any) -> int:
    """Count the lines that ``work`` runs, each pass of a loop and each call included."""
    lines = 0

    def count(_frame: FrameType, _event: str, _arg: object) -> Any:
        nonlocal lines
        lines += 1
        return count

    gc.disable()  # what a collection calls is not ours
    sys.settrace(count)
    try:
        work()
    finally:
        sys.settrace(None)
        gc.enable()
    return lines


def lines_of_a_step(driver: Driver, *, submit: bool = False) -> float:
    """Return the mean over a few steps; with ``submit`` whoever ends is followed by another."""

    def steps() -> None:
        for _ in range(STEPS):
            ended = [delta.request_id for delta in driver.engine.step() if delta.finish_reason]
            for request_id in ended if submit else []:
                request = driver.requests[request_id]
                prompt = [len(driver.requests)] * len(request.prompt_token_ids)
                driver.submit(request.tenant_id, prompt, request.sampling.max_tokens, ignore_eos=True)

    steps()
    return lines_of(steps) / STEPS


def crowd(waiting: int, tenants: int, output_tokens: int = 200, share: Share | None = None, **settings: Any) -> Driver:
    """Return an engine with so many requests of so many tenants, most of which wait."""
    shares = {f"t{number}": share for number in range(tenants)} if share else {}
    settings = {"num_blocks": 1000, "max_num_seqs": 8, "queue_limit_per_tenant": waiting} | settings
    driver = Driver(shares, runner=NullRunner(), **settings)
    for number in range(waiting):
        driver.submit(f"t{number % tenants}", [number] * 20, output_tokens, ignore_eos=True)
    driver.step()
    return driver


HELD_BY = {
    "slots": {},
    "slots, with a guarantee": {"share": Share(guarantee_tokens=8)},
    "memory": {"num_blocks": 30, "output_tokens": 100},
    "a cap": {"share": Share(cap_tokens=160), "output_tokens": 140},
}


@pytest.mark.parametrize("settings", HELD_BY.values(), ids=HELD_BY)
def test_a_step_does_the_same_work_however_many_requests_wait(settings: dict[str, Any]) -> None:
    few, many = (lines_of_a_step(crowd(waiting, 4, **settings)) for waiting in (60, 3_000))
    assert many <= 1.05 * few


@pytest.mark.parametrize("settings", [HELD_BY["slots"], HELD_BY["memory"]], ids=["slots", "memory"])
def test_a_step_does_the_same_work_however_many_tenants_wait(settings: dict[str, Any]) -> None:
    few, many = (lines_of_a_step(crowd(tenants, tenants, **settings)) for tenants in (60, 1_500))
    assert many <= 1.1 * few


def test_a_step_that_admits_as_many_as_end_does_the_same_work_however_many_tenants_wait() -> None:
    few, many = (lines_of_a_step(crowd(2 * tenants, tenants, 2), submit=True) for tenants in (60, 1_500))
    assert many <= 1.2 * few


def test_a_block_is_taken_from_the_cache_of_others_at_the_same_cost_however_many_have_one() -> None:
    def evicting(tenants: int) -> float:
        driver = Driver(runner=NullRunner(), num_blocks=4 * tenants, max_num_seqs=8)
        for number in range(2 * tenants):
            driver.submit(f"t{number % tenants}", [number] * 16, 1, ignore_eos=True)
        driver.run()
        for number in range(8):
            driver.submit(f"new{number}", [number] * 8, 100, ignore_eos=True)
        for _ in range(5):
            driver.step()
        assert driver.engine.load().free_blocks == 0
        return lines_of_a_step(driver)

    assert evicting(1_000) <= 1.1 * evicting(50)


def test_a_step_does_the_same_work_however_large_the_pool_is() -> None:
    small, large = (lines_of_a_step(crowd(20, 4, num_blocks=blocks)) for blocks in (1_000, 20_000))
    assert large == small


def test_rows_cost_the_same_each_however_many_run() -> None:
    few, many = (
        lines_of_a_step(crowd(rows, 4, max_num_seqs=rows, num_blocks=8_000, step_token_budget=20 * rows)) / rows
        for rows in (8, 256)
    )
    assert many <= few
