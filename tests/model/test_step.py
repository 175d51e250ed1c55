"""A step's arrays are a faithful picture of its rows."""

import ctypes
from array import array

from hypothesis import given, settings
from hypothesis import strategies as st
from model_harness import make_row

from dataplane.engine.runner import Row
from dataplane.model import step as steps

VOCAB_SIZE = 100
CONTEXT_TOKENS = 64


@st.composite
def drawn_steps(draw: st.DrawFn) -> tuple[list[Row], int, int]:
    """Rows on disjoint blocks, with the block size and the size of the pool."""
    block_size = draw(st.sampled_from([8, 16, 32]))
    num_blocks = 80
    free = draw(st.permutations(range(num_blocks)))
    rows: list[Row] = []
    for index in range(draw(st.integers(1, 8))):
        end = draw(st.integers(1, CONTEXT_TOKENS))
        position = draw(st.one_of(st.integers(0, end - 1), st.just(end - 1)))
        needed = -(-end // block_size)
        spare = draw(st.integers(0, 1))
        table, free = free[: needed + spare], free[needed + spare :]
        tokens = draw(st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=end - position, max_size=end - position))
        held = array("i", table) if draw(st.booleans()) else list(table)
        rows.append(make_row(f"r{index}", tokens, position, held, sample=draw(st.booleans())))
    return rows, block_size, num_blocks


@settings(deadline=None)
@given(drawn=drawn_steps())
def test_every_row_is_there_with_its_tokens_its_place_and_its_blocks(drawn: tuple[list[Row], int, int]) -> None:
    rows, block_size, num_blocks = drawn
    built = steps.build(rows, steps.Bounds(block_size, num_blocks, VOCAB_SIZE, CONTEXT_TOKENS))
    assert len(built.sequences) == len(rows)
    for row, sequence in zip(rows, built.sequences, strict=True):
        first, count, position, blocks, address = sequence.tolist()
        assert built.token_ids[first : first + count].tolist() == row.token_ids
        assert position == row.position
        assert list((ctypes.c_int32 * blocks).from_address(address)) == list(row.block_table)
    assert len(built.token_ids) == sum(len(row.token_ids) for row in rows)


@settings(deadline=None)
@given(drawn=drawn_steps())
def test_sampled_tokens_are_the_last_of_their_rows(drawn: tuple[list[Row], int, int]) -> None:
    rows, block_size, num_blocks = drawn
    built = steps.build(rows, steps.Bounds(block_size, num_blocks, VOCAB_SIZE, CONTEXT_TOKENS))
    assert built.sampled_rows == [index for index, row in enumerate(rows) if row.sample]
    ends = [sequence["first"] + sequence["count"] - 1 for sequence in built.sequences]
    assert built.sampled_at.tolist() == [ends[index] for index in built.sampled_rows]
