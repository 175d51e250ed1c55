"""The child that judges: here its border, with children that misbehave. Real folders are in test_import.py."""

import sys
from pathlib import Path

import msgspec
import pytest

from controlplane.registry import inspection
from controlplane.registry.inspection import InspectionFailed
from dataplane.contracts.catalog import VersionFile
from dataplane.contracts.verdict import Check, CheckState, Progress, Refusal, Verdict


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


def telling(*lines: bytes, then: str) -> str:
    return (
        "import os, sys, time; descriptor = int(sys.argv[1].partition('=')[2]); "
        f"[os.write(descriptor, line) for line in {lines!r}]; {then}"
    )


def test_progress_is_told_in_whole_lines_while_the_child_works(child, tmp_path: Path) -> None:
    begun, ended = Progress("config"), Progress("config", ended=Check("config", CheckState.PASSED, ms=3))
    raw = b"".join(msgspec.json.encode(news) + b"\n" for news in (begun, ended))
    child(telling(raw[:10], raw[10:], then=printing(Verdict(refusals=(Refusal("", "no", "yes"),)), code=1)))
    told: list[Progress | None] = []
    inspection.inspect(tmp_path, tell=told.append)
    assert told == [begun, ended]


def test_a_silent_child_leaves_time_to_renew_a_lease(child, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "_QUIET_S", 0.05)
    child("import time; time.sleep(0.5); import sys; sys.exit(7)")
    told: list[Progress | None] = []
    with pytest.raises(InspectionFailed, match="exit code 7"):
        inspection.inspect(tmp_path, tell=told.append)
    assert told
    assert set(told) == {None}


@pytest.mark.parametrize(
    ("written", "message"), [(r"b'{}\n'", "something else than progress"), ("b'x' * 200_000", "has no end")]
)
def test_progress_that_is_none_ends_the_child(child, tmp_path: Path, written: str, message: str) -> None:
    child(telling(then=f"os.write(descriptor, {written}); time.sleep(60)"))
    with pytest.raises(InspectionFailed, match=message):
        inspection.inspect(tmp_path)


def test_what_the_listener_raises_ends_the_child(child, tmp_path: Path) -> None:
    marker = tmp_path / "went on"
    child(telling(msgspec.json.encode(Progress("config")) + b"\n", then=f"time.sleep(2); open({str(marker)!r}, 'w')"))

    def give_up(_: Progress | None) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        inspection.inspect(tmp_path, tell=give_up)
    assert not marker.exists()
