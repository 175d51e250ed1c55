"""What a step says of the tokens that come next."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from dataplane.engine.runner import RowFailure, Scored
from dataplane.model import sampler
from dataplane.model.sampler import Draw


@dataclass(frozen=True, slots=True)
class Logits:
    """Logits of some tokens of a step, good until the executor computes again.

    Attributes:
        values: [n, vocab] fp32; whoever draws from them may overwrite them.
        greedy: the most likely token of each row; -1 where the logits are not finite numbers.
    """

    values: Tensor
    greedy: list[int]

    def draw(self, places: Sequence[int], draws: Sequence[Draw]) -> list[int | Scored | RowFailure]:
        """Draw from the rows ``places``, which need more than :attr:`greedy`; see :mod:`dataplane.model.sampler`."""
        return sampler.sample(self._rows(places), draws)

    def _rows(self, places: Sequence[int]) -> Tensor:
        return self.values if len(places) == len(self.values) else self.values[list(places)]
