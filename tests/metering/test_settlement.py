"""The settlement rule, told as cases and then attacked by a simulated request that crashes everywhere."""

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from controlplane.metering.settlement import REPLICA_LOST, Settlement, State, fold
from dataplane.contracts.usage import Outcome, Phases, RecordKind, Source, UsageRecord

PROMPT_TOKENS = 7


def replica(sequence: int, kind: RecordKind, tokens: int = 0, *, attempt: int = 0, **fields: object) -> UsageRecord:
    values: dict[str, object] = {
        "request_id": "req_1", "attempt": attempt, "source": Source.REPLICA, "sequence": sequence, "kind": kind,
        "at_ms": 1_000 + sequence, "tenant_id": "ten_acme", "deployment_id": "dep_1", "version_id": "ver_1",
        "key_id": "key_1", "replica_id": f"rep_{attempt}", "prompt_tokens": PROMPT_TOKENS, "completion_tokens": tokens,
    }  # fmt: skip
    return UsageRecord(**(values | fields))  # type: ignore[arg-type]


def closed(outcome: Outcome, tokens: int = 0, *, attempt: int = 0, **fields: object) -> UsageRecord:
    values: dict[str, object] = {
        "source": Source.GATEWAY, "prompt_tokens": 0, "outcome": outcome, "at_ms": 2_000,
        "last_attempt": outcome is not Outcome.REDISPATCHED,
    }  # fmt: skip
    return replica(0, RecordKind.CLOSED, tokens, attempt=attempt, **(values | fields))


def admit(**fields: object) -> UsageRecord:
    return replica(0, RecordKind.ADMIT, **fields)  # type: ignore[arg-type]


def progress(tokens: int, sequence: int = 1, **fields: object) -> UsageRecord:
    return replica(sequence, RecordKind.PROGRESS, tokens, **fields)  # type: ignore[arg-type]


def final(tokens: int, outcome: Outcome = Outcome.STOP, **fields: object) -> UsageRecord:
    return replica(9, RecordKind.FINAL, tokens, outcome=outcome, **fields)  # type: ignore[arg-type]


def billed(row: Settlement) -> tuple[int, int]:
    return row.prompt_tokens, row.completion_tokens


def test_a_finished_request_bills_its_prompt_and_the_final_count() -> None:
    row = fold([admit(), progress(4), final(10, cached_tokens=4), closed(Outcome.STOP, 10)])
    assert (row.state, row.outcome, billed(row)) == (State.SETTLED, Outcome.STOP, (PROMPT_TOKENS, 10))
    assert (row.delivered_tokens, row.generated_tokens, row.cached_tokens, row.attempts) == (10, 10, 4, 1)
    assert (row.started_at_ms, row.ended_at_ms) == (1_000, 2_000)


def test_a_request_stays_open_until_both_sources_have_spoken() -> None:
    assert fold([admit(), final(10)]).state is State.OPEN
    assert fold([closed(Outcome.STOP, 10)]).state is State.OPEN
    assert fold([closed(Outcome.STOP, 10)]).outcome is None


def test_a_killed_replica_is_billed_to_the_higher_of_record_and_delivery() -> None:
    known = [admit(), progress(4), closed(Outcome.FAILED, 6, error_code="replica_lost")]
    assert fold(known).state is State.OPEN
    row = fold(known, presumed_over=True)
    assert (row.state, billed(row), row.delivered_tokens) == (State.SETTLED, (PROMPT_TOKENS, 6), 6)
    assert fold([admit(), progress(8), closed(Outcome.FAILED, 6)], presumed_over=True).completion_tokens == 8


def test_a_killed_gateway_leaves_the_replica_to_bill() -> None:
    row = fold([admit(), progress(4), final(10)], presumed_over=True)
    assert (row.outcome, billed(row), row.delivered_tokens) == (Outcome.STOP, (PROMPT_TOKENS, 10), 0)


