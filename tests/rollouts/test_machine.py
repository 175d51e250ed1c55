"""Every state by every observation and every command, against tables that were written by hand; then the invariants."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from controlplane.rollouts import commands, machine, words
from controlplane.rollouts.machine import LONGEST_BAKE, MAX_FAILED_STARTS, UNREADY_GRACE, tick
from controlplane.rollouts.plan import Plan, Step
from controlplane.rollouts.states import LIVE, TERMINAL, TRANSITIONS, WEIGHTY, Command, RolloutState
from controlplane.rollouts.view import LOADING_LIMIT, Decision, Observation, View, arms_of, candidate_weight, let_go
from dataplane.contracts import arms as arms_contract
from tenants.errors import Conflict, DomainError, Forbidden, Invalid

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

SEEN: dict[str, Observation] = {
    "well": WELL,
    "frozen": replace(WELL, frozen=True),
    "unheard": replace(WELL, published=False),
    "unready": replace(WELL, candidate_ready=0, previous_ready=0),
    "refused": replace(WELL, fit=Said("refused")),
    "no samples": replace(WELL, samples=0, judgement=Said("inconclusive")),
    "fails": replace(WELL, judgement=Said("fail")),
    "unclear": replace(WELL, judgement=Said("inconclusive")),
    "stop": replace(WELL, judgement=Said("hard_stop")),
    "stop frozen": replace(WELL, judgement=Said("hard_stop"), frozen=True),
    "no start": replace(WELL, candidate_ready=0, failed_starts=MAX_FAILED_STARTS, trouble="a bad file"),
}

# What a tick makes of it; a dot is nothing. The candidate is "unready" for less than the grace here.
TICKS = """
state                  well              frozen      unheard           unready           refused           no~samples        fails             unclear           stop         stop~frozen  no~start
draft                  .                 .           .                 .                 .                 .                 .                 .                 .            .            .
preflight              loading           .           loading           loading           aborted           loading           loading           loading           loading      .            loading
loading                warm              .           .                 .                 warm              warm              warm              warm              warm         .            rolling_back
warm                   shadow            .           shadow            shadow            shadow            shadow            shadow            shadow            shadow       .            rolling_back
shadow                 ramp              .           ramp              .                 ramp              ramp              ramp              ramp              ramp         .            rolling_back
ramp                   bake              .           .                 paused            bake              bake              bake              bake              rolling_back rolling_back paused
bake                   judge             .           judge             judge             judge             inconclusive      judge             judge             rolling_back rolling_back judge
bake~again             judge             .           judge             judge             judge             paused            judge             judge             rolling_back rolling_back judge
judge                  ramp              .           ramp              .                 ramp              inconclusive      rolling_back      inconclusive      rolling_back rolling_back .
judge~again            ramp              .           ramp              .                 ramp              paused            rolling_back      paused            rolling_back rolling_back .
judge~last             awaiting_approval .           awaiting_approval awaiting_approval awaiting_approval inconclusive      rolling_back      inconclusive      rolling_back rolling_back awaiting_approval
inconclusive           bake              .           bake              bake              bake              bake              bake              bake              rolling_back rolling_back bake
awaiting_approval      .                 .           .                 .                 .                 .                 .                 .                 rolling_back rolling_back .
promoting              baking_100        .           .                 .                 baking_100        baking_100        baking_100        baking_100        rolling_back rolling_back .
baking_100             promoted          .           promoted          .                 promoted          promoted          promoted          promoted          rolling_back rolling_back .
paused~loading         .                 .           .                 .                 .                 .                 .                 .                 .            .            rolling_back
paused~bake            .                 .           .                 .                 .                 .                 .                 .                 rolling_back rolling_back .
paused~promoting       .                 .           .                 .                 .                 .                 .                 .                 rolling_back rolling_back .
promoted~kept          .                 .           .                 .                 .                 .                 .                 .                 .            .            .
promoted~over          promoted          .           promoted          promoted          promoted          promoted          promoted          promoted          promoted     .            promoted
promoted               .                 .           .                 .                 .                 .                 .                 .                 .            .            .
rolling_back           rolled_back       rolled_back .                 rolled_back       rolled_back       rolled_back       rolled_back       rolled_back       rolled_back  rolled_back  rolled_back
rolling_back~promoted  rolled_back       rolled_back rolled_back       .                 rolled_back       rolled_back       rolled_back       rolled_back       rolled_back  rolled_back  rolled_back
rolled_back            .                 .           .                 .                 .                 .                 .                 .                 .            .            .
aborted                .                 .           .                 .                 .                 .                 .                 .                 .            .            .
superseded             .                 .           .                 .                 .                 .                 .                 .                 .            .            .
"""  # noqa: E501

# What a command makes of it; a dash is refused, a dot says that nothing is left to do.
COMMANDS = """
state                  start     approve   pause  resume    abort   supersede  roll_back
draft                  preflight -         -      -         aborted superseded rolling_back
preflight              -         -         paused -         aborted superseded rolling_back
loading                -         -         paused -         aborted superseded rolling_back
warm                   -         -         paused -         aborted superseded rolling_back
shadow                 -         -         paused -         aborted superseded rolling_back
ramp                   -         -         paused -         -       superseded rolling_back
bake                   -         -         paused -         -       superseded rolling_back
bake~again             -         -         paused -         -       superseded rolling_back
judge                  -         -         paused -         -       superseded rolling_back
judge~again            -         -         paused -         -       superseded rolling_back
judge~last             -         -         paused -         -       superseded rolling_back
inconclusive           -         -         paused -         -       superseded rolling_back
awaiting_approval      -         promoting paused -         -       superseded rolling_back
promoting              -         -         paused -         -       superseded rolling_back
baking_100             -         -         paused -         -       superseded rolling_back
paused~loading         -         -         -      loading   aborted superseded rolling_back
paused~bake            -         -         -      bake      -       superseded rolling_back
paused~promoting       -         -         -      promoting -       superseded rolling_back
promoted~kept          -         -         -      -         -       -          rolling_back
promoted~over          -         -         -      -         -       -          .
promoted               -         -         -      -         -       -          .
rolling_back           -         -         -      -         -       -          .
rolling_back~promoted  -         -         -      -         -       -          .
rolled_back            -         -         -      -         -       -          .
aborted                -         -         -      -         -       -          .
superseded             -         -         -      -         -       -          .
"""


def cells(table: str, columns: set[str]) -> list[tuple[str, str, str]]:
    """The table's cells; ``~`` stands for a space within a name."""
    (_, *heads), *rows = ([part.replace("~", " ") for part in line.split()] for line in table.strip().splitlines())
    assert (set(heads), {name for name, *_ in rows}) == (columns, set(VIEWS)), "a row or column is missing"
    return [(name, head, said) for name, *line in rows for head, said in zip(heads, line, strict=True)]


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


