"""One step as arrays: which tokens, of which sequences, in which blocks, and which of them draw a successor."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from dataplane.engine.runner import Row

SEQUENCE = np.dtype([
    ("first", np.int32), ("count", np.int32), ("position", np.int32), ("blocks", np.int32), ("table", np.uint64),
])  # fmt: skip
"""``Sequence`` of ``kernels/cpu/attention.hpp``; ``table`` is the address of block ids [blocks] int32."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What every row of a step must keep to: the pool's, the model's, the deployment's."""

    block_size: int
    num_blocks: int
    vocab_size: int
    context_tokens: int


@dataclass(frozen=True, slots=True)
class StepLimits:
    """What an executor makes room for: tokens of a step, and tokens whose logits are asked for at once."""

    tokens: int
    sampled: int


@dataclass(frozen=True, slots=True)
class Step:
    """The tokens of a step, row after row.

    Attributes:
        token_ids: [n] int32.
        sequences: [rows] :data:`SEQUENCE`.
        tables: the rows' block tables, which ``sequences`` points into.
        sampled_rows: indices of the rows that draw a token.
        sampled_at: [len(sampled_rows)] int32, index into the n tokens of each one's last.
    """

    token_ids: NDArray[np.int32]
    sequences: NDArray[np.void]
    tables: "list[array[int]]"
    sampled_rows: list[int]
    sampled_at: NDArray[np.int32]


def build(rows: Sequence[Row], bounds: Bounds) -> Step:
    """Lay out the rows of a step.

    Raises:
        ValueError: a row that does not fit the model or the pool; the message names the request.
    """
    tables: list[array[int]] = []
    sequences: list[tuple[int, int, int, int, int]] = []
    sampled_rows: list[int] = []
    sampled_at: list[int] = []
    first = 0
    for index, row in enumerate(rows):
        count = len(row.token_ids)
        _check(row, count, bounds)
        table = row.block_table if isinstance(row.block_table, array) else array("i", row.block_table)
        tables.append(table)
        sequences.append((first, count, row.position, len(table), table.buffer_info()[0]))
        first += count
        if row.sample:
            sampled_rows.append(index)
            sampled_at.append(first - 1)
    token_ids = np.fromiter(chain.from_iterable(row.token_ids for row in rows), np.int32, first)
    return Step(token_ids, np.array(sequences, SEQUENCE), tables, sampled_rows, np.array(sampled_at, np.int32))


def _check(row: Row, count: int, bounds: Bounds) -> None:
    name, table, end = row.request_id, row.block_table, row.position + count
    if not count or row.position < 0 or end > bounds.context_tokens:
        raise ValueError(f"{name}: positions {row.position} to {end} are not within 0 to {bounds.context_tokens}")
    if min(row.token_ids) < 0 or max(row.token_ids) >= bounds.vocab_size:
        raise ValueError(f"{name}: a token id is not below the vocabulary's {bounds.vocab_size}")
    if len(table) * bounds.block_size < end:
        raise ValueError(f"{name}: {len(table)} blocks of {bounds.block_size} do not hold {end} tokens")
    # a decode step looks at the block it writes only: those before were looked at when they were
    entered = table if count > 1 else (table[row.position // bounds.block_size],)
    if min(entered) < 0 or max(entered) >= bounds.num_blocks:
        raise ValueError(f"{name}: a block id is not below the pool's {bounds.num_blocks}")