def test_a_request_of_which_both_were_killed_bills_the_last_record() -> None:
    row = fold([admit(), progress(4)], presumed_over=True)
    assert (row.outcome, row.error_code, billed(row)) == (Outcome.FAILED, REPLICA_LOST, (PROMPT_TOKENS, 4))


def test_a_request_that_was_only_admitted_is_free() -> None:
    row = fold([admit()], presumed_over=True)
    assert (row.outcome, billed(row)) == (Outcome.FAILED, (0, 0))


def test_a_refusal_that_never_reached_a_replica_settles_at_once_and_is_free() -> None:
    row = fold([closed(Outcome.REFUSED, replica_id="", error_code="requests_per_minute")])
    assert (row.state, row.outcome, row.error_code) == (State.SETTLED, Outcome.REFUSED, "requests_per_minute")
    assert billed(row) == (0, 0)


def test_a_failure_before_the_first_delivered_token_is_free_whatever_was_generated() -> None:
    row = fold([admit(), final(50), closed(Outcome.FAILED, 0, error_code="replica_lost")])
    assert (row.state, billed(row), row.generated_tokens) == (State.SETTLED, (0, 0), 50)


def test_a_caller_who_leaves_before_the_first_token_pays_nothing_and_later_pays_what_was_made() -> None:
    early = fold([admit(), final(0, Outcome.ABORTED), closed(Outcome.ABORTED, 0)])
    late = fold([admit(), final(5, Outcome.ABORTED), closed(Outcome.ABORTED, 3)])
    assert billed(early) == (0, 0)
    assert (billed(late), late.delivered_tokens) == ((PROMPT_TOKENS, 5), 3)


def test_only_the_serving_attempt_is_billed_and_the_prompt_once() -> None:
    first = [admit(), progress(3), closed(Outcome.REDISPATCHED)]
    second = [admit(attempt=1), final(10, attempt=1), closed(Outcome.STOP, 10, attempt=1)]
    row = fold(first + second)
    assert (billed(row), row.attempts, row.replica_id) == ((PROMPT_TOKENS, 10), 2, "rep_1")
    assert row.generated_tokens == 13


def test_a_redispatch_that_nobody_took_up_fails_for_free() -> None:
    row = fold([admit(), progress(3), closed(Outcome.REDISPATCHED)], presumed_over=True)
    assert (row.outcome, row.error_code) == (Outcome.FAILED, REPLICA_LOST)


def test_the_final_count_bounds_a_delivered_count_above_it() -> None:
    row = fold([admit(), final(5), closed(Outcome.STOP, 9)])
    assert (row.delivered_tokens, row.completion_tokens, row.generated_tokens) == (5, 5, 9)


def test_tokens_behind_a_stop_string_are_generated_and_not_billed() -> None:
    row = fold([admit(), progress(8), final(6), closed(Outcome.STOP, 6)])
    assert (row.completion_tokens, row.generated_tokens) == (6, 8)


def test_an_open_row_says_whose_word_it_waits_for() -> None:
    assert fold([admit()]).waits_for is Source.REPLICA
    assert fold([admit(), final(5)]).waits_for is Source.GATEWAY
    assert fold([admit(), closed(Outcome.STOP, 5)]).waits_for is Source.REPLICA
    assert fold([admit(), closed(Outcome.REDISPATCHED)]).waits_for is Source.GATEWAY
    assert fold([admit(), final(5), closed(Outcome.STOP, 5)]).waits_for is None
    assert fold([admit()], presumed_over=True).waits_for is None


def test_the_callers_clock_comes_before_the_replicas() -> None:
    row = fold([admit(), final(5, ttft_ms=10, queue_ms=1), closed(Outcome.STOP, 5, ttft_ms=12, duration_ms=1_500)])
    assert (row.ttft_ms, row.queue_ms, row.duration_ms, row.started_at_ms) == (12, 1, 1_500, 500)


def test_the_wait_for_a_replica_and_the_wait_in_it_add_up() -> None:
    row = fold([admit(), final(5, queue_ms=30), closed(Outcome.STOP, 5, queue_ms=400)])
    assert row.queue_ms == 430
    assert fold([admit(), final(5), closed(Outcome.STOP, 5)]).queue_ms is None


