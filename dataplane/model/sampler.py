"""Draw the next token of each row from its logits.

The draw inverts the cumulative distribution at a point that depends on (seed, output index) alone, in the order of the
vocabulary: neither neighbours nor preemption can change it, and a rounding error in a logit moves the border between
two tokens by no more than itself.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dataplane.contracts.sampling import SamplingParams
from dataplane.engine.runner import RowFailure

_NUCLEUS_FIRST_GUESS = 64


@dataclass(frozen=True, slots=True)
class Draw:
    """How to draw one token: the parameters, the number of output tokens before it, and the ids it must not be."""

    params: SamplingParams
    output_index: int
    ban_token_ids: tuple[int, ...] = ()


def sample(logits: Tensor, draws: Sequence[Draw]) -> list[int | RowFailure]:
    """Return a token for each row of ``logits`` [n, vocab] (fp32, overwritten), or why there is none.

    Temperature comes first, then ``top_k``, then ``top_p`` of what is left; tokens that tie with the last one kept are
    kept too.
    """
    failures = _failures(logits, draws)
    tokens = [-1] * len(draws)
    for choose, wanted in ((_greedy, True), (_drawn, False)):
        rows = [row for row, draw in enumerate(draws) if (draw.params.temperature == 0) is wanted and not failures[row]]
        if rows:
            chosen = choose(logits[rows], [draws[row] for row in rows])
            for row, token_id in zip(rows, chosen, strict=True):
                tokens[row] = token_id
    return [failure or token_id for failure, token_id in zip(failures, tokens, strict=True)]


def uniform(seed: int, output_index: int) -> float:
    """Return the point in [0, 1) at which output token ``output_index`` of a request with ``seed`` is drawn."""
    digest = hashlib.blake2b(f"{seed}:{output_index}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) * 2.0**-53


def _failures(logits: Tensor, draws: Sequence[Draw]) -> list[RowFailure | None]:
    """Ban what is banned, and say for each row why no token can be drawn, if so."""
    least, greatest = logits.aminmax(dim=-1)
    failures: list[RowFailure | None] = [
        None if finite else RowFailure("the model's logits are not finite numbers")
        for finite in (least.isfinite() & greatest.isfinite()).tolist()
    ]
    for row, draw in enumerate(draws):
        banned = [token_id for token_id in draw.ban_token_ids if token_id < logits.shape[1]]
        if banned and failures[row] is None:
            logits[row, banned] = -math.inf
            if logits[row].amax().item() == -math.inf:
                failures[row] = RowFailure("every token of the vocabulary is banned")
    return failures


def _greedy(logits: Tensor, draws: Sequence[Draw]) -> list[int]:
    tokens: list[int] = logits.argmax(dim=-1).tolist()
    return tokens


def _drawn(logits: Tensor, draws: Sequence[Draw]) -> list[int]:
    temperatures = torch.tensor([draw.params.temperature for draw in draws], dtype=torch.float64)
    # relative to the greatest, so that a tiny temperature underflows to zero instead of overflowing
    scaled = (logits - logits.amax(dim=-1, keepdim=True)).double() / temperatures[:, None]
    for row, draw in enumerate(draws):
        _filter_(scaled[row], draw.params)
    cumulative = scaled.exp_().cumsum_(dim=-1)
    total = cumulative[:, -1]
    points = torch.tensor([uniform(draw.params.seed, draw.output_index) for draw in draws], dtype=torch.float64)
    # rounding may lift a point next to 1 to the total itself, which no token's interval holds
    targets = torch.minimum(points * total, torch.nextafter(total, torch.zeros_like(total)))
    tokens: list[int] = torch.searchsorted(cumulative, targets[:, None], right=True)[:, 0].tolist()
    return tokens


def _filter_(scaled: Tensor, params: SamplingParams) -> None:
    """Set what top_k and top_p cut away from one row of scaled logits [vocab] to -inf."""
    vocab = scaled.shape[0]
    if 0 < params.top_k < vocab:
        scaled.masked_fill_(scaled < scaled.topk(params.top_k).values[-1], -math.inf)
    if params.top_p < 1:
        scaled.masked_fill_(scaled < _nucleus_border(scaled, params.top_p), -math.inf)


def _nucleus_border(scaled: Tensor, top_p: float) -> Tensor:
    """Return the least logit of the smallest set of most probable tokens whose probability is at least ``top_p``.

    Sorting a vocabulary takes milliseconds, finding its greatest few does not: guess a few, widen until they suffice.
    """
    vocab = scaled.shape[0]
    total = scaled.exp().sum()
    count = _NUCLEUS_FIRST_GUESS
    while True:
        greatest = scaled.topk(min(count, vocab)).values
        mass = greatest.exp().cumsum(0) / total
        inside = int(torch.searchsorted(mass, top_p).item())
        if inside < len(greatest):
            return greatest[inside]
        if count >= vocab:
            return greatest[-1]
        count *= 16
