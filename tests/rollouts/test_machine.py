"""Every state by every observation and every command, against tables that were written by hand."""

from dataclasses import replace
from datetime import timedelta

import pytest
from machine_views import DIGEST, NOW, PLAN, VIEWS, WAIVERS, WELL, S, Said, command, is_sound, view

from controlplane.rollouts import commands, machine
from controlplane.rollouts.machine import LONGEST_BAKE, MAX_FAILED_STARTS, UNREADY_GRACE, tick
from controlplane.rollouts.plan import Plan
from controlplane.rollouts.states import LIVE, TERMINAL, TRANSITIONS, WEIGHTY, Command
from controlplane.rollouts.view import LOADING_LIMIT, Decision, Observation, arms_of, candidate_weight, let_go, moved
from tenants.errors import Conflict, Forbidden, Invalid

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


@pytest.mark.parametrize("state", [S.LOADING, S.WARM, S.SHADOW])
def test_a_candidate_that_is_ready_and_only_frozen_is_not_given_up_however_long(state):
    held = view(state, entered_at=NOW - 2 * LOADING_LIMIT)
    assert tick(held, replace(WELL, frozen=True), NOW) is None
    assert tick(held, replace(WELL, frozen=True, candidate_ready=0), NOW) is not None


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
    stopped = replace(WELL, judgement=Said("hard_stop"))
    for changed in ({"digest": "e" * 64}, {"step": 1}, {"seen": replace(WELL, candidate_ready=0)}, {"seen": stopped}):
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
        moved(view(S.ROLLED_BACK), S.RAMP, NOW)
