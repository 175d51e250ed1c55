"""One rank's part of a step: rows from the stage before, its own operations, rows to the stage after.

A step is cut into micro-batches, so that stages work on different ones at a time (Huang et al., 2019). Each costs a
stage a reading of its weights, so a step of few tokens stays whole.
"""

from array import array
from itertools import accumulate, pairwise
from typing import Final

import numpy as np
import torch

from dataplane.contracts.ranks import ComputeStep
from dataplane.model.executor import Executor
from dataplane.model.kv_pool import KvPool
from dataplane.model.parallel.group import Group
from dataplane.model.step import SEQUENCE, Step

MICRO_BATCH_TOKENS: Final = 64
"""Fewer are not worth another reading of the weights: measured, 32 rows in two halves take longer than in one."""
MICRO_BATCHES_PER_STAGE: Final = 2
"""Twice as many save a tenth more of the bubbles and cost more than that."""


def micro_batches(tokens: int, stages: int) -> int:
    """Return into how many parts a step of ``tokens`` is cut."""
    return 1 if stages == 1 else max(1, min(tokens // MICRO_BATCH_TOKENS, MICRO_BATCHES_PER_STAGE * stages))


def pieces(step: Step, count: int) -> list[Step]:
    """Cut ``step`` into ``count`` steps of as many tokens each as can be, to be computed in order."""
    tokens = len(step.token_ids)
    return [_between(step, *borders) for borders in pairwise(index * tokens // count for index in range(count + 1))]


def _between(step: Step, begin: int, end: int) -> Step:
    """The tokens [begin, end): a row that goes over a border is computed as two chunks."""
    first, count = step.sequences["first"], step.sequences["count"]
    starts, ends = np.maximum(first, begin), np.minimum(first + count, end)
    there = np.flatnonzero(ends > starts)
    sequences = step.sequences[there].copy()
    sequences["position"] += (starts - first)[there]
    sequences["first"], sequences["count"] = (starts - begin)[there], (ends - starts)[there]
    tables = [step.tables[index] for index in there]
    return Step(step.token_ids[begin:end], sequences, tables, [], np.empty(0, np.int32))


def as_message(step: Step, count: int) -> ComputeStep:
    """Return what tells another rank to compute ``step`` in ``count`` micro-batches."""
    tables = b"".join(table.tobytes() for table in step.tables)
    return ComputeStep(count, step.token_ids.tobytes(), step.sequences.tobytes(), tables)


def from_message(message: ComputeStep) -> Step:
    """Return the step of :func:`as_message`, but for what is drawn from it."""
    sequences = np.frombuffer(message.sequences, SEQUENCE).copy()
    ends = accumulate((4 * int(blocks) for blocks in sequences["blocks"]), initial=0)
    tables = [array("i", message.tables[begin:end]) for begin, end in pairwise(ends)]
    sequences["table"] = [table.buffer_info()[0] for table in tables]
    return Step(np.frombuffer(message.token_ids, np.int32), sequences, tables, [], np.empty(0, np.int32))


class Stage:
    """Computes a rank's part of every step, in step with the others.

    Args:
        executor: of the rank's part of the program.
        group: joined.
        width: of the residual rows.
    """

    def __init__(self, executor: Executor, group: Group, width: int) -> None:
        self._executor, self._group, self._width = executor, group, width

    def compute(self, step: Step, pool: KvPool, count: int) -> None:
        """Compute ``step`` in ``count`` micro-batches; rank 0 has the residual rows of all layers then.

        Raises:
            RankLost: another rank has ended.
        """
        group, place = self._group, self._group.place
        if place.parallel.pipeline == 1:
            self._executor.run(step, pool)
            return
        parts = pieces(step, count)
        for part in parts:
            tokens = len(part.token_ids)
            if place.stage:
                self._executor.put_residual(group.take_over(tokens, self._width))
            self._executor.run(part, pool)
            group.hand_on(self._executor.residual(tokens))
        if place.rank == 0:
            rows = [group.take_over(len(part.token_ids), self._width) for part in parts]
            self._executor.put_residual(torch.cat(rows))
        group.settle()
