"""Choosing tokens on the GPU: the likeliest, and the draw of :mod:`dataplane.model.sampler`.

A draw inverts the cumulative distribution, in the order of the vocabulary, at a point that the host derives from seed
and output index. Temperature comes first, then ``min_p``, ``top_k``, and ``top_p`` of what is left; ties are kept.
Weights are fp64, as in the sampler. The least kept logit is found without sorting: digit after digit of its bits, the
greatest that still lets enough through.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

_PART = 8192
_DRAW_TILE = 1024


class Likeliest(NamedTuple):
    """By row [n]: the likeliest token (int64; the first of equals), its logit (fp32), and whether all are finite."""

    token_ids: Tensor
    logits: Tensor
    finite: Tensor


def likeliest(logits: Tensor) -> Likeliest:
    """Find the likeliest token of each row of ``logits`` [n, vocab] (dense rows in any float type)."""
    tokens, vocab = logits.shape
    device = logits.device
    parts = triton.cdiv(vocab, _PART)
    found = Likeliest(
        torch.empty(tokens, dtype=torch.int64, device=device),
        torch.empty(tokens, dtype=torch.float32, device=device),
        torch.empty(tokens, dtype=torch.bool, device=device),
    )
    maxima = torch.empty(tokens, parts, dtype=torch.float32, device=device)
    places = torch.empty(tokens, parts, 2, dtype=torch.int32, device=device)
    _search_parts[(tokens, parts)](logits, maxima, places, vocab, logits.stride(0), part=_PART, num_warps=8)
    _choose[(tokens,)](maxima, places, *found, parts, width=triton.next_power_of_2(parts), num_warps=1)
    return found


def draw(
    logits: Tensor, greatest: Tensor, temperature: Tensor, min_p: Tensor, top_k: Tensor, top_p: Tensor, points: Tensor
) -> Tensor:
    """Draw a token for each row of ``logits`` [n, vocab] (dense rows in any float type); return [n] int64.

    All but the logits are dense.

    Args:
        logits: finite, or -inf for a token that must not be drawn.
        greatest: [n] fp32 the greatest logit of each row.
        temperature: [n] fp64, above 0.
        min_p: [n] fp64 part of the likeliest token's weight that a token must have.
        top_k: [n] int32, 0 keeps all.
        top_p: [n] fp64, 1 keeps all.
        points: [n] fp64 in [0, 1), see :func:`dataplane.model.sampler.uniform`.
    """
    tokens, vocab = logits.shape
    drawn = torch.empty(tokens, dtype=torch.int64, device=logits.device)
    _draw[(tokens,)](
        logits, greatest, temperature, min_p, top_k, top_p, points, drawn, vocab, logits.stride(0),
        tile=_DRAW_TILE, num_warps=8,
    )  # fmt: skip
    return drawn


@triton.jit
def _search_parts(
    logits: tl.tensor,
    maxima: tl.tensor,
    places: tl.tensor,
    vocab: tl.int32,
    row_stride: tl.int64,
    part: tl.constexpr,
) -> None:
    """Find the greatest of a part of a row, where it stands, and how many are not finite."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * part + tl.arange(0, part)
    values = tl.load(logits + row * row_stride + at, mask=at < vocab, other=float("-inf")).to(tl.float32)
    infinite = (at < vocab) & ~(tl.abs(values) < float("inf"))  # NaN is not less
    place = row * tl.num_programs(1) + tl.program_id(1)
    tl.store(maxima + place, tl.max(values, 0))
    tl.store(places + place * 2, tl.program_id(1) * part + tl.argmax(values, 0))
    tl.store(places + place * 2 + 1, tl.sum(infinite.to(tl.int32), 0))


