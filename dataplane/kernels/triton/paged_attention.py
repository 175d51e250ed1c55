"""Attention over the paged KV pool on a GPU: one launch for prefill and decode rows, then a reduction.

A *tile* is what a program computes: the queries of up to ``tile_tokens`` neighbouring tokens of one sequence, times the
query heads of one KV group, so that keys and values are read once for all of them. Tiles stand at multiples of
``tile_tokens`` positions. The context of a tile is cut into *splits*, whose size depends on where the tile stands and
on nothing else: neither a neighbour nor the chunk in which a token is computed changes one bit of its result.

A layer's pool is [num_blocks, block_size, 2, kv_heads, head_dim], the scales of int8 are [num_blocks, block_size, 2,
kv_heads].
Flash attention: Dao, 2023; paged: Kwon et al., 2023; split contexts (flash decoding): Dao et al., 2023.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from dataplane.kernels.triton.precision import dot_type

MOST_SPLITS = 32
"""Into how many splits a context is cut at most."""

_LOG2_E = tl.constexpr(1.4426950408889634)


@dataclass(frozen=True, slots=True)
class Tuning:
    """How the work is cut. Fixed for a model: a choice by batch would let neighbours change results.

    Attributes:
        kv_tile: positions of the context that a program reads at a time; divides ``min_split``.
        min_split: tokens of the smallest split, a power of two.
        num_warps, num_stages: what Triton calls so.
    """

    kv_tile: int
    min_split: int = 256
    num_warps: int = 4
    num_stages: int = 5  # of these Triton gives half to the block ids: keys and values are read two tiles ahead

    @classmethod
    def of(cls, head_dim: int, pool: torch.dtype) -> "Tuning":
        """Return what fits the shared memory of sm_80: 163 KiB for the stages of keys and values."""
        return cls(kv_tile=64 >> (head_dim > 128) + (pool == torch.float32))


@dataclass(frozen=True, slots=True)
class AttentionRows:
    """Which tokens of a step attend to what; all on the GPU, of fixed shape within a CUDA graph.

    Attributes:
        positions: [n] int32 where each token stands; -1 pads.
        tiles: [m, 4] int32 (first token, its position, number of tokens, row), see :func:`attention_tiles`; 0 tokens
            pad.
        block_tables: [rows, blocks] int32.
        context_tokens: no token has more context than this; it bounds the workspace.
    """

    positions: Tensor
    tiles: Tensor
    block_tables: Tensor
    context_tokens: int


def tile_rows(group: int) -> int:
    """Return the height of a tile of a group of ``group`` query heads: at least what a tensor core multiplies."""
    return max(16, 1 << (group - 1).bit_length())


def tile_tokens(group: int) -> int:
    """Return how many tokens a tile holds: a power of two, so that tiles stand at multiples of it."""
    return 1 << ((tile_rows(group) // group).bit_length() - 1)


def attention_tiles(counts: Tensor, positions: Tensor, group: int) -> Tensor:
    """Cut rows of ``counts`` [rows] tokens, the first of each at ``positions`` [rows], into tiles [m, 4] (int32).

    The rows' tokens lie one row after the other. A row may have none.
    """
    size = tile_tokens(group)
    first = positions // size
    tiles = torch.where(counts > 0, (positions + counts - 1) // size - first + 1, 0)
    row = torch.repeat_interleave(torch.arange(len(counts), device=counts.device), tiles)
    nth = torch.arange(len(row), device=counts.device) - (tiles.cumsum(0) - tiles)[row]
    begin = torch.maximum((first[row] + nth) * size, positions[row])
    end = torch.minimum((first[row] + nth + 1) * size, (positions + counts)[row])
    token = (counts.cumsum(0) - counts)[row] + begin - positions[row]
    return torch.stack((token, begin, end - begin, row), dim=1).int()


def split_slots(context_tokens: int, group: int, min_split: int) -> int:
    """Return into how many splits a context of up to ``context_tokens`` can be cut, with or without a window."""
    return min(MOST_SPLITS, -(-(context_tokens + tile_tokens(group)) // min_split) + 1)


def paged_attention(
    query: Tensor,
    pool: Tensor,
    rows: AttentionRows,
    *,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    kv_scales: Tensor | None = None,
    tuning: Tuning | None = None,
) -> Tensor:
    """Attend with ``query`` [n, heads, head_dim] to a layer's ``pool``; return [n, heads * head_dim] in its dtype.

    Args:
        query: fp32, fp16 or bf16; the last dimension dense.
        pool: fp32, fp16, bf16, or int8 with ``kv_scales``; the last dimension dense. It may hold garbage where no
            position of a row is. The products are those of ``query``'s dtype.
        rows: which tokens attend to what.
        scale: factor of the scores.
        window: a token sees itself and the ``window - 1`` tokens before it; 0: all before it.
        softcap: ``softcap * tanh(score / softcap)`` takes the place of a score; 0: does not.
        kv_scales: fp32, by token and head.
        tuning: how the work is cut; by head size and dtype unless given.

    Raises:
        ValueError: scales without an int8 pool, or the other way round.
    """
    if (pool.dtype == torch.int8) != (kv_scales is not None):
        raise ValueError(f"a KV pool of {pool.dtype} {'with' if kv_scales is not None else 'without'} scales")
    tokens, heads, head_dim = query.shape
    kv_heads = pool.shape[3]
    group = heads // kv_heads
    cut = tuning or Tuning.of(head_dim, pool.dtype)
    slots = split_slots(rows.context_tokens, group, cut.min_split)
    out = torch.empty(tokens, heads, head_dim, dtype=query.dtype, device=query.device)
    partial = torch.empty(tokens, heads, slots, head_dim, dtype=torch.float32, device=query.device)
    weights = torch.empty(tokens, heads, slots, 2, dtype=torch.float32, device=query.device)
    scales = pool if kv_scales is None else kv_scales
    shape = {
        "head_dim": head_dim,
        "dims": max(16, triton.next_power_of_2(head_dim)),  # a tensor core multiplies no less
        "tile_tokens": tile_tokens(group),
        "window": window,
        "min_split": cut.min_split,
        "most_splits": MOST_SPLITS,
    }
    _attend[(kv_heads * len(rows.tiles), slots)](
        query, pool, scales, out, partial, weights, rows.tiles, rows.block_tables,
        scale, softcap, kv_heads, slots,
        query.stride(), pool.stride(), scales.stride(), rows.block_tables.stride(0),
        **shape, group=group, tile_rows=tile_rows(group), kv_tile=cut.kv_tile, block_size=pool.shape[1],
        capped=softcap > 0, quantised=kv_scales is not None, dot=dot_type(query.dtype),
        num_warps=cut.num_warps, num_stages=cut.num_stages,
    )  # fmt: skip
    _reduce[(tokens, heads)](partial, weights, out, rows.positions, slots, **shape, num_warps=cut.num_warps)
    return out.flatten(1)


@triton.jit
def _splits(
    position: tl.int32,
    tile_tokens: tl.constexpr,
    window: tl.constexpr,
    min_split: tl.constexpr,
    most_splits: tl.constexpr,
) -> tuple[tl.int32, tl.int32, tl.int32]:
    """Return the tokens of a split, the first split and the number of splits of the tile that holds ``position``."""
    tile = position // tile_tokens * tile_tokens
    first = tile * 0
    aligned = most_splits
    if window > 0:
        first = tl.maximum(tile - window + 1, 0)
        aligned = most_splits - 1  # a window may begin inside of a split, and so reach into one more
    span = tile + tile_tokens - first
    above = (span - 1) // (aligned * min_split)
    for shift in tl.static_range(5):
        above |= above >> (1 << shift)  # with all bits below the highest set, one more is a power of two
    split = (above + 1) * min_split
    first_split = first // split
    return split, first_split, (tile + tile_tokens - 1) // split - first_split + 1


@triton.jit(do_not_specialize=("slots",))  # or the length of a context would set off compiling
def _attend(
    query: tl.tensor,
    pool: tl.tensor,
    scales: tl.tensor,
    out: tl.tensor,
    partial: tl.tensor,
    weights: tl.tensor,
    tiles: tl.tensor,
    block_tables: tl.tensor,
    scale: tl.float32,
    softcap: tl.float32,
    kv_heads: tl.int32,
    slots: tl.int32,
    query_strides: tl.tuple,
    pool_strides: tl.tuple,
    scale_strides: tl.tuple,
    table_stride: tl.int64,
    head_dim: tl.constexpr,
    dims: tl.constexpr,
    tile_tokens: tl.constexpr,
    window: tl.constexpr,
    min_split: tl.constexpr,
    most_splits: tl.constexpr,
    group: tl.constexpr,
    tile_rows: tl.constexpr,
    kv_tile: tl.constexpr,
    block_size: tl.constexpr,
    capped: tl.constexpr,
    quantised: tl.constexpr,
    dot: tl.constexpr,
) -> None:
    """Attend with one tile and KV head to one split; write the result, or what is to be reduced."""
    tile = tiles + tl.program_id(0) // kv_heads * 4
    kv_head = tl.program_id(0) % kv_heads  # neighbours read the same blocks
    slot = tl.program_id(1)
    position, count = tl.load(tile + 1), tl.load(tile + 2)
    split, first_split, splits = _splits(position, tile_tokens, window, min_split, most_splits)
    if (count == 0) | (slot >= splits):
        return
    begin = (first_split + slot) * split
    end = tl.minimum(begin + split, position + count)
    oldest = tl.maximum(position - window + 1, 0) if window > 0 else position * 0
    begin = tl.maximum(begin, oldest // kv_tile * kv_tile)

    row, dim = tl.arange(0, tile_rows), tl.arange(0, dims)
    nth = row // group - position % tile_tokens  # so that a token's row in its tile is its position's, too
    token, head, seen = (tl.load(tile) + nth).to(tl.int64), kv_head * group + row % group, position + nth
    ours = ((nth >= 0) & (nth < count))[:, None] & (dim < head_dim)[None, :]
    query_at = token[:, None] * query_strides[0] + head[:, None] * query_strides[1] + dim[None, :]
    queries = tl.load(query + query_at, mask=ours, other=0.0).to(dot)

    table = block_tables + tl.load(tile + 3) * table_stride
    greatest = tl.full([tile_rows], float("-inf"), tl.float32)
    total, sums = tl.zeros([tile_rows], tl.float32), tl.zeros([tile_rows, dims], tl.float32)
    for start in range(begin, end, kv_tile):
        at = start + tl.arange(0, kv_tile)
        exists = (at >= oldest) & (at < end)
        stored = exists[:, None] & (dim < head_dim)[None, :]
        block = tl.load(table + at // block_size, mask=exists, other=0).to(tl.int64)
        keys_at = pool + _place(block, at % block_size, kv_head, pool_strides)[:, None] + dim[None, :]
        keys = tl.load(keys_at, mask=stored, other=0).to(dot)
        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale
        if quantised:
            scales_at = scales + _place(block, at % block_size, kv_head, scale_strides)
            scores *= tl.load(scales_at, mask=exists, other=0.0)[None, :]
        if capped:
            scores = _capped(scores, softcap)
        visible = exists[None, :] & (at[None, :] <= seen[:, None])
        if window > 0:
            visible &= at[None, :] > seen[:, None] - window
        greatest, rescale, likely = _soften(tl.where(visible, scores * _LOG2_E, float("-inf")), greatest)
        total = total * rescale + tl.sum(likely, 1)
        if quantised:
            likely *= tl.load(scales_at + scale_strides[2], mask=exists, other=0.0)[None, :]
        values = tl.load(keys_at + pool_strides[2], mask=stored, other=0).to(dot)
        sums = tl.dot(likely.to(dot), values, sums * rescale[:, None], input_precision="ieee")

    place = token * (kv_heads * group) + head
    if splits == 1:
        result = (sums / total[:, None]).to(out.dtype.element_ty)
        tl.store(out + place[:, None] * head_dim + dim[None, :], result, mask=ours)
    else:
        place = place * slots + slot
        tl.store(partial + place[:, None] * head_dim + dim[None, :], sums, mask=ours)
        tl.store(weights + place * 2, greatest, mask=(nth >= 0) & (nth < count))
        tl.store(weights + place * 2 + 1, total, mask=(nth >= 0) & (nth < count))


@triton.jit
def _place(block: tl.tensor, offset: tl.tensor, kv_head: tl.int32, strides: tl.tuple) -> tl.tensor:
    """Return where the keys of a token (or their scales) begin."""
    return block * strides[0] + offset * strides[1] + kv_head * strides[3]


@triton.jit
def _capped(scores: tl.tensor, softcap: tl.float32) -> tl.tensor:
    """Return ``softcap * tanh(scores / softcap)``."""
    return softcap * (1 - 2 / (tl.exp(2 * scores / softcap) + 1))


@triton.jit
def _soften(scores: tl.tensor, greatest: tl.tensor) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Return the greatest score yet, the factor of what was summed before, and two to the power of the scores."""
    higher = tl.maximum(greatest, tl.max(scores, 1))
    reference = tl.where(higher == float("-inf"), 0.0, higher)  # nothing seen yet: inf - inf is no number
    return higher, tl.exp2(greatest - reference), tl.exp2(scores - reference[:, None])


