"""What a rollout waits for, in words. Pure; times are UTC."""

from collections.abc import Callable
from datetime import datetime

from controlplane.rollouts.states import TERMINAL, WEIGHTY, RolloutState
from controlplane.rollouts.view import View, candidate_weight


def waits_for(view: View, *, frozen: bool = False) -> str:
    """Say what happens next and until when, or how it ended."""
    said = _WORDS[view.state](view)
    if frozen and view.state not in TERMINAL | {RolloutState.ROLLING_BACK}:
        return f"All rollouts are frozen: nothing moves forward. {said}"
    return said


def at(moment: datetime | None) -> str:
    """``2026-01-31 14:05:00 UTC``."""
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC" if moment is not None else "a time that is not set"


def _where(view: View) -> str:
    """``step 2 of 4 (5 %)``."""
    return f"step {view.step + 1} of {len(view.plan.steps)} ({candidate_weight(view)} %)"


def _bake(view: View) -> str:
    least = view.here.min_samples
    return f"Bakes {_where(view)} until {at(view.due_at)} at the least, and until {least} requests of it have settled."


def _paused(view: View) -> str:
    traffic = f" with {candidate_weight(view)} % of the traffic on the candidate" if view.at_work in WEIGHTY else ""
    return f"Paused{traffic}, until somebody resumes it or rolls it back. {view.reason}".strip()


def _promoted(view: View) -> str:
    if view.previous_until is None:
        return "The candidate is the stable version. The one before is not kept any more."
    return f"The candidate is the stable version. The one before is kept asleep until {at(view.previous_until)}."


def _rolling_back(view: View) -> str:
    waits = "the gateways have heard" if view.previous_until is None else "the version before is READY"
    return f"Rolls back as soon as {waits}. {view.reason}".strip()


_WORDS: dict[RolloutState, Callable[[View], str]] = {
    RolloutState.DRAFT: lambda view: "A draft. It waits to be started.",
    RolloutState.PREFLIGHT: lambda view: "Asks whether both versions fit the memory there is.",
    RolloutState.LOADING: lambda view: f"Waits for READY replicas of the candidate, until {at(view.due_at)} at most.",
    RolloutState.WARM: lambda view: "The candidate is warm.",
    RolloutState.SHADOW: lambda view: "The candidate is warm. Shadow traffic is not run.",
    RolloutState.RAMP: lambda view: f"Moves traffic for {_where(view)}; samples count from {at(view.due_at)} on.",
    RolloutState.BAKE: _bake,
    RolloutState.JUDGE: lambda view: f"Judges {_where(view)}.",
    RolloutState.AWAITING_APPROVAL: lambda view: f"Waits for somebody who approves {_where(view)}.",
    RolloutState.PROMOTING: lambda view: f"Moves all traffic to the candidate, until {at(view.due_at)}.",
    RolloutState.BAKING_100: lambda view: f"Watches the candidate with all traffic until {at(view.due_at)}.",
    RolloutState.PROMOTED: _promoted,
    RolloutState.PAUSED: _paused,
    RolloutState.INCONCLUSIVE: lambda view: f"{view.reason} Bakes {_where(view)} once more.".strip(),
    RolloutState.ROLLING_BACK: _rolling_back,
    RolloutState.ROLLED_BACK: lambda view: f"Rolled back. {view.reason}".strip(),
    RolloutState.ABORTED: lambda view: f"Ended before the candidate had traffic. {view.reason}".strip(),
    RolloutState.SUPERSEDED: lambda view: f"Ended for another rollout. {view.reason}".strip(),
}
