"""What `make test` says of layers that pass, fail, and fail only once."""

import sys
from pathlib import Path

import pytest

from stack import checks
from stack.checks import Layer

FAILS_UNTIL_TRIED = """
from pathlib import Path

def test_that_passes():
    Path({marks!r}).open("a").write("passed ")

def test_that_fails_at_first():
    tried = Path({tried!r})
    known = tried.exists()
    tried.touch()
    assert known and {passes_then}
"""


@pytest.fixture
def layer(tmp_path: Path, request: pytest.FixtureRequest) -> Layer:
    live, passes_then = request.param
    source = FAILS_UNTIL_TRIED.format(
        marks=str(tmp_path / "marks"), tried=str(tmp_path / "tried"), passes_then=passes_then
    )
    (tmp_path / "test_it.py").write_text(source)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    bare = ("env", "PYTEST_DISABLE_PLUGIN_AUTOLOAD=1", sys.executable, "-m", "pytest", "-q")  # starts in a moment
    argv = (*bare, "-o", f"cache_dir={tmp_path / 'cache'}", str(tmp_path))
    return Layer("it", argv, 60, live)


@pytest.mark.parametrize(
    ("layer", "status", "remark"),
    [((True, True), 0, "UNSTEADY"), ((True, False), 1, "FAILED"), ((False, True), 1, "FAILED")],
    indirect=["layer"],
)
def test_what_failed_is_tried_once_more_alone_where_processes_are_waited_for(
    layer: Layer, status: int, remark: str,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(checks, "LAYERS", (layer,))
    assert checks.main([]) == status
    last = capsys.readouterr().out.rsplit("layers: ", 1)[1]
    assert f"it {remark}:" in last
    assert "test_that_fails_at_first" in last  # which test it was, in the last words
    assert (tmp_path / "marks").read_text() == "passed "  # and nothing else was run again


def test_a_layer_that_does_not_exist_is_named_with_those_that_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert checks.main(["no-such-layer"]) == 2
    assert "No layer no-such-layer; there are: " in capsys.readouterr().out
