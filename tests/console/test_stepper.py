"""The stages of a rollout, from its journal alone."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest

from console.stepper import stages
from controlplane.rollouts.plan import DEFAULT_PLAN
from controlplane.rollouts.states import RolloutState as S
from controlplane.rollouts.view import View

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = ["Get ready", "1 %", "5 %", "25 %", "50 %", "Approval", "100 %"]
PASSED = {"words": "All gates pass.", "candidate": {"requests": 9}, "stable": {"requests": 99}}


@dataclass
class Event:
    old: str
    new: str
    step: int
    cause: str = "because"
    evidence: dict[str, Any] = field(default_factory=dict)
    at: datetime = NOW


BEGIN = [
    Event("", S.DRAFT, -1), Event(S.DRAFT, S.PREFLIGHT, -1), Event(S.PREFLIGHT, S.LOADING, -1, "It fits."),
    Event(S.LOADING, S.WARM, -1, "1 of 1 is READY."), Event(S.WARM, S.SHADOW, -1, "not run"),
    Event(S.SHADOW, S.RAMP, 0, "The candidate takes 1 %."),
]  # fmt: skip
FIRST = [Event(S.RAMP, S.BAKE, 0), Event(S.BAKE, S.JUDGE, 0), Event(S.JUDGE, S.RAMP, 1, "goes on", PASSED)]


def view(state: S, step: int = -1, **more: Any) -> View:
    return View(
        stable_version_id="ver_1", candidate_version_id="ver_2", candidate_digest="0" * 64, plan=DEFAULT_PLAN,
        author="", state=state, step=step, entered_at=NOW, **more,
    )  # fmt: skip


def standings(state: S, events: list[Event], step: int = -1, **more: Any) -> list[str]:
    return [stage.standing for stage in stages(view(state, step, **more), events)]


def test_a_draft_has_reached_nothing():
    shown = stages(view(S.DRAFT), BEGIN[:1])
    assert [stage.name for stage in shown] == NAMES
    assert {(stage.standing, stage.badge, stage.is_current) for stage in shown} == {("", "", False)}


def test_what_was_passed_says_by_what_and_the_current_one_is_marked():
    shown = stages(view(S.BAKE, 1), [*BEGIN, *FIRST, Event(S.RAMP, S.BAKE, 1)])
    assert [stage.standing for stage in shown] == ["done", "done", "running", "", "", "", ""]
    assert [stage.said for stage in shown[:3]] == [
        "1 of 1 is READY.", "All gates pass. 9 of its requests against 99.", "",
    ]  # fmt: skip
    assert [stage.name for stage in shown if stage.is_current] == ["5 %"]


@pytest.mark.parametrize(
    ("state", "more", "place"),
    [
        (S.LOADING, {}, 0),
        (S.RAMP, {"step": 0}, 1),
        (S.JUDGE, {"step": 3}, 4),
        (S.AWAITING_APPROVAL, {"step": 3}, 5),
        (S.PROMOTING, {"step": 3}, 6),
        (S.BAKING_100, {"step": 3}, 6),
        (S.PAUSED, {"step": 2, "paused_from": S.BAKE}, 3),
        (S.PAUSED, {"step": 3, "paused_from": S.AWAITING_APPROVAL}, 5),
    ],
)
def test_each_state_has_its_place(state, more, place):
    expected = ["done"] * place + ["running"] + [""] * (len(NAMES) - place - 1)
    assert standings(state, BEGIN, **more) == expected


def test_a_rollback_marks_where_it_was_met_with_its_reason():
    events = [*BEGIN, *FIRST, Event(S.RAMP, S.ROLLING_BACK, 1, "too slow"), Event(S.ROLLING_BACK, S.ROLLED_BACK, 1)]
    shown = stages(view(S.ROLLED_BACK, 1, reason="too slow"), events)
    assert [stage.standing for stage in shown] == ["done", "done", "failed", "", "", "", ""]
    assert (shown[2].badge, shown[2].said) == ("Rolled back", "too slow")
    assert not any(stage.is_current for stage in shown)


def test_all_is_done_when_it_is_promoted_and_a_rollback_after_that_marks_the_last():
    promoted = [*BEGIN, *FIRST, Event(S.BAKING_100, S.PROMOTED, 3)]
    assert standings(S.PROMOTED, promoted, 3) == ["done"] * 7
    rolled = [*promoted, Event(S.PROMOTED, S.ROLLING_BACK, 3), Event(S.ROLLING_BACK, S.ROLLED_BACK, 3)]
    assert standings(S.ROLLED_BACK, rolled, 3) == ["done"] * 6 + ["failed"]


def test_too_little_data_is_told_while_it_bakes_once_more():
    events = [*BEGIN, Event(S.RAMP, S.BAKE, 0), Event(S.BAKE, S.INCONCLUSIVE, 0, "Only 3 of 765 requests came.")]
    assert stages(view(S.INCONCLUSIVE, 0, inconclusive_count=1), events)[1].badge == "Not enough data"
    again = stages(view(S.BAKE, 0, inconclusive_count=1), [*events, Event(S.INCONCLUSIVE, S.BAKE, 0, "once more")])[1]
    assert again.badge == "Baking once more"
