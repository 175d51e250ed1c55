"""The child that judges: here its border, with children that misbehave. Real folders are in test_import.py."""

import sys
from pathlib import Path

import msgspec
import pytest

from controlplane.registry import inspection
from controlplane.registry.inspection import InspectionFailed
from dataplane.contracts.catalog import VersionFile
from dataplane.contracts.verdict import Refusal, Verdict


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch):
    """Runs a line of Python in place of the inspector."""

    def replace(code: str) -> None:
        monkeypatch.setattr(inspection, "_command", lambda _folder: [sys.executable, "-I", "-c", code])

    return replace


def printing(verdict: Verdict, code: int = 0) -> str:
    return f"import sys; sys.stdout.write({msgspec.json.encode(verdict).decode()!r}); sys.exit({code})"


def test_a_refusal_comes_back_with_file_reason_and_mend(child, tmp_path: Path) -> None:
    refusal = Refusal(file="model.pkl", reason="a pickle runs code", mend="save it as safetensors")
    child(printing(Verdict(refusals=(refusal,)), code=1))
    assert inspection.inspect(tmp_path).refusals == (refusal,)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import os; os.abort()", "was ended by SIGABRT"),
        ("raise SystemExit('no such thing')", "no such thing"),
        ("import sys; sys.exit(7)", "exit code 7"),
        ("while True: pass", "the inspector"),
        ("import time; time.sleep(60)", "stopped after 1 s"),
        ("", "printed no verdict"),
        ("print('{}x')", "printed no verdict"),
        ("print('{\"surprise\": 1}')", "printed no verdict"),
        ("print('{}')", "without saying what is in it"),
    ],
)
def test_a_child_that_misbehaves_is_named_and_gives_no_verdict(child, tmp_path, monkeypatch, code, message) -> None:
    monkeypatch.setattr(inspection, "_START_S", 1)
    child(code)
    with pytest.raises(InspectionFailed, match=message):
        inspection.inspect(tmp_path)


@pytest.mark.parametrize("name", ["../config.json", "a/b", ".hidden", "a\nb", "", "x" * 201])
def test_a_verdict_may_not_name_a_file_outside_the_folder(child, tmp_path: Path, name: str) -> None:
    child(printing(Verdict(files=(VersionFile(name=name, sha256="0" * 64, size_bytes=1),))))
    with pytest.raises(InspectionFailed, match="file names"):
        inspection.inspect(tmp_path)


def test_the_child_sees_none_of_our_environment(child, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGODA_INTERNAL_SECRET", "hunter2")
    child("import os, sys; sys.exit(sorted(set(os.environ) - {'LC_CTYPE'}) and 'leaked' or 7)")
    with pytest.raises(InspectionFailed, match="exit code 7"):
        inspection.inspect(tmp_path)
