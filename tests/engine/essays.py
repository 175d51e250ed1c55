"""Short requests among essays of the same tenant: ``python tests/engine/essays.py`` prints docs/fairness.md's table."""

import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

sys.path.append(str(Path(__file__).resolve().parents[1]))  # what tests share, for a run as a script

from engine_harness import Driver, NullRunner

from dataplane.contracts.catalog import Share
from dataplane.engine.runner import Row, RowResult

StepMs = Callable[[Sequence[Row]], float]

SHORT_TOKENS, ESSAY_TOKENS = (16, 96), (400, 800)
PROMPT_TOKENS = 20
SHORTS_PER_ESSAY = 19
STEPS_A_SECOND = 10


def always_alike(rows: Sequence[Row]) -> float:
    """Return the milliseconds of a step of which there are ten a second."""
    return 1000 / STEPS_A_SECOND


def int8_on_two_cores(rows: Sequence[Row]) -> float:
    """Return the milliseconds of a step as measured, of the bundled model: by rows, contexts and tokens of prompts."""
    return 4.1 + sum(
        1.0 + 0.0013 * row.position if len(row.token_ids) == 1 else 0.2 + 0.77 * len(row.token_ids) for row in rows
    )


class Timed(NullRunner):
    """Lets steps take their time."""

    def __init__(self, step_ms: StepMs) -> None:
        super().__init__()
        self.now_s = 0.0
        self._step_ms = step_ms

    def execute(self, rows: Sequence[Row]) -> list[RowResult]:
        self.now_s += self._step_ms(rows) / 1000
        return super().execute(rows)


class Ended(NamedTuple):
    """Seconds from call to end, in order."""

    shorts_s: list[float]
    essays_s: list[float]


def _arrivals(per_s: float, seconds: float, tokens: tuple[int, int], seed: int) -> list[tuple[float, int]]:
    draw, now_s, found = random.Random(seed), 0.0, []
    while (now_s := now_s + draw.expovariate(per_s)) < seconds:
        found.append((now_s, draw.randint(*tokens)))
    return found


def answers(
    shorts_per_s: float,
    *,
    essays: bool,
    seconds: float,
    slots: int = 8,
    seed: int = 1,
    step_ms: StepMs = always_alike,
    **settings: Any,
) -> Ended:
    """Return how long a tenant's short requests took, and its essays if there are any: one call in twenty."""
    sizes = {"num_blocks": 8000, "max_num_seqs": slots, "step_token_budget": 256, "queue_limit_per_tenant": 5000}
    runner = Timed(step_ms)
    driver = Driver({"acme": Share()}, runner=runner, step_s=0.0, **sizes, **settings)
    ended = Ended([], [])
    calls = [(*call, ended.shorts_s) for call in _arrivals(shorts_per_s, seconds, SHORT_TOKENS, seed)]
    if essays:
        rate = shorts_per_s / SHORTS_PER_ESSAY
        calls += [(*call, ended.essays_s) for call in _arrivals(rate, seconds, ESSAY_TOKENS, seed + 1_000)]
    calls.sort(key=lambda call: call[0])
    called: dict[str, tuple[float, list[float]]] = {}
    for arrival_s, tokens, took_s in [*calls, (float("inf"), 0, [])]:
        while driver.engine.has_work and runner.now_s < arrival_s:
            for delta in driver.step():
                if delta.finish_reason:
                    called_s, its_s = called[delta.request_id]
                    its_s.append(runner.now_s - called_s)
        if tokens:
            runner.now_s = max(runner.now_s, arrival_s)
            request_id = driver.submit("acme", [len(driver.requests)] * PROMPT_TOKENS, tokens, ignore_eos=True)
            called[request_id] = arrival_s, took_s
    return Ended(sorted(ended.shorts_s), sorted(ended.essays_s))


def p99(seconds: list[float]) -> float:
    """Return the 99th percentile."""
    return seconds[int(0.99 * len(seconds))]


def main() -> None:
    """Print the p99 of short requests with essays, as a multiple of that without."""
    capacity_per_s = 8 * STEPS_A_SECOND / (sum(SHORT_TOKENS) / 2 + 1 + (sum(ESSAY_TOKENS) / 2 + 1) / SHORTS_PER_ESSAY)
    for load in (0.8, 0.94):
        case: dict[str, Any] = {"shorts_per_s": load * capacity_per_s, "seconds": 600.0}
        settings = [{"long_output_factor": factor} for factor in (1e9, 4.0, 3.0, 2.0)]
        _compare(f"8 slots at {load} of what can be served", case, settings)
    for calls in (3.4, 4.3):
        case = {"shorts_per_s": calls, "seconds": 600.0, "slots": 32, "step_ms": int8_on_two_cores}
        settings = [{"long_beside_rows": rows} for rows in (33, 6, 4, 2, 1)]
        _compare(f"32 slots, int8 on two cores, {calls} short calls a second", case, settings)


def _compare(name: str, case: dict[str, Any], settings: Sequence[dict[str, Any]]) -> None:
    seeds = (3, 4)
    alone_s = {seed: p99(answers(**case, essays=False, seed=seed).shorts_s) for seed in seeds}
    for setting in settings:
        found = {seed: answers(**case, essays=True, seed=seed, **setting) for seed in seeds}
        ratios = ", ".join(f"{p99(found[seed].shorts_s) / alone_s[seed]:.2f}" for seed in seeds)
        essays_s = ", ".join(f"{fmean(found[seed].essays_s):.1f}" for seed in seeds)
        print(f"{name}, {setting}: {ratios}; essays take {essays_s} s")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
