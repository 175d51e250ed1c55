"""What a step says of the tokens that come next."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Logits:
    """Logits of some tokens of a step, good until the executor computes again.

    Attributes:
        values: [n, vocab] fp32; whoever draws from them may overwrite them.
        greedy: the most likely token of each row; -1 where the logits are not finite numbers.
    """

    values: Tensor
    greedy: list[int]
