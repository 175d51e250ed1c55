"""Writing a step's keys and values to the paged KV pool, narrowed to what the pool holds.

int8 has one scale for each token, head and kind (keys, values): the greatest magnitude becomes 127.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_ROUNDS = tl.constexpr(1.5 * 2**23)
"""Added to an fp32 of at most 127, and taken off again, it rounds to the nearest integer, ties to even."""


def write_kv(keys_values: Tensor, slots: Tensor, pool: Tensor, kv_scales: Tensor | None = None) -> None:
    """Store ``keys_values`` [n, 2, kv_heads, head_dim] in a layer's ``pool``.

    Args:
        keys_values: fp32, fp16 or bf16; the last dimension dense.
        slots: [n] int64 block id * block size + offset in the block; -1 pads.
        pool: [num_blocks, block_size, 2, kv_heads, head_dim] fp32, fp16, bf16, or int8 with ``kv_scales``.
        kv_scales: [num_blocks, block_size, 2, kv_heads] fp32.

    Raises:
        ValueError: scales without an int8 pool, or the other way round.
    """
    if (pool.dtype == torch.int8) != (kv_scales is not None):
        raise ValueError(f"a KV pool of {pool.dtype} {'with' if kv_scales is not None else 'without'} scales")
    tokens, _, kv_heads, head_dim = keys_values.shape
    scales = pool if kv_scales is None else kv_scales
    _write[(tokens, 2)](
        keys_values, slots, pool, scales,
        keys_values.stride(), pool.stride(), scales.stride(),
        kv_heads=kv_heads, heads=triton.next_power_of_2(kv_heads),
        head_dim=head_dim, dims=triton.next_power_of_2(head_dim),
        block_size=pool.shape[1], quantised=kv_scales is not None,
    )  # fmt: skip


@triton.jit
def _write(
    keys_values: tl.tensor,
    slots: tl.tensor,
    pool: tl.tensor,
    scales: tl.tensor,
    source_strides: tl.tuple,
    pool_strides: tl.tuple,
    scale_strides: tl.tuple,
    kv_heads: tl.constexpr,
    heads: tl.constexpr,
    head_dim: tl.constexpr,
    dims: tl.constexpr,
    block_size: tl.constexpr,
    quantised: tl.constexpr,
) -> None:
    """Write the keys or the values of one token."""
    token = tl.program_id(0).to(tl.int64)
    kind = tl.program_id(1)
    slot = tl.load(slots + token)
    if slot < 0:
        return
    block, offset = slot // block_size, slot % block_size
    head, dim = tl.arange(0, heads), tl.arange(0, dims)
    ours = (head < kv_heads)[:, None] & (dim < head_dim)[None, :]
    source = keys_values + token * source_strides[0] + kind * source_strides[1]
    row = tl.load(source + head[:, None] * source_strides[2] + dim[None, :], mask=ours, other=0.0).to(tl.float32)
    if quantised:
        scale = tl.max(tl.abs(row), 1) / 127
        scales_at = scales + block * scale_strides[0] + offset * scale_strides[1] + kind * scale_strides[2]
        tl.store(scales_at + head * scale_strides[3], scale, mask=head < kv_heads)
        row /= tl.where(scale == 0, 1.0, scale)[:, None]
        row = (row + _ROUNDS) - _ROUNDS
    stored_at = pool + block * pool_strides[0] + offset * pool_strides[1] + kind * pool_strides[2]
    tl.store(stored_at + head[:, None] * pool_strides[3] + dim[None, :], row.to(pool.dtype.element_ty), mask=ours)


def reference_write_kv(keys_values: Tensor, slots: Tensor, pool: Tensor, kv_scales: Tensor | None = None) -> None:
    """Do the same, one token after the other."""
    for token, slot in enumerate(slots.tolist()):
        if slot < 0:
            continue
        block, offset = divmod(slot, pool.shape[1])
        row = keys_values[token].float()
        if kv_scales is not None:
            scale = row.abs().amax(-1) / 127
            kv_scales[block, offset] = scale
            row = (row / torch.where(scale == 0, 1.0, scale)[..., None]).round()
        pool[block, offset] = row.to(pool.dtype)