def test_the_phases_are_what_gateway_and_replica_know_of_the_serving_attempt() -> None:
    lost = [admit(), final(3, phases=Phases(decode_ms=9)), closed(Outcome.REDISPATCHED, phases=Phases(cold_ms=8))]
    final_record = final(5, attempt=1, phases=Phases(own_budget_ms=0, prefill_ms=20, batch_rows=2.5))
    served = [final_record, closed(Outcome.STOP, 5, attempt=1, phases=Phases(auth_ms=1, admission_ms=2))]
    row = fold(lost + served)
    assert row.phases == Phases(auth_ms=1, admission_ms=2, own_budget_ms=0, prefill_ms=20, batch_rows=2.5)


def test_records_from_before_there_were_phases_settle_without() -> None:
    row = fold([admit(), final(5), closed(Outcome.STOP, 5)])
    assert (row.state, row.phases, row.forced) == (State.SETTLED, Phases(), False)


def test_a_request_is_forced_if_anybody_who_served_it_says_so() -> None:
    assert fold([admit(), final(5), closed(Outcome.STOP, 5, forced=True)]).forced
    assert fold([admit(forced=True), final(5, forced=True), closed(Outcome.STOP, 5)]).forced


def test_records_of_two_requests_are_refused() -> None:
    with pytest.raises(ValueError, match="one request"):
        fold([admit(), admit(request_id="req_2")])
    with pytest.raises(ValueError, match="one request"):
        fold([])


