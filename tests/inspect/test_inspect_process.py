import json
import subprocess
import sys
from pathlib import Path

import pytest

from dataplane.contracts import verdict as contract
from dataplane.contracts.verdict import Verdict
from tests.text import tokenizer_files


def judge(folder: Path, *options: str) -> tuple[int, Verdict | None, str]:
    """Run the program as a caller does: no environment, another working folder."""
    command = [sys.executable, "-I", "-m", "dataplane.inspect", str(folder), *options]
    done = subprocess.run(command, capture_output=True, env={}, cwd="/", timeout=120, check=False)
    return done.returncode, contract.decode(done.stdout) if done.stdout else None, done.stderr.decode()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tokenizer_files.byte_level(tmp_path / "model")


def test_accepted_is_0_refused_is_1_and_used_wrongly_is_2(model: Path) -> None:
    code, verdict, _ = judge(model)
    assert code == 0
    assert verdict is not None
    assert verdict.refusals == ()
    (model / "evil.py").write_text("x")
    code, verdict, _ = judge(model)
    assert code == 1
    assert verdict is not None
    assert verdict.refusals[0].file == "evil.py"
    code, verdict, said = judge(model / "nothing")
    assert (code, verdict) == (2, None)
    assert "cannot read the folder" in said
    assert judge(model, "--no-such-option")[0] == 2


def test_the_verdict_is_one_line_of_json(model: Path) -> None:
    command = [sys.executable, "-I", "-m", "dataplane.inspect", str(model)]
    output = subprocess.run(command, capture_output=True, check=True).stdout
    assert output.count(b"\n") == 1
    assert json.loads(output)["files"]
