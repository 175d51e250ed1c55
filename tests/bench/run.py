"""Benchmark our worker beside its peers in one run, interleaved: ``make bench``.

In each round every server gets the same calls in turn, and who begins changes from round to round, since the machine's
speed drifts. What the machine itself can do is measured at the start of each round. A row is written as soon as it is
measured, and what is written is not measured again: a run that was ended goes on where it was. ``report.py`` makes the
report, also of half a run.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import machine
import workloads
from client import CallFailed
from result_log import Key, ResultLog
from servers import RECIPES, REPOSITORY, ServerFailed, Servers, is_installed, measured_commit
from workloads import Workload

AGAIN = "-again"
"""Ends the name of the control's row: a server measured once more in the same round."""
MACHINE = "machine"
_PRECISIONS = ("pagoda-fp32", "pagoda-fp16", "pagoda-int8", "pagoda-int4")
_PEERS = ("vllm-fp32", "llama-f16", "llama-q8_0", "llama-q4_0")
_CONTROL = f"pagoda-int8{AGAIN}"
_CACHED = ("pagoda-fp32-cache", "pagoda-int8-cache")
PLAN = {
    "A": (*_PRECISIONS, *_PEERS, _CONTROL),
    "B": (*_PRECISIONS, *_PEERS, _CONTROL),
    "C": (*_PRECISIONS, *_PEERS, "transformers-fp32", _CONTROL),
    "D": ("pagoda-int8", "vllm-fp32", "llama-f16", _CONTROL),
    **dict.fromkeys(workloads.TENANTS, ("pagoda-int8-tenants",)),
    "E-dedicated": ("pagoda-int8-dedicated",),
    **dict.fromkeys(workloads.PREFIXED, _CACHED),
    "start": ("pagoda-fp32", "transformers-fp32"),
    "start-weights": ("pagoda-weights", "transformers-weights"),
    "start-attach": ("pagoda-attach",),
}
"""Who is measured by which workload."""


class Bench:
    """Measures what the log does not have yet.

    Args:
        log: where rows go.
        servers: that are measured.
        commit: of the rows.
        only: names of servers; empty: all of the plan.
    """

    def __init__(self, log: ResultLog, servers: Servers, commit: str, only: Sequence[str]) -> None:
        self._log, self._servers, self._commit, self._only = log, servers, commit, only
        self.failures: list[str] = []

    def measure(self, work: Workload, round_number: int) -> None:
        """Measure every server of a round that has no row yet."""
        planned = [name for name in PLAN[work.name] if self._is_wanted(name.removesuffix(AGAIN))]
        first = round_number % max(1, len(planned))
        left = [
            name for name in planned[first:] + planned[:first] if self._key(work, round_number, name) not in self._log
        ]
        if not left:
            return
        figures = {"read_gb_per_s": machine.read_gb_per_s(), "gemm_gflop_per_s": machine.gemm_gflop_per_s()}
        self._write(self._key(work, round_number, MACHINE), figures)
        for name in left:
            self._measure(self._key(work, round_number, name), work)

    def peak_per_s(self, round_number: int) -> float | None:
        """Return the calls that the tenants' server could answer in this round; None where it was not measured."""
        peak, *_ = workloads.TENANTS
        rows = [row for row in self._log.rows if row.key == Key(self._commit, peak, round_number, *PLAN[peak])]
        return float(rows[-1].figures["calls_per_s"]) if rows else None

    def _is_wanted(self, name: str) -> bool:
        return is_installed(name) and (not self._only or name in self._only)

    def _key(self, work: Workload, round_number: int, server: str) -> Key:
        return Key(self._commit, work.name, round_number, server)

    def _measure(self, key: Key, work: Workload) -> None:
        name = key.server.removesuffix(AGAIN)
        if work.name in workloads.STARTS:
            self._servers.end(name)
        began_s = time.perf_counter()
        try:
            with self._servers.awake(name) as server:
                figures = server.measure(work)
                if work.name == "start":
                    figures["start_s"] = time.perf_counter() - began_s
                elif work.name in workloads.STARTS:
                    figures["start_s"] = figures["wall_s"]
        except (CallFailed, ServerFailed, OSError, ValueError) as error:
            # The others go on; the next run tries this one again.
            self._servers.end(name)
            self.failures.append(f"{key.workload} round {key.round} {key.server}: {error}")
            print(f"FAILED {self.failures[-1]}", flush=True)
        else:
            self._write(key, figures)

    def _write(self, key: Key, figures: dict[str, float]) -> None:
        self._log.append(key, figures)
        shown = ("output_tokens_per_s", "ttft_p50_ms", "tpot_p50_ms", "start_s", "read_gb_per_s", "gemm_gflop_per_s")
        words = " ".join(f"{name} {figures[name]:.1f}" for name in shown if name in figures)
        print(f"{key.workload} round {key.round} {key.server:20} {words}", flush=True)


def main() -> int:
    """Measure whatever is left to measure; 1 when a server failed."""
    arguments = _parse()
    out: Path = arguments.out / "tiny" if arguments.tiny else arguments.out
    log = ResultLog(out / "serving.jsonl", fresh=arguments.fresh)
    names = workloads.expanded(arguments.workloads)
    trace = workloads.read_calls(arguments.trace) if arguments.trace else []
    if "D" in names and not trace:
        print(f"D is left out: it replays {workloads.TRACE_SOURCE}; name the file with --trace", flush=True)
        names.remove("D")
    for name in {name for planned in PLAN.values() for name in planned if not name.endswith(AGAIN)}:
        if not is_installed(name):
            print(f"{name} is left out: make peers installs it", flush=True)
    with Servers(arguments.model, out) as servers:
        bench = Bench(log, servers, measured_commit(), arguments.servers.split(",") if arguments.servers else ())
        for round_number in range(arguments.rounds or (2 if arguments.tiny else 5)):
            for name in names:
                peak_per_s = bench.peak_per_s(round_number)
                if name in workloads.TENANTS[1:] and peak_per_s is None:
                    continue
                work = workloads.workload(name, round_number, trace, peak_per_s=peak_per_s or 1.0, tiny=arguments.tiny)
                bench.measure(work, round_number)
    print(f"written to {out / 'serving.jsonl'}")
    for failure in bench.failures:
        print(f"FAILED {failure}")
    return 1 if bench.failures else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    default_model = REPOSITORY / "var" / "models" / "smollm2-135m-instruct"
    add = parser.add_argument
    add("--workloads", default="A,B,C,D,E,F,start", help="with commas (A,B,C,D,E,F,start)")
    add("--servers", default="", help=f"with commas; default: all of the plan, out of {', '.join(RECIPES)}")
    add("--rounds", type=int, help="5, or 2 where they are tiny")
    add("--trace", type=Path, default=os.environ.get("PAGODA_BENCH_TRACE"), help=f"for D: {workloads.TRACE_SOURCE}")
    add("--fresh", action="store_true", help="begin anew instead of going on")
    add(
        "--tiny", action="store_true", help="a few short calls, into a folder of their own: to try the benchmark itself"
    )
    add("--model", type=Path, default=Path(os.environ.get("PAGODA_MODEL_DIR", default_model)))
    add("--out", type=Path, default=REPOSITORY / "var" / "bench")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.servers.split(",") if name and name not in RECIPES]
    if unknown:
        parser.error(f"no server {', '.join(unknown)}; there are {', '.join(RECIPES)}")
    try:
        workloads.expanded(arguments.workloads)
    except ValueError as error:
        parser.error(str(error))
    return arguments


if __name__ == "__main__":
    sys.exit(main())
