"""Computes the engine's rows, on whatever device its executor does."""

import math
from collections.abc import Sequence

import numpy as np

from dataplane.contracts import failpoints
from dataplane.contracts.generation import TokenScore
from dataplane.contracts.model_config import ModelConfig
from dataplane.engine.runner import Row, RowFailure, RowResult, Scored
from dataplane.model import step as steps
from dataplane.model.executor import Executor
from dataplane.model.kv_pool import KvPool
from dataplane.model.logits import Logits
from dataplane.model.sampler import NOT_FINITE, Draw, needs_logits, score

SCORED_AT_ONCE_TOKENS = 64
"""Positions of a prompt whose logits are there at a time, when all of its tokens are to be scored."""


class ModelRunner:
    """A :class:`dataplane.engine.runner.Runner` that owns a KV pool and keeps no other state between steps."""

    def __init__(self, config: ModelConfig, executor: Executor, pool: KvPool, context_tokens: int) -> None:
        self.pool = pool
        self._config = config
        self._executor = executor
        self._bounds = steps.Bounds(pool.block_size, pool.num_blocks, config.vocab_size, context_tokens)

    @property
    def kernels(self) -> str:
        """What it computes with, in a few words."""
        return self._executor.kernels

    def execute(self, rows: Sequence[Row]) -> list[RowResult]:
        """Compute ``rows``; see :class:`dataplane.engine.runner.Runner`.

        Raises:
            ValueError: a row does not fit the model or the pool.
        """
        results: list[RowResult] = [None] * len(rows)
        if not rows:
            return results
        for row in rows:
            failpoints.hit("engine.row", row.request_id)
        step = steps.build(rows, self._bounds)
        self._executor.run(step, self.pool)
        if step.sampled_rows:
            sampled = [rows[index] for index in step.sampled_rows]
            drawn = self._draw(sampled, self._executor.logits(step.sampled_at))
            for index, result in zip(step.sampled_rows, drawn, strict=True):
                results[index] = result
        for index, row in enumerate(rows):
            if row.score_token_ids:
                results[index] = self._with_prompt(row, int(step.sequences["first"][index]), results[index])
        return results

    def _draw(self, rows: Sequence[Row], logits: Logits) -> list[int | Scored | RowFailure]:
        """Draw for ``rows``: those that ask for no more than the likeliest token never look at their logits."""
        self._spoil(logits, rows)
        draws = [Draw(row.sampling, row.output_index, row.ban_token_ids, row.counts, row.allowed()) for row in rows]
        results: list[int | Scored | RowFailure] = [token if token >= 0 else NOT_FINITE for token in logits.greedy]
        wanting = [place for place, draw in enumerate(draws) if needs_logits(draw)]
        if wanting:
            for place, result in zip(wanting, logits.draw(wanting, [draws[place] for place in wanting]), strict=True):
                results[place] = result
        return results

    def _with_prompt(self, row: Row, first: int, result: RowResult) -> RowResult:
        """Return ``result`` with the scores of the prompt's tokens in front; its tokens begin at ``first``."""
        if isinstance(result, RowFailure):
            return result
        scores: list[TokenScore] = []
        for start in range(0, len(row.score_token_ids), SCORED_AT_ONCE_TOKENS):
            token_ids = row.score_token_ids[start : start + SCORED_AT_ONCE_TOKENS]
            at = np.arange(first + start, first + start + len(token_ids), dtype=np.int32)
            found = score(self._executor.logits(at).values.cpu(), token_ids, row.sampling.logprobs or 0)
            if isinstance(found, RowFailure):
                return found
            scores += found
        return Scored(result.token_id, scores + result.scores) if isinstance(result, Scored) else Scored(result, scores)

    def _spoil(self, logits: Logits, rows: Sequence[Row]) -> None:
        """Make ``logits`` those of a faulty version, where a test has armed it: NaN, or an end that comes too early."""
        for place, row in enumerate(rows):
            fault = failpoints.hit("engine.logits", row.request_id)
            if fault is None:
                continue
            if fault.action is failpoints.Action.NAN:
                logits.values[place] = math.nan
                logits.greedy[place] = -1
            elif row.output_index >= fault.amount:
                logits.values[place, list(self._config.eos_token_ids)] += 1e4
                logits.greedy[place] = int(logits.values[place].argmax())