@triton.jit
def _choose(
    maxima: tl.tensor,
    places: tl.tensor,
    token_ids: tl.tensor,
    greatest: tl.tensor,
    finite: tl.tensor,
    parts: tl.int32,
    width: tl.constexpr,
) -> None:
    """Choose among the parts of a row."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, width)
    values = tl.load(maxima + row * parts + part, mask=part < parts, other=float("-inf"))
    infinite = tl.load(places + (row * parts + part) * 2 + 1, mask=part < parts, other=0)
    tl.store(token_ids + row, tl.load(places + (row * parts + tl.argmax(values, 0)) * 2).to(tl.int64))
    tl.store(greatest + row, tl.max(values, 0))
    tl.store(finite + row, tl.sum(infinite, 0) == 0)


@triton.jit
def _draw(
    logits: tl.tensor,
    greatest: tl.tensor,
    temperatures: tl.tensor,
    min_ps: tl.tensor,
    top_ks: tl.tensor,
    top_ps: tl.tensor,
    points: tl.tensor,
    drawn: tl.tensor,
    vocab: tl.int32,
    row_stride: tl.int64,
    tile: tl.constexpr,
) -> None:
    """Draw the token of one row."""
    row = tl.program_id(0)
    line = logits + row.to(tl.int64) * row_stride
    most, temperature, min_p = tl.load(greatest + row), tl.load(temperatures + row), tl.load(min_ps + row)
    top_k, top_p = tl.load(top_ks + row), tl.load(top_ps + row)
    border = tl.zeros([], tl.int64)
    if (top_k > 0) & (top_k < vocab):
        border = _least_kept(line, most, temperature, vocab, top_k.to(tl.float64), False, tile)
    total = _mass(line, most, temperature, min_p, border, vocab, tile)
    if top_p < 1:
        border = tl.maximum(border, _least_kept(line, most, temperature, vocab, top_p * total, True, tile))
        total = _mass(line, most, temperature, min_p, border, vocab, tile)
    # rounding may lift a point next to 1 to the total itself, which no token's interval holds
    below_total = (total.to(tl.int64, bitcast=True) - 1).to(tl.float64, bitcast=True)
    target = tl.minimum(tl.load(points + row) * total, below_total)
    before = tl.zeros([], tl.float64)
    token = tl.zeros([], tl.int32)
    for start in range(0, vocab, tile):
        weights = _kept(line, most, temperature, min_p, border, start, vocab, tile)
        after = before + tl.sum(weights, 0)
        if (before <= target) & (target < after):
            passed = tl.sum((before + tl.cumsum(weights, 0) <= target).to(tl.int32), 0)
            last = tl.max(tl.where(weights > 0, tl.arange(0, tile), 0), 0)  # the two sums may round apart
            token = start + tl.minimum(passed, last)
        before = after
    tl.store(drawn + row, token.to(tl.int64))


@triton.jit
def _ranked(
    line: tl.tensor, most: tl.float32, temperature: tl.float64, start: tl.int32, vocab: tl.int32, tile: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """Return the ranks (int64: greater for greater logits, equal for equal ones) and weights of a tile of a row."""
    at = start + tl.arange(0, tile)
    # relative to the greatest, so that a tiny temperature underflows to zero instead of overflowing
    below = tl.load(line + at, mask=at < vocab, other=float("-inf")).to(tl.float32) - most
    magnitude = below.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    return 0x7F800000 - magnitude.to(tl.int64), tl.exp(below.to(tl.float64) / temperature)


@triton.jit
def _kept(
    line: tl.tensor,
    most: tl.float32,
    temperature: tl.float64,
    min_p: tl.float64,
    border: tl.int64,
    start: tl.int32,
    vocab: tl.int32,
    tile: tl.constexpr,
) -> tl.tensor:
    """Return the weights of a tile of a row, 0 for what is not kept."""
    ranks, weights = _ranked(line, most, temperature, start, vocab, tile)
    return tl.where((ranks >= border) & (weights >= min_p), weights, 0.0)


@triton.jit
def _mass(
    line: tl.tensor,
    most: tl.float32,
    temperature: tl.float64,
    min_p: tl.float64,
    border: tl.int64,
    vocab: tl.int32,
    tile: tl.constexpr,
) -> tl.float64:
    """Return the weight of all that is kept of a row."""
    total = tl.zeros([], tl.float64)
    for start in range(0, vocab, tile):
        total += tl.sum(_kept(line, most, temperature, min_p, border, start, vocab, tile), 0)
    return total


@triton.jit
def _least_kept(
    line: tl.tensor,
    most: tl.float32,
    temperature: tl.float64,
    vocab: tl.int32,
    goal: tl.float64,
    by_weight: tl.constexpr,
    tile: tl.constexpr,
) -> tl.int64:
    """Return the greatest rank from which on the tokens weigh (or are) at least ``goal``: four bits in each pass."""
    border = tl.zeros([], tl.int64)
    digit = tl.arange(0, 16).to(tl.int64)
    for place in range(8):
        step = digit << (28 - 4 * place)
        sums = tl.zeros([16], tl.float64)
        for start in range(0, vocab, tile):
            ranks, weights = _ranked(line, most, temperature, start, vocab, tile)
            counted = weights if by_weight else tl.full([tile], 1.0, tl.float64)
            sums += tl.sum(tl.where(ranks[None, :] >= border + step[:, None], counted[None, :], 0.0), 1)
        border += tl.max(tl.where(sums >= goal, step, 0), 0)
    return tl.minimum(border, 0x7F800000)  # a goal of 0 is reached by nothing at all: keep the likeliest


def reference_likeliest(logits: Tensor) -> Likeliest:
    """Do the same by torch's own functions."""
    values = logits.float()
    return Likeliest(values.argmax(-1), values.amax(-1), values.isfinite().all(-1))


def reference_draw(
    logits: Tensor, greatest: Tensor, temperature: Tensor, min_p: Tensor, top_k: Tensor, top_p: Tensor, points: Tensor
) -> Tensor:
    """Do the same, row by row, on the sorted weights."""
    drawn = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    for row, line in enumerate(logits.float()):
        weights = ((line - greatest[row]).double() / temperature[row]).exp()
        ordered = weights.sort(descending=True).values
        border = min_p[row]
        if 0 < top_k[row] < len(line):
            border = torch.maximum(border, ordered[top_k[row] - 1])
        if top_p[row] < 1:
            nucleus = ordered.cumsum(0) < top_p[row] * weights[weights >= border].sum()
            border = torch.maximum(border, ordered[min(int(nucleus.sum()), len(line) - 1)])
        cumulative = torch.where(weights >= border, weights, 0.0).cumsum(0)
        target = points[row] * cumulative[-1]
        drawn[row] = torch.searchsorted(cumulative, target, right=True).clamp(max=len(line) - 1)
    return drawn
