"""Hold the memory planner against replicas that run, one at a time: ``make memory``, a few minutes.

Prints a table of what was predicted and what was measured (``tests/replica_memory.py`` says how), and the constants of
:mod:`dataplane.contracts.memory` as this machine has them. They are fitted to a replica of a tiny model, whose weights
are next to nothing, and to the bundled one's tokenizer; neither a precision nor a context length is fitted.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import replica_memory
from replica_memory import CONFIGURATIONS, Measured, measured, predicted, read_config
from tiny_models import make_tiny_llama

from dataplane.contracts.memory import Plan

_REPOSITORY = Path(__file__).resolve().parents[2]
_MIB = 1024**2
_CHILD = "dataplane.text.child"


def main() -> int:
    """Measure, print and write the report."""
    parser = argparse.ArgumentParser()
    default_model = _REPOSITORY / "var" / "models" / "smollm2-135m-instruct"
    parser.add_argument("--model", type=Path, default=Path(os.environ.get("PAGODA_MODEL_DIR", default_model)))
    parser.add_argument("--out", type=Path, default=_REPOSITORY / "var" / "bench" / "memory.json")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pagoda-memory-") as folder:
        runs, rows = _compare(arguments.model, Path(folder))
        constants = _constants(arguments.model, Path(folder), runs)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps({"configurations": rows, "constants": constants}, indent=2))
    print(f"\nwritten to {arguments.out}")
    return 0 if all(abs(row["error"]) <= replica_memory.MOST_ERROR for row in rows) else 1


def _compare(model_dir: Path, folder: Path) -> tuple[dict[tuple[str, int], Measured], list[dict[str, Any]]]:
    print("| dtype | context | predicted MiB | measured MiB | error | held: predicted | measured | error |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    runs, rows = {}, []
    for dtype, context_tokens in CONFIGURATIONS:
        plan = predicted(model_dir, dtype, context_tokens)
        run = runs[dtype, context_tokens] = measured(model_dir, folder / "runtime", dtype, context_tokens)
        row = {
            "dtype": dtype,
            "context_tokens": context_tokens,
            "predicted_bytes": plan.peak_bytes,
            "measured_bytes": run.peak_bytes,
            "error": plan.peak_bytes / run.peak_bytes - 1,
            "predicted_held_bytes": plan.held_bytes,
            "measured_held_bytes": run.held_bytes,
            "held_error": plan.held_bytes / run.held_bytes - 1,
            "items": {item.name: item.size_bytes for item in plan.items},
            "processes": run.processes,
        }
        rows.append(row)
        print(
            f"| {dtype} | {context_tokens} | {plan.peak_bytes / _MIB:,.0f} | {run.peak_bytes / _MIB:,.0f} "
            f"| {row['error']:+.1%} | {plan.held_bytes / _MIB:,.0f} | {run.held_bytes / _MIB:,.0f} "
            f"| {row['held_error']:+.1%} |",
            flush=True,
        )
    return runs, rows


def _constants(model_dir: Path, folder: Path, runs: dict[tuple[str, int], Measured]) -> dict[str, float]:
    """Return what the constants would be, each from the run that the one before leaves it."""
    tiny_dir = make_tiny_llama(folder / "tiny")
    vocabulary, tiny_vocabulary = (read_config(each).vocab_size for each in (model_dir, tiny_dir))
    run, plan = measured(tiny_dir, folder / "runtime", "fp32", 512), predicted(tiny_dir, "fp32", 512)
    per_token = (_held(runs["fp32", 512], _CHILD) - _held(run, _CHILD)) / (vocabulary - tiny_vocabulary)
    held = run.held_bytes - (plan.held_bytes - _item(plan, "processes")) - per_token * tiny_vocabulary
    mapped = run.peak_bytes - run.held_bytes - (plan.peak_bytes - plan.held_bytes - _item(plan, "libraries"))
    constants = {
        "processes held, MiB": held / _MIB,
        "libraries mapped, MiB": mapped / _MIB,
        "tokenizer, bytes a token": per_token,
    }
    print("\nConstants, as measured now:")
    for name, value in constants.items():
        print(f"  {name}: {value:.3g}")
    return constants


def _item(plan: Plan, name: str) -> int:
    return next(item.size_bytes for item in plan.items if item.name == name)


def _held(run: Measured, module: str) -> int:
    peak_bytes, mapped_bytes = run.processes[module]
    return peak_bytes - mapped_bytes


if __name__ == "__main__":
    sys.exit(main())
