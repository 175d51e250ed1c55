"""Draw the next token of each row from its logits.

The draw inverts the cumulative distribution at a point that depends on (seed, output index) alone, in the order of the
vocabulary: neither neighbours nor preemption can change it, and a rounding error in a logit moves the border between
two tokens by no more than itself.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dataplane.contracts.errors import Code
from dataplane.contracts.generation import TokenScore
from dataplane.contracts.sampling import SamplingParams
from dataplane.engine.runner import RowFailure, Scored
from dataplane.engine.token_counts import TokenCounts

NOT_FINITE = RowFailure("the model's logits are not finite numbers", Code.LOGITS_NOT_FINITE)
_NUCLEUS_FIRST_GUESS = 64
_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
_OF_MASK_BYTE = np.where(_BITS == 1, 0.0, -np.inf).astype(np.float32)
"""What a byte of a mask adds to the logits of its eight tokens: to look it up takes a tenth of the time of filling."""


@dataclass(frozen=True, slots=True)
class Draw:
    """How to draw one token: the parameters, the number of output tokens before it, and the ids it must not be.

    ``counts`` are the tokens that penalties weigh, None without any; ``allowed`` has a bit for each token that may be
    drawn, the least of a byte first, None where all may; a failure is passed on.
    """

    params: SamplingParams
    output_index: int
    ban_token_ids: tuple[int, ...] = ()
    counts: TokenCounts | None = None
    allowed: bytes | RowFailure | None = None


def needs_logits(draw: Draw) -> bool:
    """Say whether more is needed than the model's likeliest token and the word that its logits are finite."""
    return draw.params.temperature != 0 or not is_plain(draw)


def is_plain(draw: Draw) -> bool:
    """Say whether a token is drawn from the logits as they are, and nothing is told of it."""
    return not _is_shaped(draw) and draw.params.logprobs is None


def sample(logits: Tensor, draws: Sequence[Draw]) -> list[int | Scored | RowFailure]:
    """Return a token for each row of ``logits`` [n, vocab] (fp32, overwritten), or why there is none.

    First the repetition penalty, the other penalties, the bias and the bans change the logits. Temperature comes next,
    then ``min_p``, ``top_k``, and ``top_p`` of what is left; tokens that tie with the last one kept are kept too.
    Scores are those of the model's own logits.
    """
    # a sum is finite only if its terms are, and takes a tenth of the time of looking at each
    finite = logits.sum(dim=-1).isfinite().tolist()
    scored = [row for row, draw in enumerate(draws) if draw.params.logprobs is not None]
    own_logits = logits[scored] if scored else None
    for row, draw in enumerate(draws):
        if _is_shaped(draw):
            _shape(logits[row], draw)
    greatest: list[int] = logits.argmax(dim=-1).tolist()
    results: list[int | Scored | RowFailure] = []
    for row, draw in enumerate(draws):
        if isinstance(draw.allowed, RowFailure):
            results.append(draw.allowed)
        elif not finite[row]:
            results.append(NOT_FINITE)
        elif _is_shaped(draw) and logits[row, greatest[row]].item() == -math.inf:
            results.append(_nothing_left(draw))
        else:
            results.append(greatest[row] if draw.params.temperature == 0 else _draw(logits[row], greatest[row], draw))
    if own_logits is not None:
        _add_scores(own_logits, scored, draws, results)
    return results


def score(logits: Tensor, token_ids: Sequence[int], alternatives: int) -> list[TokenScore] | RowFailure:
    """Return the score of each token under its row of ``logits`` [n, vocab] (fp32), with so many of the likeliest."""
    if not logits.sum().isfinite().item():
        return NOT_FINITE
    return _scores(logits, token_ids, [alternatives] * len(token_ids))


def _is_shaped(draw: Draw) -> bool:
    return bool(draw.counts is not None or draw.params.logit_bias or draw.ban_token_ids or draw.allowed is not None)


