"""Tiles cover every token once, at places that depend on nothing but the token's own position."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dataplane.kernels.triton.paged_attention import attention_tiles, tile_rows, tile_tokens

ROWS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 10_000)), min_size=1, max_size=8)
GROUPS = st.sampled_from([1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 32, 71])


@settings(max_examples=40)
@given(rows=ROWS, group=GROUPS)
def test_every_token_is_in_one_tile_that_knows_its_place(rows: list[tuple[int, int]], group: int) -> None:
    counts, positions = torch.tensor(rows).T
    wanted = [(row, position + index) for row, (count, position) in enumerate(rows) for index in range(count)]
    found: dict[int, tuple[int, int]] = {}
    for token, position, count, row in attention_tiles(counts, positions, group).tolist():
        assert 0 < count <= tile_tokens(group)
        for index in range(count):
            assert token + index not in found
            found[token + index] = (row, position + index)
    assert [found[token] for token in sorted(found)] == wanted


@settings(max_examples=40)
@given(rows=ROWS, group=GROUPS)
def test_a_tile_never_holds_positions_on_both_sides_of_a_border(rows: list[tuple[int, int]], group: int) -> None:
    size = tile_tokens(group)
    counts, positions = torch.tensor(rows).T
    for _, position, count, _ in attention_tiles(counts, positions, group).tolist():
        assert position // size == (position + count - 1) // size


@settings(max_examples=40)
@given(group=st.integers(1, 128))
def test_a_tile_is_as_high_as_a_tensor_core_needs_and_holds_whole_tokens(group: int) -> None:
    assert tile_rows(group) >= 16
    assert 1 <= tile_tokens(group) * group <= tile_rows(group)
