import os
import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane.contracts import failpoints
from dataplane.contracts.failpoints import Action, FailpointError, Trigger


@pytest.fixture(autouse=True)
def unarmed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_armed", "_hits", "_acts"):
        monkeypatch.setattr(failpoints, name, {})


@pytest.fixture
def points_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "failpoints"
    monkeypatch.setenv(failpoints.FILE_ENVIRONMENT, str(path))
    return path


def raises(name: str, key: str = "") -> bool:
    try:
        failpoints.hit(name, key)
    except FailpointError:
        return True
    return False


def test_nothing_is_armed_unless_the_environment_says_so() -> None:
    assert failpoints.parse(os.environ.get(failpoints.ENVIRONMENT, "")) == {}
    assert failpoints.hit("worker.admitted") is None


def test_points_are_armed_by_name_action_and_hit() -> None:
    assert failpoints.parse("a.b=kill, c=raise@3, d=delay:80@3+,e=stop%20, engine.logits=truncate:2") == {
        "a.b": Trigger(Action.KILL),
        "c": Trigger(Action.RAISE, first=3),
        "d": Trigger(Action.DELAY, 80, first=3, every=1),
        "e": Trigger(Action.STOP, first=20, every=20),
        "engine.logits": Trigger(Action.TRUNCATE, 2),
    }


@pytest.mark.parametrize(
    "text",
    [
        "a", "a=explode", "=kill", "a=kill@x", "a=kill@-1", "a=kill@0", "a=raise%0", "a=raise@2%3", "a=raise+",
        "a=delay", "a=kill:3", "engine.logits=truncate", "engine.row=nan", "a=kill, a=raise",
    ],
)  # fmt: skip
def test_a_text_that_arms_nothing_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="PAGODA_FAILPOINTS"):
        failpoints.parse(text)


@pytest.mark.parametrize(
    ("when", "hits"), [("", [1]), ("@2", [2]), ("@3+", [3, 4, 5, 6, 7]), ("%3", [3, 6]), ("%1", [1, 2, 3, 4, 5, 6, 7])]
)
def test_a_point_acts_at_its_hits_and_only_then(when: str, hits: list[int]) -> None:
    failpoints.arm(f"p=raise{when}")
    assert [number for number in range(1, 8) if raises("p")] == hits
    assert not raises("other")


@given(st.integers(1, 50), st.integers(0, 50), st.integers(1, 200))
def test_every_so_many_hits_is_that_share_of_them(first: int, every: int, hits: int) -> None:
    acted = sum(Trigger(Action.RAISE, first=first, every=every).acts_at(number) for number in range(1, hits + 1))
    if hits < first:
        assert acted == 0
    else:
        assert acted == (1 + (hits - first) // every if every else 1)


def test_what_passes_a_point_often_counts_once_and_meets_the_same_fate_each_time() -> None:
    failpoints.arm("p=raise%2")
    assert [raises("p", "first"), raises("p", "second"), raises("p", "third")] == [False, True, False]
    assert [raises("p", "second"), raises("p", "second"), raises("p", "first")] == [True, True, False]
    assert raises("p", "fourth")


def test_a_point_of_values_tells_what_to_do_and_the_others_act_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(failpoints.time, "sleep", slept.append)
    monkeypatch.setattr(failpoints.os, "kill", lambda *call: killed.append(call))
    failpoints.arm("engine.logits=truncate:3, a=delay:80, b=kill, c=stop")
    assert failpoints.hit("engine.logits") == Trigger(Action.TRUNCATE, 3)
    assert [failpoints.hit(name) for name in "abc"] == [None, None, None]
    assert slept == [0.08]
    assert killed == [(os.getpid(), signal.SIGKILL), (os.getpid(), signal.SIGSTOP)]


def test_a_file_arms_the_points_of_one_version_and_is_read_anew(points_file: Path) -> None:
    assert failpoints.of_version("ver_a") == ""
    points_file.write_text("ver_a: p=raise@2, q=kill\n\nver_b: p=kill\nver_a: engine.step=delay:5%1\n")
    assert failpoints.parse(failpoints.of_version("ver_a")) == failpoints.parse(
        "p=raise@2, q=kill, engine.step=delay:5%1"
    )
    assert failpoints.of_version("ver_c") == ""
    points_file.write_text("")
    assert failpoints.of_version("ver_a") == ""


@pytest.mark.parametrize("line", ["ver_a p=kill", "ver_a: p=explode"])
def test_a_file_with_a_line_that_arms_nothing_is_refused_whatever_version_it_names(
    points_file: Path, line: str
) -> None:
    points_file.write_text(f"ver_b: p=kill\n{line}\n")
    with pytest.raises(ValueError, match="PAGODA_FAILPOINTS"):
        failpoints.of_version("ver_b")
