"""Logits on a GPU: tokens are drawn there where a kernel can, and on the host where parameters want more than that."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dataplane.contracts.sampling import SamplingParams
from dataplane.engine.runner import RowFailure, Scored
from dataplane.kernels.triton import sampling
from dataplane.model import sampler
from dataplane.model.logits import Logits
from dataplane.model.sampler import Draw


def greedy(values: Tensor) -> Tensor:
    """Return the likeliest token of each row of ``values`` [n, vocab], -1 where they are not finite: [n] int64."""
    found = sampling.likeliest(values)
    return torch.where(found.finite, found.token_ids, -1)


def compile_draws(values: Tensor) -> None:
    """Draw once from ``values`` [n, vocab]: the first draw of a process waits for kernels to be compiled."""
    _drawn(values[:1], [Draw(SamplingParams(max_tokens=1), 0)])


class DeviceLogits(Logits):
    """A :class:`dataplane.model.logits.Logits` whose values are on a device.

    Penalties, biases, bans, grammars and scores take the way over the host: their rows are copied there, [vocab] each.
    """

    def draw(self, places: Sequence[int], draws: Sequence[Draw]) -> list[int | Scored | RowFailure]:
        """Draw at ``places``; see :class:`dataplane.model.logits.Logits`."""
        results: dict[int, int | Scored | RowFailure] = {}
        plain = [(place, draw) for place, draw in zip(places, draws, strict=True) if sampler.is_plain(draw)]
        others = [(place, draw) for place, draw in zip(places, draws, strict=True) if not sampler.is_plain(draw)]
        if plain:
            at = [place for place, _ in plain]
            results |= zip(at, _drawn(self._rows(at), [draw for _, draw in plain]), strict=True)
        if others:
            at = [place for place, _ in others]
            results |= zip(at, sampler.sample(self._rows(at).cpu(), [draw for _, draw in others]), strict=True)
        return [results[place] for place in places]


def _drawn(values: Tensor, draws: Sequence[Draw]) -> list[int | RowFailure]:
    """Draw from ``values`` [n, vocab] by temperature, min_p, top_k and top_p alone."""
    columns = np.empty((5, len(draws)))
    for row, draw in enumerate(draws):
        params = draw.params
        point = sampler.uniform(params.seed, draw.output_index, params.choice)
        columns[:, row] = params.temperature, params.min_p, params.top_k, params.top_p, point
    temperature, min_p, top_k, top_p, points = torch.from_numpy(columns).to(values.device)
    found = sampling.likeliest(values)
    tokens = sampling.draw(values, found.logits, temperature, min_p, top_k.int(), top_p, points)
    drawn: list[int] = torch.where(found.finite, tokens, -1).tolist()
    return [token if token >= 0 else sampler.NOT_FINITE for token in drawn]
