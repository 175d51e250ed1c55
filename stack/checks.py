"""Everything CI checks, layer by layer, each with its budget of seconds: ``make test``.

Three layers run side by side on two cores, since those that drive real processes wait for half of their time; each
prints when it ends. The longest come first, so that none is left to run by itself. A layer over its budget is shown and
does not fail: machines are noisy, and a budget is there to be noticed early. What takes minutes, and finds no more on
most days, is marked ``slow`` and left to ``make soak``.

What failed in a layer that drives real processes is tried once more at the end, by itself. If it passes then, the layer
is UNSTEADY: its output is printed like that of a failure, for a test that a slow neighbour can fail is a test to mend,
but it does not fail the run.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path

from stack.home import REPOSITORY

_PYTEST = (sys.executable, "-m", "pytest", "-q")
_AGAIN = ("--last-failed", "--last-failed-no-failures", "none")
_TESTS_FAILED = 1
_SIDE_BY_SIDE = 3
_SHOWN_CHARACTERS = 8000


@dataclass(frozen=True)
class Layer:
    """A command and how long it should take, in seconds; ``live`` ones drive real processes, and wait for them."""

    name: str
    argv: tuple[str, ...]
    budget_s: int
    live: bool = False


@dataclass(frozen=True)
class Outcome:
    """How a layer ended."""

    layer: Layer
    seconds: float
    code: int
    output: str
    unsteady: bool = False

    @property
    def remark(self) -> str:
        """A word for the table, where there is something to say."""
        if self.code:
            return "FAILED"
        return "UNSTEADY" if self.unsteady else "over budget" if self.seconds > self.layer.budget_s else ""


def _tests(name: str, budget_s: int, *folders: str, live: bool = False) -> Layer:
    cache = ("-o", f"cache_dir=.pytest_cache/{name}")
    return Layer(name, (*_PYTEST, *cache, *(f"tests/{folder}" for folder in folders or (name,))), budget_s, live)


LAYERS = (
    _tests("e2e", 240, live=True),
    _tests("faults", 150, live=True),
    Layer("lint", (sys.executable, "-m", "ruff", "check", "."), 10),
    Layer("format", (sys.executable, "-m", "ruff", "format", "--check", "."), 10),
    Layer("imports", (str(Path(sys.executable).with_name("lint-imports")),), 20),
    Layer("types", (sys.executable, "-m", "mypy"), 60),
    _tests("journeys", 180, live=True),
    _tests("console", 180, "console", "rollouts", "api"),
    _tests("fleet", 120, live=True),
    _tests("registry", 120, "registry", "races"),
    _tests("control", 100, "tenants", "jobs", "deployments", "metering", "notifications", "isolation"),
    _tests("worker", 90, live=True),
    _tests("model", 90, "model", "kernels"),
    _tests("gateway", 90, "gateway", "http_server", live=True),
    _tests("hostile", 60),
    _tests("engine", 60, "engine", "mutants", "sim", "bench"),
    _tests("pure", 60, "architecture", "atomic_file", "catalog", "contracts", "inspect", "sandbox", "spool"),
    _tests("text", 60),
    _tests("stack", 30, live=True),
)


def main(names: list[str]) -> int:
    """Run the layers called ``names``, or all; 1 when any failed. Later layers run all the same, to show everything."""
    chosen = [layer for layer in LAYERS if not names or layer.name in names]
    unknown = set(names) - {layer.name for layer in LAYERS}
    if unknown:
        print(f"No layer {', '.join(sorted(unknown))}; there are: {', '.join(layer.name for layer in LAYERS)}")
        return 2
    began = time.monotonic()
    outcomes = [_tried_again(outcome) for outcome in list(_outcomes(chosen))]
    for outcome in outcomes:
        if outcome.code or outcome.unsteady:
            print(f"\n== {outcome.layer.name}: {outcome.remark}\n{outcome.output[-_SHOWN_CHARACTERS:]}", end="")
    print(f"\n{'layer':10}{'seconds':>9}{'budget':>8}")
    for outcome in outcomes:
        print(f"{outcome.layer.name:10}{outcome.seconds:9.1f}{outcome.layer.budget_s:8}  {outcome.remark}")
    failed = sum(1 for outcome in outcomes if outcome.code)
    print(f"in all {time.monotonic() - began:.0f} s")
    print(f"layers: {len(outcomes) - failed} passed, {failed} failed")
    for outcome in outcomes:
        if outcome.code or outcome.unsteady:  # once more in few words: the end is what is read first
            print(f"{outcome.layer.name} {outcome.remark}: {_failures(outcome.output)}")
    return 1 if failed else 0


def _outcomes(chosen: Sequence[Layer]) -> Iterator[Outcome]:
    with ThreadPoolExecutor(_SIDE_BY_SIDE) as pool:
        for done in as_completed([pool.submit(_run, layer) for layer in chosen]):
            outcome = done.result()
            print(f"\n== {outcome.layer.name}\n{outcome.output}", end="", flush=True)
            yield outcome


def _run(layer: Layer, *more: str) -> Outcome:
    began = time.monotonic()
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    ended = subprocess.run(
        (*layer.argv, *more), cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, check=False,
    )  # fmt: skip
    return Outcome(layer, time.monotonic() - began, ended.returncode, ended.stdout)


def _tried_again(first: Outcome) -> Outcome:
    if not first.layer.live or first.code != _TESTS_FAILED:
        return first
    print(f"\n== {first.layer.name}, what failed, by itself", flush=True)
    again = _run(first.layer, *_AGAIN)
    print(again.output, end="", flush=True)
    return replace(first, seconds=first.seconds + again.seconds, code=again.code, unsteady=not again.code)


def _failures(output: str) -> str:
    """The lines in which pytest names what failed, or else the last ones that the command wrote."""
    lines = output.strip().splitlines()
    named = [line for line in lines if line.startswith(("FAILED ", "ERROR "))]
    return "\n  ".join(["", *(line[:300] for line in named[:20] or lines[-5:])])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
