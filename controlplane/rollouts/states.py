"""The states of a rollout, and which leads to which. Pure: :mod:`machine` says when."""

from enum import StrEnum


class RolloutState(StrEnum):
    """Where a rollout is. RAMP, BAKE and JUDGE are of one step of the plan, in this order.

    SHADOW is passed at once and recorded as not run. PROMOTED is final but for a rollback while the old version is
    kept.
    """

    DRAFT = "draft"
    PREFLIGHT = "preflight"
    LOADING = "loading"
    WARM = "warm"
    SHADOW = "shadow"
    RAMP = "ramp"
    BAKE = "bake"
    JUDGE = "judge"
    AWAITING_APPROVAL = "awaiting_approval"
    PROMOTING = "promoting"
    BAKING_100 = "baking_100"
    PROMOTED = "promoted"
    PAUSED = "paused"
    INCONCLUSIVE = "inconclusive"
    ROLLING_BACK = "rolling_back"
    ROLLED_BACK = "rolled_back"
    ABORTED = "aborted"
    SUPERSEDED = "superseded"


class Command(StrEnum):
    """What a person may ask of a rollout."""

    START = "start"
    APPROVE = "approve"
    PAUSE = "pause"
    RESUME = "resume"
    ABORT = "abort"
    ROLL_BACK = "roll_back"
    SUPERSEDE = "supersede"


_S = RolloutState
TERMINAL = frozenset({_S.PROMOTED, _S.ROLLED_BACK, _S.ABORTED, _S.SUPERSEDED})
"""A rollout in one of these is over; a deployment has at most one that is not."""
LIVE = frozenset(RolloutState) - TERMINAL
WEIGHTLESS = frozenset({_S.DRAFT, _S.PREFLIGHT, _S.LOADING, _S.WARM, _S.SHADOW})
"""Before the candidate has had any traffic."""
WEIGHTY = frozenset({_S.RAMP, _S.BAKE, _S.JUDGE, _S.INCONCLUSIVE, _S.AWAITING_APPROVAL, _S.PROMOTING, _S.BAKING_100})
"""The candidate has weight. A paused rollout has what it had where it was paused."""
PAUSABLE = (WEIGHTLESS | WEIGHTY) - {_S.DRAFT}

_FORWARD: dict[RolloutState, frozenset[RolloutState]] = {
    _S.DRAFT: frozenset({_S.PREFLIGHT}),
    _S.PREFLIGHT: frozenset({_S.LOADING, _S.ABORTED}),
    _S.LOADING: frozenset({_S.WARM}),
    _S.WARM: frozenset({_S.SHADOW}),
    _S.SHADOW: frozenset({_S.RAMP}),
    _S.RAMP: frozenset({_S.BAKE}),
    _S.BAKE: frozenset({_S.JUDGE, _S.INCONCLUSIVE}),
    _S.JUDGE: frozenset({_S.RAMP, _S.AWAITING_APPROVAL, _S.PROMOTING, _S.INCONCLUSIVE}),
    _S.INCONCLUSIVE: frozenset({_S.BAKE}),
    _S.AWAITING_APPROVAL: frozenset({_S.PROMOTING, _S.RAMP}),
    _S.PROMOTING: frozenset({_S.BAKING_100}),
    _S.BAKING_100: frozenset({_S.PROMOTED}),
    _S.PROMOTED: frozenset({_S.PROMOTED, _S.ROLLING_BACK}),  # PROMOTED again: the old version is let go
    _S.PAUSED: PAUSABLE,
    _S.ROLLING_BACK: frozenset({_S.ROLLED_BACK}),
}


def _leads_to(state: RolloutState) -> frozenset[RolloutState]:
    after = _FORWARD.get(state, frozenset())
    if state in PAUSABLE:
        after |= {_S.PAUSED}
    if state in LIVE - {_S.ROLLING_BACK}:
        after |= {_S.ROLLING_BACK, _S.SUPERSEDED}
    if state in WEIGHTLESS | {_S.PAUSED}:
        after |= {_S.ABORTED}
    return after


TRANSITIONS = {state: _leads_to(state) for state in RolloutState}
"""All that may follow a state; whatever else is asked for is refused."""
