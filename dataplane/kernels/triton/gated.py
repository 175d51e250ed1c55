"""The gate of an MLP times its other half: SiLU (Llama, Qwen) or GELU by its tanh approximation (Gemma)."""

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name for it
import triton
import triton.language as tl
from torch import Tensor

_TILE = 1024


def silu_mul(gate_up: Tensor) -> Tensor:
    """Return ``silu(gate) * up`` [n, dim] of ``gate_up`` [n, 2 * dim], the gate first; dense rows, computed in fp32."""
    return _gated(gate_up, gelu=False)


def gelu_tanh_mul(gate_up: Tensor) -> Tensor:
    """Return ``gelu(gate) * up`` likewise, by GELU's tanh approximation (Hendrycks and Gimpel, 2016)."""
    return _gated(gate_up, gelu=True)


def _gated(gate_up: Tensor, gelu: bool) -> Tensor:
    tokens, dim = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(tokens, dim, dtype=gate_up.dtype, device=gate_up.device)
    _multiply[(tokens, triton.cdiv(dim, _TILE))](gate_up, out, dim, gate_up.stride(0), tile=_TILE, gelu=gelu)
    return out


@triton.jit
def _multiply(
    gate_up: tl.tensor,
    out: tl.tensor,
    dim: tl.int32,
    row_stride: tl.int64,
    tile: tl.constexpr,
    gelu: tl.constexpr,
) -> None:
    """Compute a tile of one row."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * tile + tl.arange(0, tile)
    gate = tl.load(gate_up + row * row_stride + at, mask=at < dim, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * row_stride + dim + at, mask=at < dim, other=0.0).to(tl.float32)
    # 0.5 * (1 + tanh(x)) is the sigmoid of 2 * x
    slope = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate) if gelu else gate
    tl.store(out + row * dim + at, (gate * tl.sigmoid(slope) * up).to(out.dtype.element_ty), mask=at < dim)


def reference_silu_mul(gate_up: Tensor) -> Tensor:
    """Do the same by torch's own functions, in fp32."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (F.silu(gate) * up).to(gate_up.dtype)


def reference_gelu_tanh_mul(gate_up: Tensor) -> Tensor:
    """Do the same by torch's own functions, in fp32."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (F.gelu(gate, approximate="tanh") * up).to(gate_up.dtype)
