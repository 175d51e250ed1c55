"""What a step of the model takes, by the tokens it computes."""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Self

import msgspec

_Measured = msgspec.json.Decoder(dict[str, dict[Annotated[str, msgspec.Meta(pattern="^[0-9]+$")], float]])


@dataclass(frozen=True)
class StepCosts:
    """Milliseconds of a step by its tokens: straight lines between what was measured, and on beyond it.

    A decoding row is one token, a chunk of a prompt is as many as it has. What attention costs with longer contexts is
    in the figures as far as it was when these were measured.

    Attributes:
        points: (tokens, ms), at least two, both growing.

    Raises:
        ValueError: points that are too few or do not grow.
    """

    points: tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        if len(self.points) < 2:
            raise ValueError("a step's cost needs at least two measured batches, to draw a line through")
        for (tokens, ms), (more, longer) in pairwise(self.points):
            if more <= tokens or longer <= ms or ms <= 0:
                raise ValueError(
                    f"a step of {more} tokens is given {longer} ms and one of {tokens} tokens {ms} ms: "
                    "more tokens must take longer; measure again, or leave one out"
                )

    def ms(self, tokens: int) -> float:
        """Return what a step of so many tokens takes."""
        line = self.points[-2:]
        for left, right in pairwise(self.points):
            if tokens <= right[0]:
                line = (left, right)
                break
        (few, short), (many, long) = line
        # Below the first point the weights are still read once: no line leads to nothing.
        return max(self.points[0][1], short + (tokens - few) * (long - short) / (many - few))

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read ``{"step_ms": {"1": 35.7, "8": 59.7, ...}}``: milliseconds by tokens in a step.

        Raises:
            ValueError: another shape, or points that do not grow.
        """
        try:
            measured = _Measured.decode(path.read_bytes())["step_ms"]
        except (msgspec.DecodeError, KeyError) as error:
            raise ValueError(f'{path}: expected {{"step_ms": {{"1": 35.7, "8": 59.7}}}}: {error}') from error
        return cls(tuple(sorted((int(tokens), ms) for tokens, ms in measured.items())))


TWO_CORES = StepCosts(((1, 35.7), (8, 59.7), (32, 180.8), (256, 540.0)))
"""A model of 135 million parameters in fp32 on two cores with AVX2, plain PyTorch: 28, 134 and 177 tokens a second at
1, 8 and 32 rows, 475 in a prefill."""
