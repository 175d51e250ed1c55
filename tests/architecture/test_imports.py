"""The import contracts hold, and a planted violation of each one is caught."""

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = ("tenants", "controlplane", "dataplane", "console")
VIOLATIONS = {
    "1. layers of the control plane": ("tenants/actor.py", "import controlplane.registry.models"),
    "2. the data plane knows nothing of the control plane": ("dataplane/gateway/app.py", "import tenants.models"),
    "3. the engine is pure": ("dataplane/engine/scheduler.py", "import torch"),
    "4a. gateway, worker and fleet do not import each other": ("dataplane/gateway/app.py", "import dataplane.fleet"),
    "4b. gateway and fleet have no model code": ("dataplane/gateway/app.py", "import dataplane.engine.engine"),
    "4c. the HTTP server knows none of its applications": (
        "dataplane/http_server/server.py",
        "import dataplane.gateway.app",
    ),
    "4d. the simulator needs no model and no server": ("dataplane/sim/serving.py", "import torch"),
    "4e. nothing needs the simulator": ("dataplane/fleet/placement.py", "import dataplane.sim.costs"),
    "5. Django reaches the data plane through contracts, and never torch": (
        "console/urls.py",
        "import dataplane.worker",
    ),
    "6. console and api use services and selectors only": ("console/urls.py", "import tenants.models"),
    "7. services never import Celery or tasks": ("controlplane/jobs/services.py", "import celery"),
    "8. what reads strangers' files and grammars is loaded in children only": (
        "dataplane/worker/masks.py",
        "import dataplane.text.matcher",
    ),
}


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("lint-imports")
    return subprocess.run(
        [program, "--no-cache"], cwd=folder, capture_output=True, text=True, check=False,
        env={"PYTHONPATH": str(folder), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("planted")
    for package in PACKAGES:
        shutil.copytree(REPOSITORY / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPOSITORY / "pyproject.toml", folder)
    return folder


def test_every_contract_has_a_planted_violation() -> None:
    contracts = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    assert {contract["name"] for contract in contracts} == set(VIOLATIONS)


def test_the_tree_keeps_its_contracts(copy: Path) -> None:
    result = lint(copy)
    assert result.returncode == 0, result.stdout


def test_planted_violations_are_caught(copy: Path) -> None:
    for name, (path, statement) in VIOLATIONS.items():
        target = copy / path
        original = target.read_text()
        target.write_text(f"{original}\n{statement}\n")
        try:
            result = lint(copy)
        finally:
            target.write_text(original)
        assert result.returncode != 0, f"not caught: {name}"
        assert f"{name} BROKEN" in result.stdout, result.stdout
