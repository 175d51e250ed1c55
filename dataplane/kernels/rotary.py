"""Rotary position embedding (Su et al., 2021): frequencies, and the order in which a pair's two elements lie.

Hugging Face pairs element i of a head with i + head_dim / 2. We interleave each pair when the weights are packed
(:func:`interleave_pairs`), so that its elements are neighbours in memory. Queries and keys are permuted alike, so their
products are unchanged.
"""

import torch
from torch import Tensor


def interleave_pairs(rows: Tensor, head_dim: int) -> Tensor:
    """Reorder the output rows [heads * head_dim, ...] of a projection so that rotary pairs become neighbours."""
    return rows.view(-1, 2, head_dim // 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


def frequencies(head_dim: int, theta: float) -> tuple[float, ...]:
    """Return the angles, in radians, by which the head_dim / 2 pairs turn from one position to the next."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    return tuple((1.0 / theta**exponents).tolist())


def reference_rotate(heads: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Return ``heads`` [n, heads, head_dim] in Hugging Face's order, rotated by the textbook formula."""
    head_dim = heads.shape[-1]
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    angles = (positions.float()[:, None] * (1.0 / theta**exponents)).repeat(1, 2)[:, None, :]
    first, second = heads.chunk(2, dim=-1)
    return heads * angles.cos() + torch.cat((-second, first), dim=-1) * angles.sin()
