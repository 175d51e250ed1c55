"""RMSNorm (Zhang and Sennrich, 2019) and LayerNorm (Ba et al., 2016), with the addition to the residual stream before.

Both compute in fp32, whatever rows, residual stream and result are stored in.
"""

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name for it
import triton
import triton.language as tl
from torch import Tensor

MOST_DIMS = 65_536
"""The widest row that one program holds."""


def rms_norm(
    rows: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None, *, out: Tensor | None = None
) -> Tensor:
    """Return ``rows`` normalised over their last dimension, times ``weight``.

    Args:
        rows: [n, dim], or [n, heads, dim] (a norm of queries or keys); the last dimension dense.
        weight: [dim].
        eps: added to the mean of squares.
        residual: [n, dim] in any float type; ``rows`` are added to it, in place, and its sum is normalised.
        out: takes the result, in its own dtype; may be ``rows``. None: a dense tensor in the dtype of ``rows``.

    Raises:
        ValueError: rows of more than :data:`MOST_DIMS` elements.
    """
    return _launch(rows, weight, None, eps, residual, out)


def layer_norm(
    rows: Tensor, weight: Tensor, bias: Tensor, eps: float, residual: Tensor | None = None, *, out: Tensor | None = None
) -> Tensor:
    """Return ``rows`` less their mean, normalised, times ``weight``, plus ``bias`` [dim]; the rest as :func:`rms_norm`.

    Raises:
        ValueError: rows of more than :data:`MOST_DIMS` elements.
    """
    return _launch(rows, weight, bias, eps, residual, out)


def _launch(
    rows: Tensor, weight: Tensor, bias: Tensor | None, eps: float, residual: Tensor | None, out: Tensor | None
) -> Tensor:
    dim = rows.shape[-1]
    if dim > MOST_DIMS:
        raise ValueError(f"a norm over {dim} elements: at most {MOST_DIMS}")
    result = torch.empty_like(rows, memory_format=torch.contiguous_format) if out is None else out
    stream = rows if residual is None else residual
    by_head = rows.dim() == 3
    dims = triton.next_power_of_2(dim)
    _normalise[(len(rows), rows.shape[1] if by_head else 1)](
        rows, weight, weight if bias is None else bias, stream, result, eps,
        rows.stride(0), rows.stride(1) if by_head else 0, stream.stride(0),
        result.stride(0), result.stride(1) if by_head else 0,
        dim=dim, dims=dims, added=residual is not None, centred=bias is not None,
        num_warps=min(16, max(1, dims // 512)),
    )  # fmt: skip
    return result


@triton.jit
def _normalise(
    rows: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    residual: tl.tensor,
    out: tl.tensor,
    eps: tl.float32,
    row_stride: tl.int64,
    head_stride: tl.int64,
    residual_stride: tl.int64,
    out_stride: tl.int64,
    out_head_stride: tl.int64,
    dim: tl.constexpr,
    dims: tl.constexpr,
    added: tl.constexpr,
    centred: tl.constexpr,
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
    if centred:
        values = tl.where(ours, values - tl.sum(values, 0) / dim, 0.0)
    scale = tl.rsqrt(tl.sum(values * values, 0) / dim + eps)
    scaled = values * scale * tl.load(weight + at, mask=ours, other=0.0).to(tl.float32)
    if centred:
        scaled += tl.load(bias + at, mask=ours, other=0.0).to(tl.float32)
    tl.store(out + row * out_stride + head * out_head_stride + at, scaled.to(out.dtype.element_ty), mask=ours)


def reference_rms_norm(
    rows: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None, *, out: Tensor | None = None
) -> Tensor:
    """Do the same by the formula, in fp32."""
    values = _added(rows, residual)
    return _stored(values * torch.rsqrt(values.square().mean(-1, keepdim=True) + eps) * weight.float(), rows, out)


def reference_layer_norm(
    rows: Tensor, weight: Tensor, bias: Tensor, eps: float, residual: Tensor | None = None, *, out: Tensor | None = None
) -> Tensor:
    """Do the same by torch's own function, in fp32."""
    values = _added(rows, residual)
    return _stored(F.layer_norm(values, weight.shape, weight.float(), bias.float(), eps), rows, out)


def _added(rows: Tensor, residual: Tensor | None) -> Tensor:
    values = rows.float()
    if residual is not None:
        values = values + residual.float()
        residual.copy_(values)
    return values


def _stored(values: Tensor, rows: Tensor, out: Tensor | None) -> Tensor:
    return values.to(rows.dtype) if out is None else out.copy_(values)
