"""What it costs to compute a step on several ranks: prints a table and writes JSON.

``synchronisation`` is the share of a step in which tensor parallel ranks are in all-reduces: they wait for each other,
and for rows to be carried. ``bubbles`` is the share in which stages of a pipeline have no rows to work on, for a number
m of micro-batches; beside it (S - 1) / (m + S - 1), what S equal stages would have. Means over ranks of medians over
rounds. ``one_ms`` is the same step on one rank with as many threads as there are ranks.

Every rank runs on this machine: a neighbour, or fewer cores than ranks, shows up as waiting.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from array import array
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from machine import gemm_gflop_per_s, read_gb_per_s
from tiny_models import make_tiny_llama

from dataplane.contracts.catalog import EngineSettings
from dataplane.contracts.parallel import Parallel, Place
from dataplane.contracts.ranks import MakePool
from dataplane.contracts.sampling import SamplingParams
from dataplane.engine.runner import Row
from dataplane.model import step as steps
from dataplane.model.loader import load
from dataplane.model.parallel.group import Group
from dataplane.model.parallel.stage import Stage
from dataplane.model.program import RESIDUAL

BLOCK_SIZE, CONTEXT = 8, 256
SHAPES = {"decode 1": (1, 1), "decode 8": (8, 1), "decode 32": (32, 1), "prefill 512": (4, 128)}
"""Rows of a step, and tokens of each behind ``CONTEXT`` - 128 others."""
MICRO_BATCHES = (1, 2, 4, 8)


@dataclass(frozen=True)
class Layout:
    """Ranks, and what they compute: a step of ``shape`` in ``micro_batches``."""

    tensor: int
    pipeline: int
    shape: str
    micro_batches: int


def layouts(ranks: int) -> Iterator[Layout]:
    """Every step that one set of ranks computes, tensor parallel and then pipeline parallel."""
    for shape, (rows, tokens) in SHAPES.items():
        yield Layout(ranks, 1, shape, 1)
        for count in MICRO_BATCHES:
            if count <= rows * tokens:
                yield Layout(1, ranks, shape, count)


def step_of(shape: str) -> steps.Step:
    """Rows of one length each; every one has blocks of its own."""
    rows, tokens = SHAPES[shape]
    each = CONTEXT // BLOCK_SIZE
    made = [
        Row(str(row), [7 + row] * tokens, CONTEXT - 128, array("i", range(row * each, (row + 1) * each)), False,
            SamplingParams(max_tokens=1), 0, ())
        for row in range(rows)
    ]  # fmt: skip
    return steps.build(made, steps.Bounds(BLOCK_SIZE, 32 * each, 300, CONTEXT))


def stage_of(folder: Path, place: Place, meeting: Path, threads: int) -> tuple[Stage, Group, Any]:
    """Attach a rank's part; the pool is zeros, so that no value is unusual."""
    model = load(folder, folder.parent / "runtime", EngineSettings(), lambda *_: None, place=place)
    group = Group(place, meeting, "cpu")
    executor, pool = model.make_executor(
        MakePool(32 * CONTEXT // BLOCK_SIZE, BLOCK_SIZE, 512, 32, threads), group.all_reduce
    )
    pool.data.zero_()
    return Stage(executor, group, model.program.widths[RESIDUAL]), group, pool


def rank(number: int, folder: Path, meeting: Path, parallel: Parallel, rounds: int, told: "Queue[Any]") -> None:
    """One rank's process: every step of its layout, ``rounds`` times; reports (layout, wall, waited) in seconds."""
    torch.set_num_threads(1)
    stage, group, pool = stage_of(folder, Place.of(number, parallel), meeting, 1)
    group.join()
    own = [one for one in layouts(parallel.ranks) if (one.tensor, one.pipeline) == (parallel.tensor, parallel.pipeline)]
    for _ in range(rounds):
        for layout in own:
            step = step_of(layout.shape)
            dist.barrier()
            began_s, waited_s = time.perf_counter(), group.waited_s
            stage.compute(step, pool, layout.micro_batches)
            told.put((layout, number, time.perf_counter() - began_s, group.waited_s - waited_s))
    dist.barrier()
    group.leave()


def one_rank(folder: Path, threads: int, rounds: int) -> dict[str, float]:
    """The same steps without others, in ms."""
    stage, _, pool = stage_of(folder, Place(), folder, threads)
    found: dict[str, float] = {}
    for shape in SHAPES:
        step, times_s = step_of(shape), []
        for _ in range(rounds):
            began_s = time.perf_counter()
            stage.compute(step, pool, 1)
            times_s.append(time.perf_counter() - began_s)
        found[shape] = statistics.median(times_s) * 1000
    return found


def measure(folder: Path, parallel: Parallel, rounds: int) -> list[dict[str, Any]]:
    """Run the ranks of one layout in processes of their own."""
    context = processes.get_context("spawn")
    told: Queue[Any] = context.Queue()
    figures: dict[Layout, list[tuple[int, float, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="pagoda-bench-") as meeting:
        arguments = (folder, Path(meeting), parallel, rounds + 1, told)
        started = [context.Process(target=rank, args=(number, *arguments)) for number in range(parallel.ranks)]
        for process in started:
            process.start()
        expected = sum(
            (one.tensor, one.pipeline) == (parallel.tensor, parallel.pipeline) for one in layouts(parallel.ranks)
        )
        for _ in range(expected * (rounds + 1) * parallel.ranks):
            layout, number, wall_s, waited_s = told.get(timeout=600)
            figures.setdefault(layout, []).append((number, wall_s, waited_s))
        for process in started:
            process.join()
    return [summary(layout, taken, parallel) for layout, taken in figures.items()]


def summary(layout: Layout, taken: list[tuple[int, float, float]], parallel: Parallel) -> dict[str, Any]:
    """Shares of the step of rank 0, which ends last; the first round warms up."""
    walls_s = [wall_s for number, wall_s, _ in taken if number == 0][1:]
    idle = []
    for one in range(parallel.ranks):
        own = [(wall_s, waited_s) for number, wall_s, waited_s in taken if number == one][1:]
        shares = [1 - (wall_s - waited_s) / whole_s for (wall_s, waited_s), whole_s in zip(own, walls_s, strict=True)]
        idle.append(statistics.median(shares))
    stages, count = parallel.pipeline, layout.micro_batches
    kind = "synchronisation" if stages == 1 else "bubbles"
    row = asdict(layout) | {
        "step_ms": round(statistics.median(walls_s) * 1000, 2),
        kind: round(statistics.mean(idle), 3),
    }
    return row if stages == 1 else row | {"bubbles_of_equal_parts": round((stages - 1) / (count + stages - 1), 3)}


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    default = Path(__file__).resolve().parents[2] / "var" / "bench" / "parallel.json"
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--layers", type=int, default=8, help="of a random model, 576 wide with 8 heads")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, default=default)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pagoda-bench-") as home:
        folder = make_tiny_llama(
            Path(home) / "model", hidden_size=576, intermediate_size=1536, num_layers=arguments.layers, num_heads=8,
            num_kv_heads=8, head_dim=64,
        )  # fmt: skip
        result: dict[str, Any] = {
            "cpus": os.cpu_count(), "ranks": arguments.ranks, "layers": arguments.layers, "rounds": arguments.rounds,
            "read_gb_per_s": read_gb_per_s(), "gemm_gflop_per_s": gemm_gflop_per_s(),
            "one": one_rank(folder, arguments.ranks, arguments.rounds), "rows": [],
        }  # fmt: skip
        for parallel in (Parallel(arguments.ranks), Parallel(1, arguments.ranks)):
            for row in measure(folder, parallel, arguments.rounds):
                result["rows"].append(row | {"one_ms": round(result["one"][row["shape"]], 2)})
                print(" ".join(f"{name} {value}" for name, value in result["rows"][-1].items()), flush=True)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=2))
    print(f"written to {arguments.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
