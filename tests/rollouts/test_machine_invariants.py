"""Whatever people do, in whatever order, and whatever the clock sees: what must hold of a rollout, holds."""

from dataclasses import replace
from datetime import timedelta

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from machine_views import DIGEST, NOW, WAIVERS, WELL, S, Said, command, is_sound, view

from controlplane.rollouts import commands, machine
from controlplane.rollouts.machine import MAX_FAILED_STARTS, tick
from controlplane.rollouts.plan import Plan, Step
from controlplane.rollouts.states import LIVE, TERMINAL, WEIGHTY, Command
from controlplane.rollouts.view import Decision, Observation, arms_of, candidate_weight
from dataplane.contracts import arms as arms_contract
from tenants.errors import Conflict, DomainError


class AnyRollout(RuleBasedStateMachine):
    """People and the clock do what they like, and see what they like; what must hold, holds."""

    @initialize(
        weights=st.lists(st.integers(1, 99), min_size=1, max_size=4, unique=True).map(sorted),
        asked_at=st.integers(0, 3),
        rounds=st.integers(0, 40),
    )
    def begin(self, weights: list[int], asked_at: int, rounds: int) -> None:
        """Draft a rollout, and let all be well for a while: by chance alone one would seldom get far."""
        steps = tuple(Step(weight, 30, 5) for weight in weights)
        plan = Plan(steps=steps, approval_at=weights[asked_at % len(weights)], ramp_s=5, bake_100_s=30)
        self.now = NOW
        self.view = replace(view(S.DRAFT), plan=plan, entered_at=NOW, due_at=None)
        self.weights = [0]
        for _ in range(rounds):
            self.now += timedelta(seconds=31)
            if self.view.state is S.DRAFT:
                self.follow(command(Command.START, self.view, now=self.now), WELL)
            elif self.view.state is S.AWAITING_APPROVAL:
                self.follow(command(Command.APPROVE, self.view, now=self.now), WELL)
            else:
                self.follow(tick(self.view, WELL, self.now), WELL)

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
        ready=st.sampled_from([1, 1, 1, 1, 2, 0]),
        failed=st.sampled_from([0] * 7 + [MAX_FAILED_STARTS]),
        outcome=st.sampled_from(["pass"] * 6 + ["inconclusive"] * 2 + ["fail", "hard_stop"]),
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

    @rule(asked=st.sampled_from([Command.START, Command.PAUSE, Command.RESUME]), frozen=st.booleans())
    def ask(self, asked, frozen) -> None:
        self.give(asked, frozen=frozen)

    @precondition(lambda self: self.view.state in TERMINAL or self.now.second % 5 == 0)  # else all would soon be over
    @rule(asked=st.sampled_from([Command.ABORT, Command.SUPERSEDE, Command.ROLL_BACK]), frozen=st.booleans())
    def ask_to_end(self, asked, frozen) -> None:
        self.give(asked, frozen=frozen)

    def give(self, asked, *, frozen) -> None:
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


AnyRollout.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
test_whatever_people_and_the_clock_do_the_invariants_hold = AnyRollout.TestCase