@pytest.mark.parametrize(("name", "seen", "wanted"), cells(TICKS, set(SEEN)))
def test_a_tick_makes_of_every_observation_in_every_state_what_the_table_says(name, seen, wanted):
    before = VIEWS[name]
    decision = tick(before, SEEN[seen], NOW)
    assert (decision.after.state.value if decision else ".") == wanted
    if decision:
        is_sound(before, decision)


@pytest.mark.parametrize(("name", "asked", "wanted"), cells(COMMANDS, set(Command)))
def test_a_command_does_in_every_state_what_the_table_says_and_nothing_else(name, asked, wanted):
    before, asked = VIEWS[name], Command(asked)
    assert commands.may(before, asked, NOW) == (wanted not in "-.")
    if wanted == "-":
        with pytest.raises(Conflict, match=before.state.value.replace("_", " ")):
            command(asked, before)
        return
    decision = command(asked, before)
    assert (decision.after.state.value if decision else ".") == wanted
    if decision:
        is_sound(before, decision)


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("asked", list(Command))
def test_a_freeze_refuses_what_leads_forward_and_nothing_else(name, asked):
    before = VIEWS[name]
    if not commands.may(before, asked, NOW):
        return
    if asked in commands.FORWARD:
        with pytest.raises(Conflict, match="frozen"):
            command(asked, before, frozen=True)
    else:
        assert command(asked, before, frozen=True) == command(asked, before)


@pytest.mark.parametrize("name", [name for name, each in VIEWS.items() if each.at_work in WEIGHTY])
def test_a_candidate_that_loses_its_replicas_is_rolled_back_after_a_short_grace(name):
    before = VIEWS[name]
    silent = replace(WELL, candidate_ready=0, frozen=True)
    since = machine.unready_since(before, silent, NOW)
    assert since == NOW
    early = replace(before, unready_since=NOW - UNREADY_GRACE + timedelta(seconds=1))
    assert tick(early, silent, NOW) is None
    late = replace(before, unready_since=NOW - UNREADY_GRACE)
    assert machine.unready_since(late, silent, NOW) == late.unready_since
    decision = tick(late, silent, NOW)
    assert decision is not None
    assert (decision.after.state, candidate_weight(decision.after)) == (S.ROLLING_BACK, 0)
    assert "no READY replica for 10 s" in decision.cause
    assert machine.unready_since(late, WELL, NOW) is None, "one that came back begins anew"


