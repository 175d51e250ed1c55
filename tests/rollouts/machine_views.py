"""Rollouts in every state, as values, and the commands that can be given to them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from controlplane.rollouts import commands, words
from controlplane.rollouts.plan import Plan, Step
from controlplane.rollouts.states import TRANSITIONS, Command, RolloutState
from controlplane.rollouts.view import Decision, Observation, View
from dataplane.contracts import arms as arms_contract

S = RolloutState
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
PLAN = Plan(steps=(Step(5, 60, 10), Step(25, 60, 10), Step(50, 60, 10)), ramp_s=10, bake_100_s=60, approval_at=50)
WAIVERS = {"evals": "none of ours", "shadow": "by hand"}
DIGEST = "d" * 64


@dataclass(frozen=True)
class Said:
    outcome: str
    words: str = "Because."


def view(state: RolloutState, step: int | None = None, **changes: object) -> View:
    """A rollout that entered ``state`` an hour ago, so that every clock of the plan has run out."""
    at = NOW - timedelta(hours=1)
    is_before = state in (S.DRAFT, S.PREFLIGHT, S.LOADING, S.WARM, S.SHADOW)
    late = state in (S.PROMOTING, S.BAKING_100, S.PROMOTED)
    last = len(PLAN.steps) - 1
    made = View(
        stable_version_id="old", candidate_version_id="new", candidate_digest=DIGEST, plan=PLAN, author="bob",
        state=state, step=step if step is not None else -1 if is_before else last if late else 0,
        entered_at=at, step_started_at=None if is_before else at, due_at=at + timedelta(minutes=1),
        approved_step=last if late else None,
    )  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


def paused(where: RolloutState) -> View:
    return replace(view(where), state=S.PAUSED, paused_from=where)


WELL = Observation(
    published=True, candidate_ready=1, candidate_wanted=1, previous_ready=1, fit=Said("co_resident"),
    judgement=Said("pass"), samples=10,
)  # fmt: skip

VIEWS: dict[str, View] = {
    "draft": view(S.DRAFT),
    "preflight": view(S.PREFLIGHT),
    "loading": view(S.LOADING, entered_at=NOW - timedelta(minutes=1)),
    "warm": view(S.WARM, entered_at=NOW - timedelta(minutes=1)),
    "shadow": view(S.SHADOW, entered_at=NOW - timedelta(minutes=1)),
    "ramp": view(S.RAMP),
    "bake": view(S.BAKE),
    "bake again": view(S.BAKE, inconclusive_count=1),
    "judge": view(S.JUDGE),
    "judge again": view(S.JUDGE, inconclusive_count=1),
    "judge last": view(S.JUDGE, step=2),
    "inconclusive": view(S.INCONCLUSIVE, inconclusive_count=1),
    "awaiting_approval": view(S.AWAITING_APPROVAL, step=2),
    "promoting": view(S.PROMOTING),
    "baking_100": view(S.BAKING_100),
    "paused loading": paused(S.LOADING),
    "paused bake": paused(S.BAKE),
    "paused promoting": paused(S.PROMOTING),
    "promoted kept": view(S.PROMOTED, previous_until=NOW + timedelta(minutes=1)),
    "promoted over": view(S.PROMOTED, previous_until=NOW),
    "promoted": view(S.PROMOTED),
    "rolling_back": view(S.ROLLING_BACK),
    "rolling_back promoted": view(S.ROLLING_BACK, previous_until=NOW + timedelta(minutes=1), step=2),
    "rolled_back": view(S.ROLLED_BACK),
    "aborted": view(S.ABORTED),
    "superseded": view(S.SUPERSEDED),
}


def command(asked: Command, at: View, *, frozen: bool = False, now: datetime = NOW) -> Decision | None:
    seen = replace(WELL, frozen=frozen)
    calls: Mapping[Command, Callable[[], Decision | None]] = {
        Command.START: lambda: commands.start(at, now, who="bob", frozen=frozen),
        Command.APPROVE: lambda: commands.approve(
            at, seen, now, who="alice", approver="alice", digest=DIGEST, step=at.step, waivers=WAIVERS
        ),
        Command.PAUSE: lambda: commands.pause(at, now, who="bob", why="lunch"),
        Command.RESUME: lambda: commands.resume(at, now, who="bob", frozen=frozen),
        Command.ABORT: lambda: commands.abort(at, now, who="bob", why=""),
        Command.SUPERSEDE: lambda: commands.supersede(at, now, who="bob"),
        Command.ROLL_BACK: lambda: commands.roll_back(at, now, who="bob", why="it lies"),
    }
    return calls[asked]()


def is_sound(before: View, decision: Decision) -> None:
    """What holds of every transition, whoever made it."""
    after = decision.after
    assert after.state in TRANSITIONS[before.state]
    assert decision.cause
    assert arms_contract.fault(decision.arms) == ""
    assert sum(arm.weight for arm in decision.arms) == 100
    assert {arm.version_id for arm in decision.arms} <= {"old", "new"}
    assert (after.paused_from is None) == (after.state is not S.PAUSED)
    assert after.entered_at >= before.entered_at
    assert words.waits_for(after)
    assert words.waits_for(after, frozen=True)
