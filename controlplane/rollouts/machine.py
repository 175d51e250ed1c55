"""The rollout machine, pure: what a tick makes of what it observes. :mod:`commands` has what people ask of it.

Each state has one function, which gives the transition that is due, with its cause in words. Time is an argument.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

from controlplane.rollouts.plan import span
from controlplane.rollouts.states import RolloutState
from controlplane.rollouts.view import (
    LOADING_LIMIT,
    Decision,
    Judgement,
    Observation,
    View,
    candidate_weight,
    has_weight,
    let_go,
    moved,
    next_step,
    paused,
    rolling_back,
)

MAX_FAILED_STARTS = 3
UNREADY_GRACE = timedelta(seconds=10)
"""A replica that is replaced, or one report of the fleet that was lost, is no end of a rollout."""
LEAST_PATIENCE = timedelta(seconds=60)
_LIMIT = span(int(LOADING_LIMIT.total_seconds()))
LONGEST_BAKE = timedelta(hours=24)
"""A step whose samples would take longer at the pace seen is inconclusive."""


def unready_since(view: View, seen: Observation, now: datetime) -> datetime | None:
    """Return since when a candidate with weight has had no READY replica; None where it has one, or no weight."""
    if not has_weight(view) or seen.candidate_ready > 0:
        return None
    return view.unready_since or now


def tick(view: View, seen: Observation, now: datetime) -> Decision | None:
    """Return the transition that is due, or None. What leads back comes first, and no freeze stops it.

    Args:
        view: the rollout, with :func:`unready_since` brought up to date.
        seen: what was observed of it in this state.
        now: the time.
    """
    if view.state is RolloutState.ROLLING_BACK:
        return _rolled_back(view, seen, now)
    danger = _danger(view, seen, now)
    if danger:
        return rolling_back(view, now, danger, seen.judgement)
    step = _FORWARD.get(view.state)
    return step(view, seen, now) if step is not None and not seen.frozen else None


def _danger(view: View, seen: Observation, now: datetime) -> str:
    """Say why the candidate must not go on; empty where it may."""
    if view.at_work in (RolloutState.LOADING, RolloutState.WARM, RolloutState.SHADOW):
        if seen.failed_starts >= MAX_FAILED_STARTS:
            return f"The candidate failed to start {seen.failed_starts} times. {seen.trouble}".strip()
        # By a clock that a freeze does not stop: who is READY, and only held up, is no danger.
        is_late = view.state is not RolloutState.PAUSED and now - view.entered_at >= LOADING_LIMIT
        if is_late and seen.candidate_ready < seen.candidate_wanted:
            of = "No replica" if seen.candidate_ready < 1 else f"Only {seen.candidate_ready} replicas"
            return f"{of} of the candidate became READY within {_LIMIT}. {seen.trouble}".strip()
    if not has_weight(view):
        return ""
    if seen.judgement is not None and seen.judgement.outcome == "hard_stop":
        return seen.judgement.words
    if view.unready_since is not None and now - view.unready_since >= UNREADY_GRACE:
        lost = span(int((now - view.unready_since).total_seconds()))
        return f"The candidate has had no READY replica for {lost} while it had traffic. {seen.trouble}".strip()
    return ""


def _preflight(view: View, seen: Observation, now: datetime) -> Decision | None:
    if seen.fit is None:
        return None
    if seen.fit.outcome == "refused":
        cause = f"Preflight refused: {seen.fit.words}"
        return Decision(moved(view, RolloutState.ABORTED, now, reason=cause), cause)
    return Decision(moved(view, RolloutState.LOADING, now), f"Preflight passed. {seen.fit.words}")


def _loading(view: View, seen: Observation, now: datetime) -> Decision | None:
    if not seen.published or seen.candidate_ready < seen.candidate_wanted:
        return None
    cause = f"{seen.candidate_ready} of {seen.candidate_wanted} replicas of the candidate are READY: verified, warmed "
    return Decision(moved(view, RolloutState.WARM, now), cause + "up, and each has answered a real request.")


def _warm(view: View, seen: Observation, now: datetime) -> Decision | None:
    cause = "Shadow traffic was not run; whoever approves must say why it may be done without."
    return Decision(moved(view, RolloutState.SHADOW, now), cause)


def _shadow(view: View, seen: Observation, now: datetime) -> Decision | None:
    if seen.candidate_ready < 1:
        return None  # no weight to a version that is not WARM
    after = moved(view, RolloutState.RAMP, now, step=0, step_started_at=now)
    return Decision(after, f"The candidate takes {after.here.weight} % of the traffic.")


def _ramp(view: View, seen: Observation, now: datetime) -> Decision | None:
    if now - view.entered_at >= LOADING_LIMIT and seen.candidate_ready < seen.candidate_wanted:
        cause = (
            f"Only {seen.candidate_ready} of the {seen.candidate_wanted} replicas that {candidate_weight(view)} % of "
            f"the traffic calls for became READY. {seen.trouble}"
        ).strip()
        return paused(view, now, cause)
    if not _settled_in(view, seen, now):
        return None
    # What was sampled while the weight changed says nothing of the step.
    after = moved(view, RolloutState.BAKE, now, step_started_at=now)
    return Decision(after, f"{view.here.weight} % of the traffic is on the candidate; samples count from now on.")


def _bake(view: View, seen: Observation, now: datetime) -> Decision | None:
    assert view.due_at is not None  # noqa: S101  # a bake has an end
    if now < view.due_at:
        return None
    if seen.samples >= view.here.min_samples:
        cause = f"{seen.samples} requests of the candidate have settled in {span(_seconds(view, now))}."
        return Decision(moved(view, RolloutState.JUDGE, now), cause)
    patience = max(3 * timedelta(seconds=view.here.hold_s), LEAST_PATIENCE)
    if now < view.due_at + patience:
        return None
    expected_s = _seconds(view, now) * view.here.min_samples / max(seen.samples, 1)
    if seen.samples > 0 and expected_s <= LONGEST_BAKE.total_seconds():
        return None
    cause = (
        f"Only {seen.samples} of {view.here.min_samples} requests came in {span(_seconds(view, now))}: too few to say "
        "anything of the candidate."
    )
    return _inconclusive(view, now, cause)


def _judge(view: View, seen: Observation, now: datetime) -> Decision | None:
    judgement = seen.judgement
    if judgement is None:
        return None
    looked = replace(view, looks=view.looks + 1)
    if judgement.outcome == "fail":
        return rolling_back(looked, now, judgement.words, judgement)
    if judgement.outcome == "inconclusive":
        return _inconclusive(looked, now, judgement.words, judgement)
    if view.here.weight == view.plan.approval_at:
        after = moved(looked, RolloutState.AWAITING_APPROVAL, now, inconclusive_count=0)
        return Decision(after, f"{judgement.words} Now a person decides.", judgement)
    if seen.candidate_ready < 1:
        return None  # more weight only to a version that is WARM
    after = next_step(looked, now)
    return Decision(after, f"{judgement.words} The candidate takes {candidate_weight(after)} %.", judgement)


def _inconclusive(view: View, now: datetime, cause: str, judgement: Judgement | None = None) -> Decision:
    count = view.inconclusive_count + 1
    if count > 1:
        cause = f"Inconclusive twice at {view.here.weight} %. {cause}"
        return paused(replace(view, inconclusive_count=count), now, cause, judgement)
    after = moved(view, RolloutState.INCONCLUSIVE, now, inconclusive_count=count, reason=cause)
    return Decision(after, cause, judgement)


def _bake_again(view: View, seen: Observation, now: datetime) -> Decision | None:
    cause = f"Bakes once more at {view.here.weight} %; what was sampled before counts on."
    return Decision(moved(view, RolloutState.BAKE, now), cause)


def _promoting(view: View, seen: Observation, now: datetime) -> Decision | None:
    if not _settled_in(view, seen, now):
        return None
    after = moved(view, RolloutState.BAKING_100, now)
    return Decision(after, "All traffic is on the candidate; the version before is held READY.")


def _baking_100(view: View, seen: Observation, now: datetime) -> Decision | None:
    if view.due_at is None or now < view.due_at or seen.candidate_ready < 1:
        return None
    until = now + timedelta(seconds=view.plan.keep_previous_s)
    after = moved(view, RolloutState.PROMOTED, now, previous_until=until)
    kept = span(view.plan.keep_previous_s)
    return Decision(after, f"The candidate is the stable version now; the one before stays asleep for {kept}.")


def _let_go(view: View, seen: Observation, now: datetime) -> Decision | None:
    if view.previous_until is None or now < view.previous_until:
        return None
    return let_go(view, now, "The version before is let go: its time has passed.")


def _rolled_back(view: View, seen: Observation, now: datetime) -> Decision | None:
    if view.previous_until is not None:
        if seen.served and seen.previous_ready < 1:
            return None  # no traffic to a version that is not READY, the one before included
        after = moved(view, RolloutState.ROLLED_BACK, now, previous_until=None)
        how = "is READY and takes all traffic again" if seen.served else "serves once the deployment goes on"
        return Decision(after, f"The version before {how}.")
    if not seen.published:
        return None
    return Decision(moved(view, RolloutState.ROLLED_BACK, now), "All traffic is on the stable version.")


def _settled_in(view: View, seen: Observation, now: datetime) -> bool:
    """Whether a new weight is in force: known to the data plane, its time over, its replicas there."""
    is_due = view.due_at is None or now >= view.due_at
    return is_due and seen.published and seen.candidate_ready >= seen.candidate_wanted


def _seconds(view: View, now: datetime) -> int:
    return int((now - (view.step_started_at or view.entered_at)).total_seconds())


_FORWARD: dict[RolloutState, Callable[[View, Observation, datetime], Decision | None]] = {
    RolloutState.PREFLIGHT: _preflight,
    RolloutState.LOADING: _loading,
    RolloutState.WARM: _warm,
    RolloutState.SHADOW: _shadow,
    RolloutState.RAMP: _ramp,
    RolloutState.BAKE: _bake,
    RolloutState.JUDGE: _judge,
    RolloutState.INCONCLUSIVE: _bake_again,
    RolloutState.PROMOTING: _promoting,
    RolloutState.BAKING_100: _baking_100,
    RolloutState.PROMOTED: _let_go,
}
