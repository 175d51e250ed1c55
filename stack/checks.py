"""Everything CI checks, layer by layer, each with its budget of seconds: ``make test``.

Layers run in rounds, within a round two side by side, and each prints when it ends. Most keep one core busy. Faults
mostly wait (a minute without PostgreSQL), so the browser runs beside them, last. A layer over its budget is shown and
does not fail: machines are noisy, and a budget is there to be noticed early.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from stack.home import REPOSITORY

_PYTEST = (sys.executable, "-m", "pytest", "-q")
_SIDE_BY_SIDE = 2


@dataclass(frozen=True)
class Layer:
    """A command and how long it should take, in seconds."""

    name: str
    argv: tuple[str, ...]
    budget_s: int


@dataclass(frozen=True)
class Outcome:
    """How a layer ended."""

    layer: Layer
    seconds: float
    code: int

    @property
    def remark(self) -> str:
        """A word for the table, where there is something to say."""
        return "FAILED" if self.code else "over budget" if self.seconds > self.layer.budget_s else ""


def _tests(name: str, budget_s: int, *folders: str) -> Layer:
    return Layer(name, (*_PYTEST, *(f"tests/{folder}" for folder in folders or (name,))), budget_s)


_PARTS = (
    Layer("lint", (sys.executable, "-m", "ruff", "check", "."), 10),
    Layer("format", (sys.executable, "-m", "ruff", "format", "--check", "."), 10),
    Layer("imports", (str(Path(sys.executable).with_name("lint-imports")),), 20),
    Layer("types", (sys.executable, "-m", "mypy"), 90),
    # The longest first, so that none of them is left to run by itself.
    _tests("journeys", 180),
    _tests("registry", 120, "registry", "races"),
    _tests("pure", 90, "architecture", "atomic_file", "catalog", "contracts", "engine", "inspect", "sandbox", "spool"),
    _tests("fleet", 120),
    _tests("control", 100, "tenants", "jobs", "deployments", "metering", "notifications", "isolation"),
    _tests("rollouts", 120, "rollouts", "api"),
    _tests("worker", 90),
    _tests("gateway", 90, "gateway", "http_server"),
    _tests("console", 60),
    _tests("model", 90),
    _tests("hostile", 60),
    _tests("text", 60),
    _tests("stack", 30),
)
ROUNDS = (_PARTS, (_tests("e2e", 240), _tests("faults", 240)))
LAYERS = tuple(layer for layers in ROUNDS for layer in layers)


def main(names: list[str]) -> int:
    """Run the layers called ``names``, or all; 1 when any failed. Later layers run all the same, to show everything."""
    chosen = [layer for layer in LAYERS if not names or layer.name in names]
    unknown = set(names) - {layer.name for layer in LAYERS}
    if unknown:
        print(f"No layer {', '.join(sorted(unknown))}; there are: {', '.join(layer.name for layer in LAYERS)}")
        return 2
    began = time.monotonic()
    outcomes = list(_outcomes(chosen))
    print(f"\n{'layer':10}{'seconds':>9}{'budget':>8}")
    for outcome in outcomes:
        print(f"{outcome.layer.name:10}{outcome.seconds:9.1f}{outcome.layer.budget_s:8}  {outcome.remark}")
    failed = sum(1 for outcome in outcomes if outcome.code)
    print(f"in all {time.monotonic() - began:.0f} s")
    print(f"layers: {len(outcomes) - failed} passed, {failed} failed")
    return 1 if failed else 0


def _outcomes(chosen: Sequence[Layer]) -> Iterator[Outcome]:
    for layers in ROUNDS:
        with ThreadPoolExecutor(_SIDE_BY_SIDE) as pool:
            for done in as_completed([pool.submit(_run, layer) for layer in layers if layer in chosen]):
                yield done.result()


def _run(layer: Layer) -> Outcome:
    began = time.monotonic()
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    ended = subprocess.run(
        layer.argv, cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        check=False,
    )  # fmt: skip
    print(f"\n== {layer.name}\n{ended.stdout}", end="", flush=True)
    return Outcome(layer, time.monotonic() - began, ended.returncode)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
