"""A rollout as a value, pure: what it is, what is seen of it, what a transition makes of it.

Every transition makes a new :class:`View`. The arms of the deployment follow from the view alone (:func:`arms_of`), so
a weight can never disagree with the state that it belongs to.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Protocol

from controlplane.rollouts.plan import Plan, Step
from controlplane.rollouts.states import TERMINAL, TRANSITIONS, WEIGHTY, RolloutState
from dataplane.contracts.catalog import CANDIDATE, PREVIOUS, STABLE, Arm, Hold

LOADING_LIMIT = timedelta(minutes=30)
"""How long a candidate may take to become READY, and a new weight to get the replicas that it calls for."""


class Judgement(Protocol):
    """What the judge says; :class:`~controlplane.rollouts.gates.Judgement` is one."""

    @property
    def outcome(self) -> str:
        """``pass``, ``fail``, ``hard_stop`` or ``inconclusive``."""

    @property
    def words(self) -> str:
        """Why, for people."""


class Fit(Protocol):
    """What the memory plan says; :class:`~controlplane.rollouts.preflight.Preflight` is one."""

    @property
    def outcome(self) -> str:
        """``co_resident``, ``separate`` or ``refused``."""

    @property
    def words(self) -> str:
        """Why, for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """All of a rollout that decides what comes next; the fields are those of the row.

    ``author`` is the id of the person behind it, empty where there is none.
    """

    stable_version_id: str
    candidate_version_id: str
    candidate_digest: str
    plan: Plan
    author: str
    state: RolloutState
    step: int
    entered_at: datetime
    step_started_at: datetime | None = None
    due_at: datetime | None = None
    paused_from: RolloutState | None = None
    inconclusive_count: int = 0
    looks: int = 0
    unready_since: datetime | None = None
    previous_until: datetime | None = None
    approved_step: int | None = None
    reason: str = ""

    @property
    def at_work(self) -> RolloutState:
        """The state that says what is served: of a paused rollout the one that it was paused in."""
        return self.paused_from or self.state

    @property
    def here(self) -> Step:
        """The step at hand."""
        return self.plan.steps[self.step]


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What a tick sees.

    Args:
        frozen: nothing may move forward.
        published: the data plane has been told of the arms as they are.
        candidate_ready: READY replicas of the candidate in a live report of the fleet; 0 without one.
        candidate_wanted: how many the arm's weight calls for.
        failed_starts: how often in a row a replica of the candidate failed to start.
        trouble: what the fleet says of it.
        previous_ready: READY replicas of the version to go back to.
        served: the deployment takes traffic; one that is paused or deleted after a promotion has no replicas.
        fit: what the memory plan says; asked for in PREFLIGHT only.
        judgement: what the judge says; asked for while the candidate has weight.
        samples: settled requests since ``step_started_at``, of the arm that has fewer of what it needs.
    """

    frozen: bool = False
    published: bool = True
    candidate_ready: int = 0
    candidate_wanted: int = 1
    failed_starts: int = 0
    trouble: str = ""
    previous_ready: int = 0
    served: bool = True
    fit: Fit | None = None
    judgement: Judgement | None = None
    samples: int = 0


@dataclass(frozen=True, slots=True)
class Decision:
    """A transition: the rollout after it, why, and what was judged where that is why."""

    after: View
    cause: str
    judgement: Judgement | None = None

    @property
    def arms(self) -> tuple[Arm, ...]:
        """The deployment's arms after it."""
        return arms_of(self.after)


def has_weight(view: View) -> bool:
    """Say whether the candidate has traffic that the judge must watch."""
    return view.at_work in WEIGHTY


def candidate_weight(view: View) -> int:
    """Return the candidate's part of the traffic, in per cent."""
    state = view.at_work
    if state in (RolloutState.PROMOTING, RolloutState.BAKING_100, RolloutState.PROMOTED):
        return 100
    if state is RolloutState.ROLLING_BACK:
        return 0 if view.previous_until is None else 100
    return view.here.weight if state in WEIGHTY else 0


