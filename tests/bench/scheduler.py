"""What a step costs besides the model, as queue, tenants, pool and batch grow: prints a table and writes JSON.

The runner answers at once, so all of the time is ours. ``schedule`` is the engine alone with requests waiting, for what
keeps them waiting: all slots are taken, no memory is left, or nothing (``churn``: requests end after a few tokens, and
each step admits as many as have ended). ``rows`` is all that the engine's process does for a step of decoding rows, the
report to the server included.
"""

import argparse
import gc
import itertools
import json
import os
import socket
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

from dataplane.contracts.catalog import Share
from dataplane.contracts.generation import Submit
from dataplane.contracts.sampling import SamplingParams
from dataplane.engine.config import EngineConfig
from dataplane.engine.engine import Engine
from dataplane.engine.runner import Row, RowResult
from dataplane.worker.engine_process import Channel, LoadedEngine, Stopwatch
from dataplane.worker.masks import Masks

WAITING = (10, 100, 1_000, 10_000)
TENANTS = (1, 4, 1_000)
BLOCKS = (1_000, 100_000)
RUNNING = (1, 32, 256)
_PROMPT_TOKENS = 16
_CHURN_TOKENS = 8


class Instant:
    """A runner that answers at once."""

    def execute(self, rows: Sequence[Row]) -> list[RowResult]:
        """See :class:`dataplane.engine.runner.Runner`."""
        return [1 if row.sample else None for row in rows]


class Load:
    """An engine with ``running`` requests that decode and ``waiting`` more, of ``tenants`` in turn."""

    def __init__(self, held_by: str, *, waiting: int, tenants: int, blocks: int, running: int) -> None:
        memory = held_by == "memory"
        config = EngineConfig(
            num_blocks=blocks,
            max_num_seqs=2 * running if memory else running,
            max_model_len=blocks * 8,
            step_token_budget=blocks * 8,  # all prompts in the first step
            queue_limit_per_tenant=waiting + running,
            watermark_fraction=0.1,
        )
        shares = {f"t{number}": Share() for number in range(tenants)}
        self.stopwatch = Stopwatch(Instant())
        self.engine = Engine(
            config,
            self.stopwatch,
            shares,
            salt_secret=b"",
            version_digest="",
            eos_token_ids=(),
            clock=time.perf_counter,
        )
        self._tenants = itertools.cycle(shares)
        self._numbers = itertools.count(2)
        self._output_tokens = _CHURN_TOKENS if held_by == "churn" else 4_000
        # The watermark is just reached: the rest is for the growth of what runs.
        first_tokens = int(blocks * 8 * 0.905) // running if memory else _PROMPT_TOKENS
        for _ in range(running):
            self.submit(first_tokens)
        self.engine.step()
        for _ in range(waiting):
            self.submit(_PROMPT_TOKENS)

    def submit(self, prompt_tokens: int) -> None:
        """Add a request whose prompt is its own."""
        number = next(self._numbers)
        sampling = SamplingParams(max_tokens=self._output_tokens, ignore_eos=True)
        self.engine.submit(Submit(f"req_{number:028d}", next(self._tenants), [number] * prompt_tokens, sampling))

    def step(self) -> None:
        """Run one step; who ends is followed by another."""
        for delta in self.engine.step():
            if delta.finish_reason is not None:
                self.submit(_PROMPT_TOKENS)


def timed_us(work: Callable[[], None], after: Callable[[], object], count: int) -> dict[str, float]:
    """Return the median and the 95th percentile of ``count`` calls, after a quarter as many to warm up.

    In time of the processor: what else the machine does is left out.
    """
    times_us: list[float] = []
    for number in range(count + count // 4):
        began_s = time.thread_time()
        work()
        if number >= count // 4:
            times_us.append((time.thread_time() - began_s) * 1e6)
        after()
    times_us.sort()
    return {"p50_us": round(statistics.median(times_us), 1), "p95_us": round(times_us[int(count * 0.95)], 1)}


def schedule(steps: int) -> list[dict[str, Any]]:
    """Measure every load."""
    rows = []
    for held_by, blocks, running, tenants, waiting in itertools.product(
        ("slots", "memory", "churn"), BLOCKS, RUNNING, TENANTS, WAITING
    ):
        if held_by == "memory" and blocks < max(BLOCKS):
            continue  # it would not hold through the measurement
        load = Load(held_by, waiting=waiting, tenants=tenants, blocks=blocks, running=running)
        figures = timed_us(load.step, lambda: None, steps)
        rows.append(
            {"held_by": held_by, "blocks": blocks, "running": running, "tenants": tenants, "waiting": waiting} | figures
        )
        print(" ".join(f"{value!s:>8}" for value in rows[-1].values()), flush=True)
    return rows


def report(steps: int) -> list[dict[str, Any]]:
    """Measure the engine's process for 1 to 256 rows, with the server's end of the socket read between the steps."""
    rows = []
    for running in (1, 8, 32, 256):
        load = Load("slots", waiting=0, tenants=4, blocks=100_000, running=running)
        ours, servers = socket.socketpair()
        loaded = LoadedEngine(Channel(ours), load.engine, load.stopwatch, Mock(), Masks(Path(), 0, ()))
        rows.append({"running": running} | timed_us(loaded.step, partial(servers.recv, 1 << 20), steps))
        print(" ".join(f"{value!s:>8}" for value in rows[-1].values()), flush=True)
        ours.close()
        servers.close()
    return rows


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    default = Path(__file__).resolve().parents[2] / "var" / "bench" / "scheduler.json"
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--only", choices=["rows", "schedule"], default=None)
    parser.add_argument("--out", type=Path, default=default)
    arguments = parser.parse_args()
    gc.disable()
    result: dict[str, Any] = {"cpus": os.cpu_count(), "steps": arguments.steps}
    if arguments.only != "schedule":
        result["rows"] = report(arguments.steps)
    if arguments.only != "rows":
        result["schedule"] = schedule(arguments.steps)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=2))
    print(f"written to {arguments.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
