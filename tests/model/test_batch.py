"""A step's tensors are a faithful picture of its rows."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from model_harness import make_row

from dataplane.engine.runner import Row
from dataplane.model import batch

VOCAB_SIZE = 100
CONTEXT_TOKENS = 64


@st.composite
def steps(draw: st.DrawFn) -> tuple[list[Row], int, int]:
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
        rows.append(make_row(f"r{index}", tokens, position, list(table), sample=draw(st.booleans())))
    return rows, block_size, num_blocks


@settings(deadline=None)
@given(step=steps())
def test_every_token_stands_once_at_its_slot_and_attends_to_its_own_past(step: tuple[list[Row], int, int]) -> None:
    rows, block_size, num_blocks = step
    built = batch.build(rows, block_size, num_blocks, VOCAB_SIZE, CONTEXT_TOKENS)
    there = zip(built.slots.tolist(), built.token_ids.tolist(), built.positions.tolist(), strict=True)
    wanted = [
        (row.block_table[position // block_size] * block_size + position % block_size, token_id, position)
        for row in rows
        for position, token_id in enumerate(row.token_ids, row.position)
    ]
    assert sorted(there) == sorted(wanted)

    owner = {block: index for index, row in enumerate(rows) for block in row.block_table}
    covered = 0
    for group in built.groups:
        assert group.start == covered
        tables = group.block_ids.view(group.rows, -1)
        positions = built.positions[covered:].tolist()
        for place in range(group.rows):
            table = tables[place].tolist()
            assert len({owner[block] for block in table}) == 1
            row = rows[owner[table[0]]]
            for query in range(group.queries):
                seen = torch.nonzero(group.mask[place, 0, query] == 0)[:, 0].tolist()
                position = positions[place * group.queries + query]
                assert seen == list(range(position + 1))
                assert [table[key // block_size] for key in seen] == [
                    row.block_table[key // block_size] for key in seen
                ]
        covered += group.rows * group.queries
    assert covered == len(wanted)


@settings(deadline=None)
@given(step=steps())
def test_sampled_tokens_are_the_last_of_their_rows(step: tuple[list[Row], int, int]) -> None:
    rows, block_size, num_blocks = step
    built = batch.build(rows, block_size, num_blocks, VOCAB_SIZE, CONTEXT_TOKENS)
    assert built.sampled_rows == [index for index, row in enumerate(rows) if row.sample]
    for index, token in zip(built.sampled_rows, built.sampled_tokens.tolist(), strict=True):
        row = rows[index]
        last = row.position + len(row.token_ids) - 1
        assert built.slots[token] == row.block_table[last // block_size] * block_size + last % block_size


@settings(deadline=None)
@given(step=steps())
def test_cleared_blocks_hold_no_past_and_every_slot_read_is_written_or_cleared(
    step: tuple[list[Row], int, int],
) -> None:
    rows, block_size, num_blocks = step
    built = batch.build(rows, block_size, num_blocks, VOCAB_SIZE, CONTEXT_TOKENS)
    past = {
        row.block_table[position // block_size] * block_size + position % block_size
        for row in rows
        for position in range(row.position)
    }
    entered_before = {slot // block_size for slot in past}
    cleared = set(built.cleared_blocks.tolist())
    assert not cleared & entered_before
    written = set(built.slots.tolist())
    for group in built.groups:
        for block in set(group.block_ids.tolist()) - cleared - entered_before:
            assert {block * block_size + offset for offset in range(block_size)} <= written