def test_a_candidate_without_weight_may_be_unready():
    assert all(
        machine.unready_since(each, replace(WELL, candidate_ready=0), NOW) is None
        for each in VIEWS.values()
        if each.at_work not in WEIGHTY
    )


@pytest.mark.parametrize("state", [S.LOADING, S.WARM, S.SHADOW])
def test_a_candidate_that_does_not_become_ready_is_given_up(state):
    unready = replace(WELL, candidate_ready=0)
    waiting = view(state, entered_at=NOW - LOADING_LIMIT + timedelta(seconds=1))
    assert tick(waiting, unready, NOW) is None or state is S.WARM
    decision = tick(replace(waiting, entered_at=NOW - LOADING_LIMIT), unready, NOW)
    assert decision is not None
    assert decision.after.state is S.ROLLING_BACK
    assert "30 min" in decision.after.reason


def test_a_weight_whose_replicas_do_not_come_is_paused_with_the_numbers():
    lacking = replace(WELL, candidate_ready=1, candidate_wanted=3, trouble="no device has room")
    at = view(S.RAMP, step=2, entered_at=NOW - LOADING_LIMIT)
    decision = tick(at, lacking, NOW)
    assert decision is not None
    assert (decision.after.state, decision.after.paused_from) == (S.PAUSED, S.RAMP)
    assert "1 of the 3 replicas that 50 %" in decision.cause
    assert tick(replace(at, entered_at=NOW - timedelta(minutes=5)), lacking, NOW) is None


def test_no_state_ends_before_its_time():
    for state in (S.RAMP, S.BAKE, S.PROMOTING, S.BAKING_100):
        at = view(state, entered_at=NOW, due_at=NOW + timedelta(seconds=1))
        assert tick(at, WELL, NOW) is None
        assert tick(at, WELL, NOW + timedelta(seconds=1)) is not None


def test_a_bake_needs_its_samples_as_well_as_its_time():
    at = view(S.BAKE, step_started_at=NOW - timedelta(seconds=60), due_at=NOW)
    assert tick(at, replace(WELL, samples=9), NOW) is None
    assert tick(at, replace(WELL, samples=10), NOW) is not None


def test_a_bake_waits_for_slow_traffic_as_long_as_it_leads_somewhere():
    at = view(S.BAKE)
    some = replace(WELL, samples=5)
    assert tick(at, some, NOW) is None, "five more of ten come within another hour"
    stalled = NOW + LONGEST_BAKE
    decision = tick(at, some, stalled)
    assert decision is not None
    assert decision.after.state is S.INCONCLUSIVE
    assert "Only 5 of 10 requests came" in decision.cause


def test_without_traffic_a_bake_is_inconclusive_then_bakes_once_more_then_pauses():
    at, seen, now = view(S.BAKE), replace(WELL, samples=0, judgement=Said("inconclusive")), NOW
    story = []
    for _ in range(10):
        decision = tick(at, seen, now)
        if decision is not None:
            at = decision.after
            story.append(at.state.value)
        now += timedelta(minutes=5)
    assert story == ["inconclusive", "bake", "paused"]
    assert (at.paused_from, at.reason.startswith("Inconclusive twice at 5 %.")) == (S.BAKE, True)
    again = commands.resume(at, now, who="bob", frozen=False).after
    assert (again.state, again.inconclusive_count, again.step) == (S.BAKE, 0, 0)


def test_what_was_sampled_while_the_weight_changed_does_not_count_but_what_was_sampled_in_a_pause_does():
    ramp = view(S.RAMP)
    bake = tick(ramp, WELL, NOW)
    assert bake is not None
    assert bake.after.step_started_at == NOW
    later = NOW + timedelta(minutes=3)
    stopped = commands.pause(bake.after, later, who="bob", why="").after
    assert commands.resume(stopped, later, who="bob", frozen=False).after.step_started_at == NOW


def test_each_verdict_is_a_look_and_a_new_step_begins_at_none():
    unclear = tick(view(S.JUDGE, looks=1), replace(WELL, judgement=Said("inconclusive")), NOW)
    passed = tick(view(S.JUDGE, looks=1), WELL, NOW)
    assert unclear is not None
    assert passed is not None
    assert (unclear.after.looks, passed.after.looks) == (2, 0)