class RequestLife(RuleBasedStateMachine):
    """One request served by replicas and a gateway that may die at any point; records arrive in any order, repeated.

    ``spooled`` is what became durable, ``arrived`` what ingestion has seen so far.
    """

    def __init__(self) -> None:
        super().__init__()
        self.spooled: list[UsageRecord] = []
        self.arrived: list[UsageRecord] = []
        self.swept = False
        self.previous: Settlement | None = None
        self.attempt = 0
        self.gateway_alive = True
        self.gateway_done = False
        self.generated_total = 0
        self.begin_attempt()

    def begin_attempt(self) -> None:
        self.replica_alive = True
        self.replica_done = False
        self.sequence = 0
        self.generated = 0
        self.recorded = 0
        self.delivered = 0

    def write_replica(self, kind: RecordKind, outcome: Outcome | None = None, held_back: int = 0) -> None:
        self.recorded = self.generated - held_back
        phases = Phases(decode_ms=self.attempt) if kind is RecordKind.FINAL else None
        self.spooled.append(
            replica(
                self.sequence, kind, self.recorded,
                attempt=self.attempt, outcome=outcome, at_ms=1_000, phases=phases,
            )
        )  # fmt: skip
        self.sequence += 1

    def write_gateway(self, outcome: Outcome, **fields: object) -> None:
        phases = Phases(cold_ms=self.attempt)
        self.spooled.append(closed(outcome, self.delivered, attempt=self.attempt, phases=phases, **fields))

    @property
    def serving(self) -> bool:
        return self.replica_alive and not self.replica_done and self.sequence > 0

    @initialize()
    def the_replica_admits(self) -> None:
        self.write_replica(RecordKind.ADMIT)

    @precondition(lambda self: self.serving)
    @rule(tokens=st.integers(1, 5))
    def tokens_are_generated(self, tokens: int) -> None:
        self.generated += tokens
        self.generated_total += tokens

    @precondition(lambda self: self.serving)
    @rule()
    def progress_is_recorded(self) -> None:
        self.write_replica(RecordKind.PROGRESS)

    @property
    def deliverable(self) -> int:
        return self.recorded if self.replica_done else self.generated

    @precondition(lambda self: self.gateway_alive and not self.gateway_done and self.delivered < self.deliverable)
    @rule(data=st.data())
    def tokens_are_delivered(self, data: st.DataObject) -> None:
        self.delivered = data.draw(st.integers(self.delivered + 1, self.deliverable))

    @precondition(lambda self: self.serving and self.generated > 0)
    @rule(outcome=st.sampled_from([Outcome.STOP, Outcome.LENGTH, Outcome.FAILED]), behind_stop=st.integers(0, 3))
    def the_replica_finishes(self, outcome: Outcome, behind_stop: int) -> None:
        held_back = min(behind_stop, self.generated - max(self.delivered, 1)) if outcome is Outcome.STOP else 0
        self.write_replica(RecordKind.FINAL, outcome, held_back)
        self.replica_done = True

    @precondition(lambda self: self.replica_done and self.gateway_alive and not self.gateway_done)
    @rule()
    def the_gateway_closes(self) -> None:
        last = self.spooled[-1] if self.spooled[-1].kind is RecordKind.FINAL else None
        self.delivered = self.recorded
        self.write_gateway(last.outcome if last is not None and last.outcome else Outcome.STOP)
        self.gateway_done = True

    @precondition(lambda self: self.serving and self.gateway_alive and not self.gateway_done)
    @rule()
    def the_caller_leaves(self) -> None:
        self.write_gateway(Outcome.ABORTED)
        self.gateway_done = True
        self.write_replica(RecordKind.FINAL, Outcome.ABORTED)
        self.replica_done = True

    @precondition(lambda self: self.serving)
    @rule()
    def the_replica_is_killed(self) -> None:
        self.replica_alive = False
        if not self.gateway_alive or self.gateway_done:
            return
        if self.delivered == 0:
            self.write_gateway(Outcome.REDISPATCHED)
            self.attempt += 1
            self.begin_attempt()
            self.write_replica(RecordKind.ADMIT)
        else:
            self.write_gateway(Outcome.FAILED, error_code="replica_lost")
            self.gateway_done = True

    @precondition(lambda self: self.gateway_alive)
    @rule()
    def the_gateway_is_killed(self) -> None:
        self.gateway_alive = False

    @precondition(lambda self: self.spooled)
    @rule(data=st.data())
    def records_arrive(self, data: st.DataObject) -> None:
        self.arrived += data.draw(st.lists(st.sampled_from(self.spooled), max_size=4))

    @property
    def is_quiet(self) -> bool:
        return not self.serving and (self.gateway_done or not self.gateway_alive)

    @precondition(lambda self: self.arrived and self.is_quiet)
    @rule()
    def the_sweep_gives_up(self) -> None:
        self.swept = True

    @invariant()
    def the_row_is_sound(self) -> None:
        if not self.arrived:
            return
        row = fold(self.arrived, presumed_over=self.swept)
        shuffled = random.Random(len(self.arrived)).sample(self.arrived, len(self.arrived))
        assert fold(shuffled + self.arrived, presumed_over=self.swept) == row
        assert row.delivered_tokens <= row.completion_tokens <= row.generated_tokens <= self.generated_total
        assert row.prompt_tokens in (0, PROMPT_TOKENS)
        before = self.previous
        if before is not None:
            assert row.attempts >= before.attempts
            assert row.generated_tokens >= before.generated_tokens
            if before.state is State.SETTLED:
                assert row.state is State.SETTLED
                assert self.swept or billed(row) == billed(before)
        self.previous = row

    def teardown(self) -> None:
        """Whatever happened, once every durable record is in, the bill is at most one record short of the truth."""
        if not self.spooled or not self.is_quiet:
            return
        row = fold(self.spooled, presumed_over=True)
        assert row.state is State.SETTLED
        assert row.outcome not in (None, Outcome.REDISPATCHED)
        assert row.attempts == self.attempt + 1
        if row.outcome is Outcome.FAILED and self.gateway_done and self.delivered == 0:
            assert billed(row) == (0, 0)
        else:
            assert max(self.recorded, self.delivered) == row.completion_tokens <= self.generated
        if self.gateway_done:
            assert row.delivered_tokens == self.delivered
            assert row.phases.cold_ms == self.attempt
        if self.replica_done:
            assert row.phases.decode_ms == self.attempt


RequestLife.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
TestRequestLife = RequestLife.TestCase
