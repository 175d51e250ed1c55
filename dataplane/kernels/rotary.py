"""Rotary position embedding (Su et al., 2021) as one complex multiplication.

Hugging Face pairs element i of a head with i + head_dim / 2. We interleave each pair when the weights are packed
(:func:`interleave_pairs`), so that a pair is one complex number in memory. Queries and keys are permuted alike, so
their products are unchanged.
"""

import torch
from torch import Tensor


def interleave_pairs(rows: Tensor, head_dim: int) -> Tensor:
    """Reorder the output rows [heads * head_dim, ...] of a projection so that rotary pairs become neighbours."""
    return rows.view(-1, 2, head_dim // 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


def rotations(positions: Tensor, head_dim: int, theta: float) -> Tensor:
    """Return the unit complex numbers [n, head_dim / 2] by which the pairs at ``positions`` [n] turn."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    angles = positions.float()[:, None] * (1.0 / theta**exponents)
    return torch.polar(torch.ones_like(angles), angles)


def rotate_(heads: Tensor, turns: Tensor) -> None:
    """Rotate interleaved ``heads`` [n, heads, head_dim] (fp32, last dimension dense) in place by ``turns``."""
    pairs = torch.view_as_complex(heads.view(*heads.shape[:-1], -1, 2))
    pairs.mul_(turns[:, None, :])


def reference_rotate(heads: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Return ``heads`` [n, heads, head_dim] in Hugging Face's order, rotated by the textbook formula."""
    head_dim = heads.shape[-1]
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    angles = (positions.float()[:, None] * (1.0 / theta**exponents)).repeat(1, 2)[:, None, :]
    first, second = heads.chunk(2, dim=-1)
    return heads * angles.cos() + torch.cat((-second, first), dim=-1) * angles.sin()