def test_an_approval_in_the_middle_of_a_plan_leads_to_its_next_step():
    at = replace(view(S.JUDGE, step=1), plan=Plan(steps=PLAN.steps, approval_at=25))
    asked = tick(at, WELL, NOW)
    assert asked is not None
    assert asked.after.state is S.AWAITING_APPROVAL
    approved = command(Command.APPROVE, asked.after)
    assert approved is not None
    assert (approved.after.state, approved.after.step, approved.after.approved_step) == (S.RAMP, 2, 1)
    last = tick(replace(approved.after, state=S.JUDGE), WELL, NOW)
    assert last is not None
    assert last.after.state is S.PROMOTING


def test_the_author_does_not_approve_nor_does_anybody_another_content_step_or_without_waivers():
    at = VIEWS["awaiting_approval"]

    def approve(**changed: object) -> Decision:
        said = {"who": "x", "approver": "alice", "digest": DIGEST, "step": 2, "waivers": WAIVERS} | changed
        return commands.approve(at, said.pop("seen", WELL), NOW, **said)  # type: ignore[arg-type]

    with pytest.raises(Forbidden):
        approve(approver="bob")
    for changed in ({"digest": "e" * 64}, {"step": 1}, {"seen": replace(WELL, candidate_ready=0)}):
        with pytest.raises(Conflict):
            approve(**changed)
    with pytest.raises(Invalid) as refused:
        approve(waivers={"evals": "none"})
    assert set(refused.value.fields) == {"waivers.shadow"}
    assert approve().after.approved_step == 2


def test_the_version_before_a_promotion_is_kept_until_its_time_and_then_let_go():
    kept = VIEWS["promoted kept"]
    assert [(arm.name, arm.version_id, arm.weight, arm.hold) for arm in arms_of(kept)] == [
        ("stable", "new", 100, "none"), ("previous", "old", 0, "asleep"),
    ]  # fmt: skip
    gone = let_go(kept, NOW, "Its time has passed.").after
    assert [arm.name for arm in arms_of(gone)] == ["stable"]
    assert command(Command.ROLL_BACK, gone) is None


def test_after_a_promotion_the_version_before_takes_traffic_only_when_it_is_ready():
    back = command(Command.ROLL_BACK, VIEWS["promoted kept"])
    assert back is not None
    assert [(arm.name, arm.version_id, arm.weight, arm.hold) for arm in back.arms] == [
        ("stable", "new", 100, "none"), ("previous", "old", 0, "ready"),
    ]  # fmt: skip
    assert tick(back.after, replace(WELL, previous_ready=0), NOW + timedelta(days=1)) is None
    done = tick(back.after, replace(WELL, published=False, frozen=True), NOW)
    assert done is not None
    assert [(arm.name, arm.version_id, arm.weight) for arm in done.arms] == [("stable", "old", 100)]


def test_the_table_of_transitions_has_no_way_out_of_an_end_but_the_rollback_of_a_promotion():
    assert {state for state in TERMINAL if TRANSITIONS[state]} == {S.PROMOTED}
    assert TRANSITIONS[S.PROMOTED] == {S.PROMOTED, S.ROLLING_BACK}
    assert all(S.ROLLING_BACK in TRANSITIONS[state] for state in LIVE - {S.ROLLING_BACK})
    with pytest.raises(ValueError, match="cannot become"):
        machine.moved(view(S.ROLLED_BACK), S.RAMP, NOW)