def arms_of(view: View) -> tuple[Arm, ...]:
    """Return the arms that a deployment has while its rollout is in this state.

    The stable version is held READY from the candidate's first request on: going back must not wait for it.
    """
    state, weight = view.at_work, candidate_weight(view)
    if state is RolloutState.PROMOTED or (state is RolloutState.ROLLING_BACK and view.previous_until is not None):
        serving = Arm(view.candidate_version_id, 100)
        if view.previous_until is None:
            return (serving,)
        hold = Hold.ASLEEP if state is RolloutState.PROMOTED else Hold.READY
        return (serving, Arm(view.stable_version_id, 0, PREVIOUS, hold))
    if state in WEIGHTY:
        return (
            Arm(view.stable_version_id, 100 - weight, STABLE, Hold.READY),
            Arm(view.candidate_version_id, weight, CANDIDATE, Hold.READY),
        )
    if state in (RolloutState.LOADING, RolloutState.WARM, RolloutState.SHADOW):
        return (Arm(view.stable_version_id, 100), Arm(view.candidate_version_id, 0, CANDIDATE, Hold.READY))
    return (Arm(view.stable_version_id, 100),)


def moved(view: View, state: RolloutState, now: datetime, **changes: object) -> View:
    """Return ``view`` in ``state``, entered now, with what the state's clock shows.

    Raises:
        ValueError: the table of transitions does not have it.
    """
    if state not in TRANSITIONS[view.state]:
        raise ValueError(f"a rollout that is {view.state} cannot become {state}")
    usual: dict[str, object] = {
        "state": state,
        "entered_at": now,
        "paused_from": None,
        "unready_since": None if state in TERMINAL else view.unready_since,
        "reason": view.reason if state is RolloutState.ROLLED_BACK else "",
    }
    after = replace(view, **(usual | changes))  # type: ignore[arg-type]
    return replace(after, due_at=_due_at(after, now))


def rolling_back(view: View, now: datetime, cause: str, judgement: Judgement | None = None) -> Decision:
    """Take all traffic off the candidate; after a promotion first make the version before it READY."""
    after = moved(view, RolloutState.ROLLING_BACK, now, unready_since=None, reason=cause)
    return Decision(after, cause, judgement)


def next_step(view: View, now: datetime) -> View:
    """Return the rollout at the next weight: the next step of the plan, or all traffic where an approval is there."""
    fresh = {"inconclusive_count": 0, "looks": 0}
    if view.step + 1 == len(view.plan.steps):
        return moved(view, RolloutState.PROMOTING, now, **fresh)
    return moved(view, RolloutState.RAMP, now, step=view.step + 1, step_started_at=now, **fresh)


def paused(view: View, now: datetime, cause: str, judgement: Judgement | None = None, **changes: object) -> Decision:
    """Stop where it is, weights included, until a person decides."""
    where = view.state if view.state is not RolloutState.JUDGE else RolloutState.BAKE
    return Decision(moved(view, RolloutState.PAUSED, now, paused_from=where, reason=cause, **changes), cause, judgement)


def _due_at(view: View, now: datetime) -> datetime | None:
    """When the clock ends what the state waits for."""
    waits = {
        RolloutState.LOADING: LOADING_LIMIT,
        RolloutState.RAMP: timedelta(seconds=view.plan.ramp_s),
        RolloutState.PROMOTING: timedelta(seconds=view.plan.ramp_s),
        RolloutState.BAKING_100: timedelta(seconds=view.plan.bake_100_s),
    }
    if view.state is RolloutState.BAKE:
        return now + timedelta(seconds=view.here.hold_s)
    if view.state is RolloutState.PROMOTED:
        return view.previous_until
    return now + waits[view.state] if view.state in waits else None


def let_go(view: View, now: datetime, cause: str) -> Decision:
    """Keep the version before a promotion no longer."""
    return Decision(moved(view, RolloutState.PROMOTED, now, previous_until=None), cause)
