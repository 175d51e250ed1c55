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

from dataplane.contracts.errors import Code
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
    # a sum is finite only if its terms are, and takes a tenth of the time of looking at each
    finite = logits.sum(dim=-1).isfinite().tolist()
    for row, draw in enumerate(draws):
        banned = [token_id for token_id in draw.ban_token_ids if token_id < logits.shape[1]]
        if banned:
            logits[row, banned] = -math.inf
    greatest: list[int] = logits.argmax(dim=-1).tolist()
    results: list[int | RowFailure] = []
    for row, draw in enumerate(draws):
        if not finite[row]:
            results.append(RowFailure("the model's logits are not finite numbers", Code.LOGITS_NOT_FINITE))
        elif draw.ban_token_ids and logits[row, greatest[row]].item() == -math.inf:
            results.append(RowFailure("every token of the vocabulary is banned"))
        else:
            results.append(greatest[row] if draw.params.temperature == 0 else _draw(logits[row], greatest[row], draw))
    return results


def uniform(seed: int, output_index: int) -> float:
    """Return the point in [0, 1) at which output token ``output_index`` of a request with ``seed`` is drawn."""
    digest = hashlib.blake2b(f"{seed}:{output_index}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) * 2.0**-53


def _draw(logits: Tensor, greatest: int, draw: Draw) -> int:
    """Draw from one row of logits [vocab], of which ``greatest`` is the most likely token."""
    # relative to the greatest, so that a tiny temperature underflows to zero instead of overflowing
    weights = (logits - logits[greatest]).double().div_(draw.params.temperature).exp_()
    border = _least_kept(weights, draw.params)
    kept = (weights >= border).nonzero()[:, 0] if border > 0 else None
    cumulative = (weights if kept is None else weights[kept]).cumsum(0)
    total = cumulative[-1].item()
    # rounding may lift a point next to 1 to the total itself, which no token's interval holds
    target = min(uniform(draw.params.seed, draw.output_index) * total, math.nextafter(total, 0.0))
    place = torch.searchsorted(cumulative, target, right=True)
    return int(place.item() if kept is None else kept[place].item())


def _least_kept(weights: Tensor, params: SamplingParams) -> float:
    """Return the weight of the least likely token that top_k and top_p keep; 0 keeps every token.

    Sorting a vocabulary takes milliseconds, finding its greatest few does not: guess how many the nucleus holds, widen
    until they suffice.
    """
    vocab = len(weights)
    border = 0.0
    if 0 < params.top_k < vocab:
        border = weights.topk(params.top_k).values[-1].item()
    if params.top_p >= 1:
        return border
    mass = params.top_p * (weights if border == 0 else weights[weights >= border]).sum().item()
    for count in (_NUCLEUS_FIRST_GUESS, 16 * _NUCLEUS_FIRST_GUESS, vocab):
        likeliest = weights.topk(min(count, vocab)).values
        inside = int(torch.searchsorted(likeliest.cumsum(0), mass).item())
        if inside < len(likeliest):
            return max(border, likeliest[inside].item())
    return border
