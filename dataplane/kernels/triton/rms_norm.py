"""RMSNorm (Zhang and Sennrich, 2019), with the addition of the residual stream that comes before it."""

import torch
import triton
import triton.language as tl
from torch import Tensor

_MOST_DIMS = 65_536


def rms_norm(rows: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> Tensor:
    """Return ``rows`` normalised over their last dimension, times ``weight``, in the dtype of ``rows``.

    Args:
        rows: [n, dim], or [n, heads, dim] (a norm of queries or keys); the last dimension dense.
        weight: [dim].
        eps: added to the mean of squares.
        residual: [n, dim] in any float type; ``rows`` are added to it, in place, and its sum is normalised.

    Raises:
        ValueError: rows of more than 65,536 elements.
    """
    dim = rows.shape[-1]
    if dim > _MOST_DIMS:
        raise ValueError(f"a norm over {dim} elements: at most {_MOST_DIMS}")
    heads = rows.shape[1] if rows.dim() == 3 else 1
    out = torch.empty_like(rows, memory_format=torch.contiguous_format)
    stream = rows if residual is None else residual
    dims = triton.next_power_of_2(dim)
    _normalise[(len(rows), heads)](
        rows, weight, stream, out, eps,
        rows.stride(0), rows.stride(1) if heads > 1 else 0, stream.stride(0), out.stride(0),
        dim=dim, dims=dims, added=residual is not None, num_warps=min(16, max(1, dims // 512)),
    )  # fmt: skip
    return out


@triton.jit
def _normalise(
    rows: tl.tensor,
    weight: tl.tensor,
    residual: tl.tensor,
    out: tl.tensor,
    eps: tl.float32,
    row_stride: tl.int64,
    head_stride: tl.int64,
    residual_stride: tl.int64,
    out_stride: tl.int64,
    dim: tl.constexpr,
    dims: tl.constexpr,
    added: tl.constexpr,
) -> None:
    """Normalise one row (of one head)."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    at = tl.arange(0, dims)
    ours = at < dim
    values = tl.load(rows + row * row_stride + head * head_stride + at, mask=ours, other=0.0).to(tl.float32)
    if added:
        stream = residual + row * residual_stride + at
        values += tl.load(stream, mask=ours, other=0.0).to(tl.float32)
        tl.store(stream, values.to(residual.dtype.element_ty), mask=ours)
    scale = tl.rsqrt(tl.sum(values * values, 0) / dim + eps)
    scaled = values * scale * tl.load(weight + at, mask=ours, other=0.0).to(tl.float32)
    tl.store(out + row * out_stride + head * dim + at, scaled.to(out.dtype.element_ty), mask=ours)


def reference_rms_norm(rows: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> Tensor:
    """Do the same by the formula, in fp32."""
    values = rows.float()
    if residual is not None:
        values = values + residual.float()
        residual.copy_(values)
    return (values * torch.rsqrt(values.square().mean(-1, keepdim=True) + eps) * weight.float()).to(rows.dtype)