@triton.jit(do_not_specialize=("slots",))
def _reduce(
    partial: tl.tensor,
    weights: tl.tensor,
    out: tl.tensor,
    positions: tl.tensor,
    slots: tl.int32,
    head_dim: tl.constexpr,
    dims: tl.constexpr,
    tile_tokens: tl.constexpr,
    window: tl.constexpr,
    min_split: tl.constexpr,
    most_splits: tl.constexpr,
) -> None:
    """Add up the splits of one token and head, in their order, as one sum of fixed shape."""
    position = tl.load(positions + tl.program_id(0))
    _, _, splits = _splits(position, tile_tokens, window, min_split, most_splits)
    if (position < 0) | (splits == 1):
        return
    slot, dim = tl.arange(0, most_splits), tl.arange(0, dims)
    row = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    place = row * slots + slot
    greatest = tl.load(weights + place * 2, mask=slot < splits, other=float("-inf"))
    factor = tl.exp2(greatest - tl.max(greatest, 0))
    total = tl.sum(tl.load(weights + place * 2 + 1, mask=slot < splits, other=0.0) * factor, 0)
    stored = (slot < splits)[:, None] & (dim < head_dim)[None, :]
    sums = tl.load(partial + place[:, None] * head_dim + dim[None, :], mask=stored, other=0.0)
    result = tl.sum(sums * factor[:, None], 0) / total
    tl.store(out + row * head_dim + dim, result.to(out.dtype.element_ty), mask=dim < head_dim)


def reference_paged_attention(
    query: Tensor,
    pool: Tensor,
    block_table: Tensor,
    position: int,
    *,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    kv_scales: Tensor | None = None,
) -> Tensor:
    """Attend with one row's ``query`` [queries, heads, head_dim], whose first stands at ``position``.

    The textbook formula in fp64, over exactly the positions that each query may see; [queries, heads * head_dim].
    """
    queries, heads, head_dim = query.shape
    context = pool[block_table].double()
    if kv_scales is not None:
        context = context * kv_scales[block_table].double()[..., None]
    context = context.flatten(0, 1)
    out = torch.empty(queries, heads * head_dim, dtype=torch.float64, device=query.device)
    for index in range(queries):
        end = position + index + 1
        keys, values = context[max(0, end - window) if window else 0 : end].unbind(1)
        group = heads // keys.shape[1]
        keys, values = keys.repeat_interleave(group, dim=1), values.repeat_interleave(group, dim=1)
        scores = torch.einsum("hd,thd->ht", query[index].double(), keys) * scale
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        out[index] = torch.einsum("ht,thd->hd", scores.softmax(-1), values).flatten()
    return out
