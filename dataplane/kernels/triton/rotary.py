"""Rotary position embedding of interleaved pairs, in place (see :mod:`dataplane.kernels.rotary`)."""

import torch
import triton
import triton.language as tl
from torch import Tensor


def rotate_(heads: Tensor, angles: Tensor) -> None:
    """Rotate the interleaved pairs of ``heads`` [n, heads, head_dim] (last dimension dense) by ``angles``.

    Args:
        heads: fp32, fp16 or bf16; turned in fp32.
        angles: [n, 2 * pairs] fp32 cosine and sine, pair after pair. Fewer pairs than head_dim / 2 leave the rest of a
            head as it is.
    """
    tokens, count, _ = heads.shape
    width = angles.shape[1]
    _rotate[(tokens,)](
        heads, angles, *heads.stride()[:2], angles.stride(0),
        count=count, rows=triton.next_power_of_2(count), width=width, columns=triton.next_power_of_2(width),
        num_warps=4,
    )  # fmt: skip


@triton.jit
def _rotate(
    heads: tl.tensor,
    angles: tl.tensor,
    token_stride: tl.int64,
    head_stride: tl.int64,
    angle_stride: tl.int64,
    count: tl.constexpr,
    rows: tl.constexpr,
    width: tl.constexpr,
    columns: tl.constexpr,
) -> None:
    """Rotate the heads of one token."""
    token = tl.program_id(0).to(tl.int64)
    head, column = tl.arange(0, rows), tl.arange(0, columns)
    ours = (head < count)[:, None] & (column < width)[None, :]
    at = heads + token * token_stride + head[:, None] * head_stride + column[None, :]
    values = tl.load(at, mask=ours, other=0.0).to(tl.float32)
    real, imaginary = tl.split(tl.reshape(values, (rows, columns // 2, 2)))
    angle = tl.load(angles + token * angle_stride + column, mask=column < width, other=0.0)
    cosine, sine = tl.split(tl.reshape(angle, (1, columns // 2, 2)))
    turned = tl.join(real * cosine - imaginary * sine, real * sine + imaginary * cosine)
    tl.store(at, tl.reshape(turned, (rows, columns)).to(heads.dtype.element_ty), mask=ours)


def reference_rotate_(heads: Tensor, angles: Tensor) -> None:
    """Do the same as one complex multiplication in fp32."""
    part = heads[..., : angles.shape[1]]
    pairs = torch.view_as_complex(part.float().reshape(*part.shape[:-1], -1, 2))
    turns = torch.view_as_complex(angles.reshape(len(angles), 1, -1, 2))
    part.copy_(torch.view_as_real(pairs * turns).flatten(-2))
