"""What people ask of a rollout, pure: each command is one transition, or refused with what to do instead.

All but a rollback are refused where the rollout has moved on; a rollback is applied whatever state it meets.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime

from controlplane.rollouts.gates import NEEDS_WAIVER
from controlplane.rollouts.states import LIVE, PAUSABLE, WEIGHTLESS, Command, RolloutState
from controlplane.rollouts.view import (
    Decision,
    Observation,
    View,
    candidate_weight,
    moved,
    next_step,
    paused,
    rolling_back,
)
from tenants.errors import Conflict, Forbidden, Invalid


def start(view: View, now: datetime, *, who: str, frozen: bool) -> Decision:
    """Begin with the preflight.

    Raises:
        Conflict: it has begun, or all rollouts are frozen.
    """
    _require(view, Command.START)
    _require_thawed(frozen=frozen)
    return Decision(moved(view, RolloutState.PREFLIGHT, now), f"Started by {who}.")


def approve(
    view: View,
    seen: Observation,
    now: datetime,
    *,
    who: str,
    approver: str,
    digest: str,
    step: int,
    waivers: Mapping[str, str],
) -> Decision:
    """Give the candidate the next weight, all traffic after the last step, on a person's word.

    Args:
        view: the rollout.
        seen: whether the candidate is READY, what the judge says of it, and whether all rollouts are frozen.
        now: the time.
        who: the approver, in words.
        approver: the approver's id.
        digest: the content that is approved.
        step: the step whose verdict the approver has seen.
        waivers: for each gate that was not run, why it may be done without.

    Raises:
        Forbidden: the approver is the author.
        Conflict: nothing waits for an approval, or for another content or step; or the candidate is not READY, or the
            judge stops it; or all rollouts are frozen.
        Invalid: a gate that was not run has no waiver.
    """
    if approver == view.author:
        raise Forbidden("Whoever made a rollout, by a key too, does not approve it. Ask somebody else.")
    _require(view, Command.APPROVE)
    if (digest, step) != (view.candidate_digest, view.step):
        raise Conflict("This approval is for another content or step than the one that waits. Read the rollout again.")
    _require_thawed(frozen=seen.frozen)
    lacking = {f"waivers.{gate}": "Say why it may be done without." for gate in NEEDS_WAIVER if not waivers.get(gate)}
    if lacking:
        named = " and ".join(gate.value for gate in NEEDS_WAIVER if not waivers.get(gate))
        raise Invalid(f"Not run: {named}. An approval says for each why it may be done without.", fields=lacking)
    if seen.candidate_ready < 1:
        raise Conflict("The candidate has no READY replica at this moment. Approve again when it has one.")
    # Race: the tick that takes it back has not come yet, and a new step would begin without what was seen in this one.
    if seen.judgement is not None and seen.judgement.outcome == "hard_stop":
        raise Conflict(f"The judge stops this candidate, and it is about to be rolled back. {seen.judgement.words}")
    after = next_step(replace(view, approved_step=view.step), now)
    return Decision(after, f"Approved by {who}. The candidate takes {candidate_weight(after)} % of the traffic.")


def pause(view: View, now: datetime, *, who: str, why: str) -> Decision:
    """Leave it, and the weights, where they are. The judge goes on watching.

    Raises:
        Conflict: it does not move.
    """
    _require(view, Command.PAUSE)
    return paused(view, now, f"Paused by {who}: {why}" if why else f"Paused by {who}.")


def resume(view: View, now: datetime, *, who: str, frozen: bool) -> Decision:
    """Go on where it was paused; the state's time begins anew, what was sampled counts on.

    Raises:
        Conflict: it is not paused, or all rollouts are frozen.
    """
    _require(view, Command.RESUME)
    _require_thawed(frozen=frozen)
    return Decision(moved(view, view.at_work, now, inconclusive_count=0), f"Resumed by {who}.")


def abort(view: View, now: datetime, *, who: str, why: str) -> Decision:
    """Give up a rollout whose candidate never had traffic.

    Raises:
        Conflict: it has, or had: that is rolled back; or it is over.
    """
    _require(view, Command.ABORT)
    cause = f"Aborted by {who}: {why}" if why else f"Aborted by {who}."
    return Decision(moved(view, RolloutState.ABORTED, now, reason=cause), cause)


def supersede(view: View, now: datetime, *, who: str) -> Decision:
    """End it for another one of the same deployment: all traffic goes back to the stable version.

    Raises:
        Conflict: it is rolling back or over.
    """
    _require(view, Command.SUPERSEDE)
    cause = f"Superseded by another rollout of {who}."
    return Decision(moved(view, RolloutState.SUPERSEDED, now, unready_since=None, reason=cause), cause)


def roll_back(view: View, now: datetime, *, who: str, why: str) -> Decision | None:
    """Take the candidate's traffic away, from wherever it is; None where nothing is left to take back.

    After a promotion it works as long as the version before is kept.
    """
    if not may(view, Command.ROLL_BACK, now):
        return None
    return rolling_back(view, now, f"Rolled back by {who}: {why}" if why else f"Rolled back by {who}.")


FORWARD = frozenset({Command.START, Command.APPROVE, Command.RESUME})
"""What a freeze refuses."""

_MAY: dict[Command, Callable[[View], bool]] = {
    Command.START: lambda view: view.state is RolloutState.DRAFT,
    Command.APPROVE: lambda view: view.state is RolloutState.AWAITING_APPROVAL,
    Command.PAUSE: lambda view: view.state in PAUSABLE,
    Command.RESUME: lambda view: view.state is RolloutState.PAUSED,
    Command.ABORT: lambda view: view.at_work in WEIGHTLESS,
    Command.SUPERSEDE: lambda view: view.state in LIVE - {RolloutState.ROLLING_BACK},
    Command.ROLL_BACK: lambda view: view.state in LIVE - {RolloutState.ROLLING_BACK},
}

_INSTEAD: dict[Command, str] = {
    Command.START: "only a draft is started",
    Command.APPROVE: "nothing waits for an approval",
    Command.PAUSE: "there is nothing to pause",
    Command.RESUME: "only a paused one goes on",
    Command.ABORT: "only one whose candidate never had traffic is aborted; roll it back instead",
    Command.SUPERSEDE: "wait until its rollback has ended",
}


def may(view: View, command: Command, now: datetime) -> bool:
    """Say whether ``command`` does something in this state, whoever asks."""
    if command is Command.ROLL_BACK and view.state is RolloutState.PROMOTED:
        return view.previous_until is not None and now < view.previous_until
    return _MAY[command](view)


def _require(view: View, command: Command) -> None:
    if not _MAY[command](view):
        raise Conflict(f"This rollout is {view.state.value.replace('_', ' ')}: {_INSTEAD[command]}.")


def _require_thawed(*, frozen: bool) -> None:
    if frozen:
        raise Conflict("All rollouts are frozen by the platform: nothing moves forward until the freeze is lifted.")