def _shape(logits: Tensor, draw: Draw) -> None:
    """Change one row of logits [vocab] by penalties, bias and bans."""
    params, vocab = draw.params, len(logits)
    if draw.counts is not None and draw.counts.token_ids:
        places = torch.frombuffer(draw.counts.token_ids, dtype=torch.int64)
        counts = torch.frombuffer(draw.counts.counts, dtype=torch.float32)
        seen = logits[places]
        if params.repetition_penalty != 1:
            seen = torch.where(seen > 0, seen / params.repetition_penalty, seen * params.repetition_penalty)
        if params.frequency_penalty or params.presence_penalty:
            seen -= params.frequency_penalty * counts + params.presence_penalty * (counts > 0)
        logits[places] = seen
    if params.logit_bias:
        logits[list(params.logit_bias)] += torch.tensor(list(params.logit_bias.values()))
    if draw.ban_token_ids:
        logits[[token_id for token_id in draw.ban_token_ids if token_id < vocab]] = -math.inf
    if isinstance(draw.allowed, bytes):
        added = _OF_MASK_BYTE.take(np.frombuffer(draw.allowed, np.uint8), axis=0).reshape(-1)
        logits += torch.from_numpy(added[:vocab])


def _nothing_left(draw: Draw) -> RowFailure:
    if draw.allowed is None:
        return RowFailure("every token of the vocabulary is banned")
    message = f"the grammar ends the answer after {draw.output_index} tokens, and min_tokens or a bias forbids that"
    return RowFailure(message, Code.GRAMMAR_FAILED)


def _add_scores(
    own_logits: Tensor, scored: Sequence[int], draws: Sequence[Draw], results: list[int | Scored | RowFailure]
) -> None:
    """Put the scores of the rows ``scored`` beside their tokens."""
    drawn = [result if isinstance(result := results[row], int) else 0 for row in scored]
    scores = _scores(own_logits, drawn, [draws[row].params.logprobs or 0 for row in scored])
    for row, found in zip(scored, scores, strict=True):
        if isinstance(results[row], int):
            results[row] = Scored(found.token_id, [found])


def _scores(logits: Tensor, token_ids: Sequence[int], alternatives: Sequence[int]) -> list[TokenScore]:
    total = logits.logsumexp(dim=-1, keepdim=True)
    own = (logits.gather(1, torch.tensor(token_ids, dtype=torch.int64)[:, None]) - total)[:, 0].tolist()
    most = min(max(alternatives, default=0), logits.shape[1])
    top = logits.topk(most)
    top_ids, top_logprobs = top.indices.tolist(), (top.values - total).tolist()
    return [
        TokenScore(token_id, own[row], list(zip(top_ids[row][:count], top_logprobs[row][:count], strict=True)))
        for row, (token_id, count) in enumerate(zip(token_ids, alternatives, strict=True))
    ]


def uniform(seed: int, output_index: int, choice: int = 0) -> float:
    """Return the point in [0, 1) at which output token ``output_index`` of a request with ``seed`` is drawn.

    The first choice of several draws as the one of a request for one.
    """
    name = f"{seed}:{output_index}:{choice}" if choice else f"{seed}:{output_index}"
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
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
    target = min(uniform(draw.params.seed, draw.output_index, draw.params.choice) * total, math.nextafter(total, 0.0))
    place = torch.searchsorted(cumulative, target, right=True)
    return int(place.item() if kept is None else kept[place].item())


def _least_kept(weights: Tensor, params: SamplingParams) -> float:
    """Return the weight of the least likely token that min_p, top_k and top_p keep; 0 keeps every token.

    The weight of the likeliest is 1, which min_p is a part of.

    A nucleus is nearly always small, and finding the greatest few is quicker than sorting a vocabulary. Where it is
    not, numpy sorts in a thirtieth of torch's time.
    """
    vocab = len(weights)
    border = params.min_p
    if 0 < params.top_k < vocab:
        border = max(border, weights.topk(params.top_k).values[-1].item())
    if params.top_p >= 1:
        return border
    mass = params.top_p * (weights if border == 0 else weights[weights >= border]).sum().item()
    likeliest = weights.topk(min(_NUCLEUS_FIRST_GUESS, vocab)).values
    inside = int(torch.searchsorted(likeliest.cumsum(0), mass).item())
    if inside == len(likeliest) < vocab:
        likeliest = torch.from_numpy(np.sort(weights.cpu().numpy())[::-1].copy())
        inside = int(torch.searchsorted(likeliest.cumsum(0), mass).item())
    return max(border, likeliest[inside].item()) if inside < len(likeliest) else border
