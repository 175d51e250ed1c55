"""A step in micro-batches is the same tokens in the same places, and so is one that another process is told of."""

from array import array

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from model_harness import make_row

from dataplane.model import step as steps
from dataplane.model.parallel.stage import MICRO_BATCH_TOKENS, as_message, from_message, micro_batches, pieces
from dataplane.model.step import Step

BOUNDS = steps.Bounds(block_size=8, num_blocks=400, vocab_size=1000, context_tokens=2000)


@st.composite
def made_steps(draw: st.DrawFn) -> Step:
    rows = []
    for number, (position, count) in enumerate(
        draw(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 70)), min_size=1, max_size=6))
    ):
        blocks = array("i", range(number * 20, number * 20 + (position + count + 7) // 8))
        rows.append(make_row(str(number), [number * 100 + at for at in range(count)], position, blocks))
    return steps.build(rows, BOUNDS)


def places(step: Step) -> list[tuple[int, int, list[int]]]:
    """Token, position and blocks of every token; the blocks are read from the address that kernels get."""
    found = []
    for sequence, table in zip(step.sequences, step.tables, strict=True):
        assert sequence["table"] == table.buffer_info()[0]
        assert sequence["blocks"] == len(table)
        tokens = step.token_ids[sequence["first"] : sequence["first"] + sequence["count"]]
        found += [(int(token), int(sequence["position"]) + at, list(table)) for at, token in enumerate(tokens)]
    return found


@given(step=made_steps(), count=st.integers(1, 9))
def test_micro_batches_are_the_step_token_by_token_in_order(step: Step, count: int) -> None:
    cut = pieces(step, min(count, len(step.token_ids)))
    assert [place for piece in cut for place in places(piece)] == places(step)
    sizes = [len(piece.token_ids) for piece in cut]
    assert max(sizes) - min(sizes) <= 1
    for piece in cut:  # rows stand one after the other, as kernels expect them
        ends = piece.sequences["first"] + piece.sequences["count"]
        assert piece.sequences["first"].tolist() == [0, *ends[:-1].tolist()]
        assert ends[-1] == len(piece.token_ids)


@given(step=made_steps())
def test_another_process_is_told_the_same_step(step: Step) -> None:
    told = from_message(as_message(step, 3))
    assert np.array_equal(told.token_ids, step.token_ids)
    assert places(told) == places(step)


def test_a_step_is_cut_only_for_stages_and_only_where_it_is_long() -> None:
    assert micro_batches(512, stages=1) == 1
    assert micro_batches(MICRO_BATCH_TOKENS, stages=4) == 1
    assert micro_batches(2 * MICRO_BATCH_TOKENS, stages=4) == 2
    assert micro_batches(512, stages=2) == 4
