"""Every kernel agrees with its plain-torch reference."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dataplane.kernels import linear
from dataplane.kernels.paged_attention import (
    AttentionGroup,
    causal_mask,
    padded_blocks,
    paged_attention,
    reference_paged_attention,
)
from dataplane.kernels.rotary import interleave_pairs, reference_rotate, rotate_, rotations

BLOCK_SIZE = 8


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("biased", [True, False], ids=["bias", "no_bias"])
@pytest.mark.parametrize("rows", [1, 2, 7, 33])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_packed_linear_agrees_with_the_reference(dtype: torch.dtype, rows: int, biased: bool) -> None:
    weight, bias = random(96, 40, seed=1).to(dtype), random(96, seed=2) if biased else None
    x = random(rows, 40, seed=3)
    expected = linear.reference_linear(weight, bias)(x)
    torch.testing.assert_close(linear.packed_linear(weight, bias)(x), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_row_of_a_linear_layer_is_its_own_whatever_the_others_hold(dtype: torch.dtype) -> None:
    layer = linear.packed_linear(random(96, 40, seed=1).to(dtype), None)
    x = random(5, 40, seed=3)
    clean = layer(x)
    x[2] = torch.nan
    spoiled = layer(x)
    assert spoiled[2].isnan().all()
    assert torch.equal(spoiled[[0, 1, 3, 4]], clean[[0, 1, 3, 4]])


def test_small_bf16_weights_move_by_no_more_than_promised() -> None:
    weight = (torch.arange(1, 65) * 2.0**-20).to(torch.bfloat16).view(1, 64)
    packed = linear.packed_linear(weight, None)(torch.eye(64))
    torch.testing.assert_close(packed[:, 0], weight[0].float(), atol=2.0**-25, rtol=0)


@settings(deadline=None, max_examples=50)
@given(
    positions=st.lists(st.integers(0, 8191), min_size=1, max_size=5),
    heads=st.integers(1, 4),
    half=st.integers(1, 32),
    theta=st.sampled_from([1e4, 1e5, 1e6]),
)
def test_rotating_interleaved_pairs_is_the_textbook_rotation(
    positions: list[int], heads: int, half: int, theta: float
) -> None:
    where = torch.tensor(positions)
    plain = random(len(positions), heads, 2 * half)
    turned = interleave_pairs(plain.flatten(1).T, 2 * half).T.clone(memory_format=torch.contiguous_format)
    turned = turned.view(plain.shape)
    rotate_(turned, rotations(where, 2 * half, theta))
    expected = interleave_pairs(reference_rotate(plain, where, theta).flatten(1).T, 2 * half).T.reshape(plain.shape)
    torch.testing.assert_close(turned, expected, atol=1e-5, rtol=1e-5)


@settings(deadline=None, max_examples=60)
@given(
    contexts=st.lists(st.integers(1, 70), min_size=1, max_size=4),
    queries=st.integers(1, 5),
    heads=st.sampled_from([(4, 4), (4, 2), (6, 1)]),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
    seed=st.integers(0, 99),
)
def test_paged_attention_agrees_with_the_reference(
    contexts: list[int], queries: int, heads: tuple[int, int], dtype: torch.dtype, seed: int
) -> None:
    """Rows of different contexts, padded to the longest, their blocks scattered over the pool."""
    num_heads, kv_heads = heads
    ends = [max(context, queries) for context in contexts]
    blocks = max(-(-end // BLOCK_SIZE) for end in ends)
    pool = random(blocks * len(ends), BLOCK_SIZE, 2, kv_heads, 16, seed=seed).to(dtype)
    tables = torch.randperm(len(pool), generator=torch.Generator().manual_seed(seed)).view(len(ends), blocks)
    query = random(len(ends) * queries, num_heads, 16, seed=seed + 1)
    positions = torch.tensor([[end - queries + index for index in range(queries)] for end in ends])
    mask = causal_mask(positions, blocks * BLOCK_SIZE)
    attended = paged_attention(query, pool, [AttentionGroup(0, len(ends), queries, tables.flatten(), mask)])
    for row, end in enumerate(ends):
        own = slice(row * queries, (row + 1) * queries)
        expected = reference_paged_attention(query[own], pool, tables[row].tolist(), end - queries)
        torch.testing.assert_close(attended[own], expected, atol=2e-6, rtol=2e-5)


@given(blocks=st.integers(1, 5000))
def test_a_decode_table_less_than_doubles(blocks: int) -> None:
    padded = padded_blocks(blocks, 1)
    assert blocks <= padded < 2 * blocks
    assert padded.bit_count() == 1
    assert padded_blocks(blocks, 2) == blocks
