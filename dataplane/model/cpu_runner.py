"""Computes the engine's rows on CPU."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from dataplane.contracts import failpoints
from dataplane.contracts.generation import TokenScore
from dataplane.engine.runner import Row, RowFailure, RowResult, Scored
from dataplane.model import batch as step_batch
from dataplane.model.kv_pool import KvPool
from dataplane.model.llama import Llama
from dataplane.model.sampler import Draw, sample, score

_SCORED_AT_ONCE_TOKENS = 64
"""Positions of a prompt whose logits are there at a time, when all of its tokens are to be scored."""


class CpuRunner:
    """A :class:`dataplane.engine.runner.Runner` that owns a KV pool and keeps no other state between steps."""

    def __init__(self, model: Llama, pool: KvPool, context_tokens: int) -> None:
        self.model = model
        self.pool = pool
        self._context_tokens = context_tokens

    @torch.inference_mode()
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
        pool = self.pool
        batch = step_batch.build(
            rows, pool.block_size, pool.num_blocks, self.model.config.vocab_size, self._context_tokens
        )
        hidden = self.model.hidden(batch, pool)
        if batch.sampled_rows:
            logits = self.model.logits(hidden[batch.sampled_tokens])
            sampled = [rows[index] for index in batch.sampled_rows]
            self._spoil(logits, sampled)
            draws = [Draw(row.sampling, row.output_index, row.ban_token_ids, row.counts) for row in sampled]
            for index, token in zip(batch.sampled_rows, sample(logits, draws), strict=True):
                results[index] = token
        for index, row in enumerate(rows):
            if row.score_token_ids:
                first = batch.row_ends[index] + 1 - len(row.token_ids)
                results[index] = self._with_prompt(row, hidden[first:], results[index])
        return results

    def _with_prompt(self, row: Row, hidden: Tensor, result: RowResult) -> RowResult:
        """Return ``result`` with the scores of the prompt's tokens in front; ``hidden`` begins with the row's first."""
        if isinstance(result, RowFailure):
            return result
        scores: list[TokenScore] = []
        for start in range(0, len(row.score_token_ids), _SCORED_AT_ONCE_TOKENS):
            token_ids = row.score_token_ids[start : start + _SCORED_AT_ONCE_TOKENS]
            found = score(
                self.model.logits(hidden[start : start + len(token_ids)]), token_ids, row.sampling.logprobs or 0
            )
            if isinstance(found, RowFailure):
                return found
            scores += found
        return Scored(result.token_id, scores + result.scores) if isinstance(result, Scored) else Scored(result, scores)

    def _spoil(self, logits: Tensor, rows: Sequence[Row]) -> None:
        """Make ``logits`` those of a faulty version, where a test has armed it: NaN, or an end that comes too early."""
        for place, row in enumerate(rows):
            fault = failpoints.hit("engine.logits", row.request_id)
            if fault is None:
                continue
            if fault.action is failpoints.Action.NAN:
                logits[place] = math.nan
            elif row.output_index >= fault.amount:
                logits[place, list(self.model.config.eos_token_ids)] += 1e4