class AnyRollout(RuleBasedStateMachine):
    """People and the clock do what they like, and see what they like; what must hold, holds."""

    @initialize(
        weights=st.lists(st.integers(1, 99), min_size=1, max_size=4, unique=True).map(sorted), asked_at=st.integers(0, 3)
    )
    def draft(self, weights: list[int], asked_at: int) -> None:
        steps = tuple(Step(weight, 30, 5) for weight in weights)
        plan = Plan(steps=steps, approval_at=weights[asked_at % len(weights)], ramp_s=5, bake_100_s=30)
        self.now = NOW
        self.view = replace(view(S.DRAFT), plan=plan, entered_at=NOW, due_at=None)
        self.weights = [0]

    def follow(self, decision: Decision | None, seen: Observation) -> None:
        if decision is None:
            return
        before, after = self.view, decision.after
        is_sound(before, decision)
        old, new = candidate_weight(before), candidate_weight(after)
        if new > old:
            assert not seen.frozen, "a freeze let a weight grow"
            assert seen.candidate_ready > 0, "a version that is not READY got weight"
            assert after.step in (before.step, before.step + 1), "a step was left out"
            steps = [step.weight for step in after.plan.steps]
            following = [*steps, 100][[0, *steps].index(old)]
            assert new == following, "a weight was left out"
        if before.state in TERMINAL and before.state is not after.state:
            assert (before.state, after.state) == (S.PROMOTED, S.ROLLING_BACK)
        if after.state in (S.PROMOTING, S.BAKING_100, S.PROMOTED):
            assert after.approved_step is not None
        if after.state is S.RAMP and before.state is not S.PAUSED:
            assert after.step == before.step + 1, "a step was taken twice"
        if new != self.weights[-1]:
            self.weights.append(new)
        self.view = after

    @rule(
        seconds=st.sampled_from([0, 1, 6, 11, 40, 2000, 100_000]),
        frozen=st.booleans(),
        published=st.booleans(),
        ready=st.integers(0, 2),
        failed=st.sampled_from([0, 0, 0, MAX_FAILED_STARTS]),
        outcome=st.sampled_from(["pass", "pass", "pass", "fail", "inconclusive", "hard_stop"]),
        samples=st.sampled_from([0, 3, 5, 50]),
        fits=st.sampled_from(["co_resident", "separate", "refused"]),
    )
    def tick(self, seconds, frozen, published, ready, failed, outcome, samples, fits) -> None:
        self.now += timedelta(seconds=seconds)
        seen = Observation(
            frozen=frozen, published=published, candidate_ready=ready, failed_starts=failed, previous_ready=ready,
            fit=Said(fits), judgement=Said(outcome), samples=samples,
        )  # fmt: skip
        self.view = replace(self.view, unready_since=machine.unready_since(self.view, seen, self.now))
        had_weight = self.view.at_work in WEIGHTY
        decision = tick(self.view, seen, self.now)
        if had_weight and outcome == "hard_stop":
            assert decision is not None
            assert candidate_weight(decision.after) == 0, "a hard stop left traffic on the candidate"
        self.follow(decision, seen)

    @precondition(lambda self: self.view.state in LIVE)
    @rule(seconds=st.sampled_from([6, 31, 200]), rounds=st.integers(1, 12))
    def all_is_well(self, seconds, rounds) -> None:
        """Long quiet stretches, without which a rollout seldom gets far."""
        for _ in range(rounds):
            self.now += timedelta(seconds=seconds)
            self.view = replace(self.view, unready_since=None)
            self.follow(tick(self.view, WELL, self.now), WELL)

    @rule(asked=st.sampled_from([each for each in Command if each is not Command.APPROVE]), frozen=st.booleans())
    def ask(self, asked, frozen) -> None:
        before = self.view
        try:
            decision = command(asked, before, frozen=frozen, now=self.now)
        except Conflict:
            assert asked is not Command.ROLL_BACK, "a rollback was refused"
            return
        if asked is Command.ROLL_BACK and before.state in LIVE:
            state = decision.after.state if decision else before.state
            assert state is S.ROLLING_BACK, "a rollback was not applied"
        self.follow(decision, replace(WELL, frozen=frozen))

    @rule(
        approver=st.sampled_from(["alice", "root", "bob"]),
        digest=st.sampled_from([DIGEST, DIGEST, "e" * 64]),
        off=st.sampled_from([0, 0, 0, -1, 1]),
        waivers=st.sampled_from([WAIVERS, {}]),
        frozen=st.booleans(),
        ready=st.integers(0, 1),
    )
    def approve(self, approver, digest, off, waivers, frozen, ready) -> None:
        seen, before = replace(WELL, frozen=frozen, candidate_ready=ready), self.view
        try:
            decision = commands.approve(
                before, seen, self.now,
                who=approver, approver=approver, digest=digest, step=before.step + off, waivers=waivers,
            )  # fmt: skip
        except DomainError:
            return
        assert before.state is S.AWAITING_APPROVAL
        assert approver != before.author
        assert (digest, off, bool(waivers), frozen, ready) == (DIGEST, 0, True, False, 1)
        self.follow(decision, seen)

    @invariant()
    def arms_are_whole(self) -> None:
        if hasattr(self, "view"):
            arms = arms_of(self.view)
            assert arms_contract.fault(arms) == ""
            assert len(arms) <= 2
            by_version = {arm.version_id: arm.weight for arm in arms}
            assert by_version.get("new", 0) == candidate_weight(self.view)


AnyRollout.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
test_whatever_people_and_the_clock_do_the_invariants_hold = AnyRollout.TestCase
