"""The way of a rollout as its stages: what each asks, how far it is, and what was said of it. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from console.rollout_words import STATES, judged_words
from controlplane.rollouts.plan import Plan, span
from controlplane.rollouts.states import LIVE, TERMINAL, WEIGHTLESS, RolloutState
from controlplane.rollouts.view import View

_S = RolloutState
_Key = tuple[str, int]
_PREPARE, _APPROVAL, _ALL = ("prepare", 0), ("approval", 0), ("all", 0)
_AT_STEP = frozenset({_S.RAMP, _S.BAKE, _S.JUDGE, _S.INCONCLUSIVE})
_AT_ALL = frozenset({_S.PROMOTING, _S.BAKING_100, _S.PROMOTED})
_SAYS_NOTHING = (_S.WARM, _S.SHADOW)
"""What is said on leaving these is of the next stage."""
_PASSED = {_PREPARE: "Ready", _APPROVAL: "Approved"}


class Event(Protocol):
    """A row of the journal."""

    at: datetime
    old: str
    new: str
    step: int
    cause: str
    evidence: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage as the page shows it.

    Args:
        name: such as ``5 %``.
        asks: what must be there before the next one.
        standing: ``done``, ``running``, ``failed``, or empty: not reached.
        badge: how it stands, in words; empty where it was not reached.
        tone: the classes of the badge.
        said: what was said when it was left, or last while it is there.
        is_current: the rollout is here.
    """

    name: str
    asks: str
    standing: str
    badge: str
    tone: str
    said: str
    is_current: bool


def stages(view: View, events: Sequence[Event]) -> list[Stage]:
    """Return the stages of a rollout in their order, with what its journal says of each."""
    keys = _keys(view.plan)
    here, said = _walked(events)
    if view.at_work in LIVE or view.state is _S.PROMOTED:
        here = _key(view.at_work, view.step) or here
    at = keys.index(here) if here in keys else -1
    return [
        _stage(view, key, said.get(key, ""), place=(number > at) - (number < at))
        for number, key in enumerate(keys)
    ]  # fmt: skip


def _keys(plan: Plan) -> list[_Key]:
    keys = [_PREPARE]
    for number, step in enumerate(plan.steps):
        keys.append(("step", number))
        if step.weight == plan.approval_at:
            keys.append(_APPROVAL)
    return [*keys, _ALL]


def _key(state: RolloutState, step: int) -> _Key | None:
    if state in _AT_STEP:
        return "step", step
    if state in WEIGHTLESS - {_S.DRAFT}:
        return _PREPARE
    if state is _S.AWAITING_APPROVAL:
        return _APPROVAL
    return _ALL if state in _AT_ALL else None


def _walked(events: Sequence[Event]) -> tuple[_Key | None, dict[_Key, str]]:
    """Return the last stage that was reached, and what was said last in each."""
    here: _Key | None = None
    said: dict[_Key, str] = {}
    for event in events:
        if here is not None and event.old not in _SAYS_NOTHING:
            said[here] = judged_words(event.evidence) or event.cause
        here = _key(RolloutState(event.new), event.step) or here
    return here, said


def _stage(view: View, key: _Key, said: str, *, place: int) -> Stage:
    """Return a stage that the rollout is past (``place`` -1), in (0), or has not reached (1)."""
    name, asks = _words(view.plan, key)
    if place > 0:
        return Stage(name, asks, "", "", "", "", is_current=False)
    if place < 0 or view.state is _S.PROMOTED:
        return Stage(name, asks, "done", _PASSED.get(key, "Passed"), "good", said, is_current=False)
    badge, tone = STATES[view.state]
    if view.state in TERMINAL or view.state is _S.ROLLING_BACK:
        return Stage(name, asks, "failed", badge, tone, view.reason or said, is_current=False)
    if view.inconclusive_count and view.state is _S.BAKE:
        badge = f"{badge} once more"
    told = said if view.inconclusive_count or view.state is _S.PAUSED else ""
    return Stage(name, asks, "running", badge, tone, told, is_current=True)


def _words(plan: Plan, key: _Key) -> tuple[str, str]:
    if key == _PREPARE:
        return "Get ready", "Both versions fit, and the candidate is loaded and has answered a real request."
    if key == _APPROVAL:
        return "Approval", "A person other than the author looks at the verdicts and decides."
    if key == _ALL:
        kept = span(plan.keep_previous_s)
        return "100 %", f"Watched for {span(plan.bake_100_s)}. The version before is kept asleep for {kept}."
    step = plan.steps[key[1]]
    return f"{step.weight} %", f"At least {span(step.hold_s)} and {step.min_samples:,} of the candidate’s requests."
