"""Calls, gates and time, one by one."""

import random
from collections import deque
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane.engine.config import EngineConfig
from dataplane.sim.costs import StepCosts
from dataplane.sim.gates import Gate, Open, Reservation, StaticBatch
from dataplane.sim.serving import Outcome, Served, Serving
from dataplane.sim.workload import Call

SECOND = StepCosts(((1, 1000.0), (1_000_000, 1000.001)))
"""Every step takes a second."""
CONFIG = EngineConfig(num_blocks=1000, max_num_seqs=4, queue_limit_per_tenant=1000)


def serve(calls: list[Call], gate: Gate | None = None, **options: int) -> Outcome:
    return Serving(calls, CONFIG, SECOND, gate or Open(), **options).run()


def by_number(outcome: Outcome) -> list[Served]:
    return sorted(outcome.served, key=lambda served: served.call.number)


def test_a_call_alone_takes_a_step_for_each_token() -> None:
    (served,) = serve([Call(0, 7.0, 10, 5)]).served
    assert served.called_s == 7
    assert served.ttft_s == pytest.approx(1)
    assert served.tpot_s == pytest.approx(1)
    assert served.end_s == pytest.approx(12)


def test_a_batch_waits_until_it_is_full_and_ends_with_its_longest() -> None:
    calls = [Call(0, 0.0, 10, 2), Call(1, 5.0, 10, 8), Call(2, 6.0, 10, 3)]
    outcome = serve(calls, StaticBatch(2, fill=True))
    first, second, third = by_number(outcome)
    assert first.fill_s == pytest.approx(5)
    assert second.fill_s == 0
    assert first.end_s == pytest.approx(7)
    assert third.ttft_s == pytest.approx(5 + 8 + 1 - 6)
    assert outcome.padded_rows == 6


def test_the_last_of_all_do_not_wait_for_others_to_fill_their_batch() -> None:
    (served,) = serve([Call(0, 0.0, 10, 2)], StaticBatch(8, fill=True)).served
    assert served.fill_s == 0


def test_callers_call_again_when_they_were_served() -> None:
    calls = [Call(number, 0.0, 10, 3) for number in range(6)]
    assert [served.called_s for served in by_number(serve(calls, callers=2))] == pytest.approx([0, 0, 3, 3, 6, 6])


def test_a_call_that_no_pool_holds_is_refused() -> None:
    with pytest.raises(ValueError, match="call 0 does not fit"):
        serve([Call(0, 0.0, 10, 2)], Reservation(8, 4, lambda call: 12))


@given(st.integers(0, 2**32))
def test_reserved_pieces_do_not_overlap_and_whoever_fits_enters(seed: int) -> None:
    draw = random.Random(seed)
    gate = Reservation(100, 8, lambda call: call.prompt_tokens)
    queue = deque(Call(number, 0.0, draw.randint(1, 60), 1) for number in range(30))
    inside: list[Call] = []
    while queue or inside:
        inside += gate.enter(queue, idle=not inside, more_to_come=False)
        pieces = sorted(gate._pieces.values())
        assert all(left[1] <= right[0] for left, right in pairwise(pieces))
        assert not pieces or (pieces[0][0] >= 0 and pieces[-1][1] <= 100)
        assert gate.reserved_tokens == sum(call.prompt_tokens for call in inside)
        leaver = inside.pop(draw.randrange(len(inside)))
        gate.leave(leaver)


def test_equal_prefixes_are_equal_prompts_so_far() -> None:
    one, other = Call(1, 0.0, 25, 1, (7, 8, 9)), Call(2, 0.0, 40, 1, (7, 8, 5))
    assert one.token_ids(10)[:20] == other.token_ids(10)[:20]
    assert one.token_ids(10)[20:] != other.token_ids(10)[20:25]
    assert [len(one.token_ids(10)), len(other.token_ids(10))] == [25, 40]
