"""Everything CI checks, layer by layer, each with its budget of seconds: ``make test``.

A layer over its budget is shown and does not fail: machines are noisy, and a budget is there to be noticed early.
"""

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from stack.home import REPOSITORY

_PYTEST = (sys.executable, "-m", "pytest", "-q")


@dataclass(frozen=True)
class Layer:
    """A command and how long it should take on two cores, in seconds."""

    name: str
    argv: tuple[str, ...]
    budget_s: int


def _tests(name: str, budget_s: int, *folders: str) -> Layer:
    return Layer(name, (*_PYTEST, *(f"tests/{folder}" for folder in folders or (name,))), budget_s)


LAYERS = (
    Layer("lint", (sys.executable, "-m", "ruff", "check", "."), 10),
    Layer("format", (sys.executable, "-m", "ruff", "format", "--check", "."), 10),
    Layer("imports", (str(Path(sys.executable).with_name("lint-imports")),), 20),
    Layer("types", (sys.executable, "-m", "mypy"), 90),
    _tests(
        "pure",
        90,
        "architecture",
        "atomic_file",
        "bounded_http",
        "catalog",
        "contracts",
        "engine",
        "inspect",
        "sandbox",
        "spool",
    ),
    _tests("text", 60),
    _tests("model", 120),
    _tests("worker", 90),
    _tests("gateway", 60),
    _tests("fleet", 60),
    _tests("control", 120, "tenants", "jobs", "registry", "deployments", "metering", "api", "races", "isolation"),
    _tests("console", 30),
    _tests("stack", 30),
    _tests("e2e", 120),
    _tests("faults", 210),
)


def main(names: list[str]) -> int:
    """Run the layers called ``names``, or all; 1 when any failed. Later layers run all the same, to show everything."""
    chosen = [layer for layer in LAYERS if not names or layer.name in names]
    unknown = set(names) - {layer.name for layer in LAYERS}
    if unknown:
        print(f"No layer {', '.join(sorted(unknown))}; there are: {', '.join(layer.name for layer in LAYERS)}")
        return 2
    rows = [(layer, *_run(layer)) for layer in chosen]
    print(f"\n{'layer':10}{'seconds':>9}{'budget':>8}")
    for layer, seconds, code in rows:
        remark = "FAILED" if code else "over budget" if seconds > layer.budget_s else ""
        print(f"{layer.name:10}{seconds:9.1f}{layer.budget_s:8}  {remark}")
    failed = sum(1 for _, _, code in rows if code)
    print(f"{'total':10}{sum(seconds for _, seconds, _ in rows):9.1f}{sum(layer.budget_s for layer in chosen):8}")
    print(f"layers: {len(rows) - failed} passed, {failed} failed")
    return 1 if failed else 0


def _run(layer: Layer) -> tuple[float, int]:
    print(f"\n== {layer.name}", flush=True)
    began = time.monotonic()
    code = subprocess.run(
        layer.argv, cwd=REPOSITORY, env={**os.environ, "PYTHONUNBUFFERED": "1"}, check=False
    ).returncode
    return time.monotonic() - began, code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
