"""The border between engine and model: the engine says which tokens to compute, a runner computes them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from dataplane.contracts.errors import Code
from dataplane.contracts.generation import TokenScore
from dataplane.contracts.sampling import SamplingParams
from dataplane.engine.token_counts import TokenCounts


class Constraint(Protocol):
    """What one sequence may go on with, as its grammar says. It looks ahead beside whatever else is computed."""

    def allowed(self) -> "bytes | RowFailure":
        """Return which tokens may come next, waiting if need be: a bit for each, the least of a byte first."""
        ...

    def accept(self, token_id: int) -> None:
        """Go on by the token that was drawn."""
        ...

    def close(self) -> None:
        """Let go of it: the sequence is over."""
        ...


@dataclass(slots=True)
class Row:
    """A chunk of one sequence to compute in this step.

    Attributes:
        request_id: for log lines; a runner keeps no state by it.
        token_ids: tokens to compute now: a chunk of a prompt, or the one token sampled last.
        position: absolute position of ``token_ids[0]``; everything before it is in the KV pool already.
        block_table: ids of the blocks that hold positions 0 to ``position + len(token_ids) - 1``. Read only. The engine
            gives an ``array("i")``: a buffer of 32-bit integers, to be let go of before :meth:`Runner.execute` returns.
        sample: draw one token from the logits of the last position.
        sampling: how to draw it.
        output_index: how many output tokens precede the one to draw; with ``sampling.seed`` it fixes the draw.
        ban_token_ids: ids that must not be drawn (end and stop tokens while below ``min_tokens``).
        counts: the tokens that penalties weigh; None without any. Read only.
        score_token_ids: tokens of the prompt to score: the one at place i stands behind position ``position + i``.
        constraint: what may be drawn; None is anything. To be asked as late as can be.
    """

    request_id: str
    token_ids: list[int]
    position: int
    block_table: Sequence[int]
    sample: bool
    sampling: SamplingParams
    output_index: int
    ban_token_ids: tuple[int, ...]
    counts: TokenCounts | None = None
    score_token_ids: Sequence[int] = ()
    constraint: Constraint | None = None

    def allowed(self) -> "bytes | RowFailure | None":
        """Return what its constraint allows, as :meth:`Constraint.allowed`; None is anything."""
        return None if self.constraint is None else self.constraint.allowed()

    @property
    def num_scores(self) -> int:
        """How many scores its result has."""
        return len(self.score_token_ids) + (self.sample and self.sampling.logprobs is not None)


@dataclass(frozen=True, slots=True)
class RowFailure:
    """A row that could not be computed. Its neighbours are unharmed."""

    message: str
    code: Code = Code.REQUEST_FAILED


@dataclass(frozen=True, slots=True)
class Scored:
    """A row's token (None where it draws none) with what was asked about it.

    ``scores``: of ``score_token_ids`` in order, then of the token drawn if ``sampling.logprobs`` asks for it.
    """

    token_id: int | None
    scores: list[TokenScore]


RowResult = int | Scored | RowFailure | None
"""The token drawn, bare unless there are scores; a failure; None where none is drawn."""


class Runner(Protocol):
    """Computes rows against a KV pool of ``num_blocks`` x ``block_size`` tokens that it owns.

    Running a row twice must give the same result: after an exception the engine runs the rows of the step again, one
    at a time, to find the offender.
    """

    def execute(self, rows: Sequence[Row]) -> list[RowResult]:
        """Compute ``rows`` and return one entry for each."""
        ...
