"""Short requests among essays of the same tenant: ``python tests/engine/essays.py`` prints docs/fairness.md's table."""

import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))  # what tests share, for a run as a script

from engine_harness import Driver, NullRunner

from dataplane.contracts.catalog import Share
from dataplane.engine.runner import Row, RowResult
from dataplane.sim.costs import TWO_CORES, StepCosts

SHORT_TOKENS, ESSAY_TOKENS = (16, 96), (400, 800)
PROMPT_TOKENS = 20
SHORTS_PER_ESSAY = 19
STEPS_A_SECOND = 10


class Timed(NullRunner):
    """Lets each step take as long as a table says, and a tenth of a second without one."""

    def __init__(self, costs: StepCosts | None) -> None:
        super().__init__()
        self.now_s = 0.0
        self._costs = costs

    def execute(self, rows: Sequence[Row]) -> list[RowResult]:
        tokens = sum(len(row.token_ids) for row in rows)
        self.now_s += self._costs.ms(tokens) / 1000 if self._costs else 1 / STEPS_A_SECOND
        return super().execute(rows)


def _arrivals(per_s: float, seconds: float, tokens: tuple[int, int], seed: int) -> list[tuple[float, int]]:
    draw, now_s, found = random.Random(seed), 0.0, []
    while (now_s := now_s + draw.expovariate(per_s)) < seconds:
        found.append((now_s, draw.randint(*tokens)))
    return found


def short_answers(
    shorts_per_s: float,
    *,
    essays: bool,
    seconds: float,
    slots: int = 8,
    seed: int = 1,
    costs: StepCosts | None = None,
    **settings: Any,
) -> list[float]:
    """Return the seconds from call to end of a tenant's short requests, in order; with essays as one call in twenty."""
    sizes = {"num_blocks": 4000, "max_num_seqs": slots, "step_token_budget": 256, "queue_limit_per_tenant": 5000}
    runner = Timed(costs)
    driver = Driver({"acme": Share()}, runner=runner, step_s=0.0, **sizes, **settings)
    calls = [(*call, True) for call in _arrivals(shorts_per_s, seconds, SHORT_TOKENS, seed)]
    if essays:
        rate = shorts_per_s / SHORTS_PER_ESSAY
        calls += [(*call, False) for call in _arrivals(rate, seconds, ESSAY_TOKENS, seed + 1_000)]
    called_s: dict[str, float] = {}
    ended_s: list[float] = []
    for arrival_s, tokens, is_short in [*sorted(calls), (float("inf"), 0, False)]:
        while driver.engine.has_work and runner.now_s < arrival_s:
            ended = [delta.request_id for delta in driver.step() if delta.finish_reason]
            ended_s += [runner.now_s - called_s[each] for each in ended if each in called_s]
        if tokens:
            runner.now_s = max(runner.now_s, arrival_s)
            request_id = driver.submit("acme", [len(driver.requests)] * PROMPT_TOKENS, tokens, ignore_eos=True)
            if is_short:
                called_s[request_id] = arrival_s
    return sorted(ended_s)


def p99(seconds: list[float]) -> float:
    """Return the 99th percentile."""
    return seconds[int(0.99 * len(seconds))]


def main() -> None:
    """Print the p99 of short requests with essays, as a multiple of that without."""
    capacity_per_s = 8 * STEPS_A_SECOND / (sum(SHORT_TOKENS) / 2 + 1 + (sum(ESSAY_TOKENS) / 2 + 1) / SHORTS_PER_ESSAY)
    cases: dict[str, dict[str, Any]] = {
        f"8 slots at {load} of what can be served": {"shorts_per_s": load * capacity_per_s, "seconds": 600.0}
        for load in (0.8, 0.94)
    } | {
        f"32 slots, two cores, {calls} short calls a second": {
            "shorts_per_s": calls, "seconds": 2000.0, "slots": 32, "costs": TWO_CORES,
        }
        for calls in (0.8, 1.2)
    }  # fmt: skip
    for name, case in cases.items():
        alone = {seed: p99(short_answers(**case, essays=False, seed=seed)) for seed in (3, 4)}
        for factor in (1e9, 4.0, 3.0, 2.0):
            ratios = [
                p99(short_answers(**case, essays=True, seed=seed, long_output_factor=factor)) / alone[seed]
                for seed in alone
            ]
            print(f"{name}, long is {factor:g} times the median: {', '.join(f'{ratio:.2f}' for ratio in ratios)}")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
