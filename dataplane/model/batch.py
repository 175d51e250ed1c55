"""One step as tensors: where each token stands, where its keys go, and which rows attend together."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dataplane.engine.runner import Row
from dataplane.kernels.paged_attention import AttentionGroup, causal_mask, padded_blocks


@dataclass(frozen=True, slots=True)
class StepBatch:
    """The tokens of a step, those of one attention group side by side.

    Attributes:
        token_ids, positions, slots: [n] the token, its absolute position, its slot in the KV pool.
        cleared_blocks: blocks that a row enters and does not fill.
        groups: which tokens attend to what.
        row_ends: by row, the index into the n tokens of its last; those before it stand side by side.
        sampled_rows: indices into the rows of the step of those that draw a token.
        sampled_tokens: [len(sampled_rows)] index into the n tokens of each one's last.
    """

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    cleared_blocks: Tensor
    groups: list[AttentionGroup]
    row_ends: list[int]
    sampled_rows: list[int]
    sampled_tokens: Tensor


def build(rows: Sequence[Row], block_size: int, num_blocks: int, vocab_size: int, context_tokens: int) -> StepBatch:
    """Lay out the rows of a step.

    Raises:
        ValueError: a row that does not fit the model or the pool; the message names the request.
    """
    by_shape: dict[tuple[int, int], list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        _check(row, block_size, num_blocks, vocab_size, context_tokens)
        queries = len(row.token_ids)
        by_shape[queries, padded_blocks(_num_blocks(row, block_size), queries)].append(index)

    groups: list[AttentionGroup] = []
    order: list[int] = []
    last_token: dict[int, int] = {}
    start = 0
    for (queries, blocks), members in by_shape.items():
        groups.append(_group(start, queries, blocks, [rows[index] for index in members], block_size))
        for index in members:
            start += queries
            last_token[index] = start - 1
        order += members

    ordered = [rows[index] for index in order]
    positions = [row.position + offset for row in ordered for offset in range(len(row.token_ids))]
    tables = [row.block_table for row in ordered for _ in row.token_ids]
    sampled_rows = [index for index, row in enumerate(rows) if row.sample]
    return StepBatch(
        token_ids=_indices(token_id for row in ordered for token_id in row.token_ids),
        positions=_indices(positions),
        slots=_indices(
            table[position // block_size] * block_size + position % block_size
            for table, position in zip(tables, positions, strict=True)
        ),
        cleared_blocks=_indices(block for row in ordered for block in _entered_part_filled(row, block_size)),
        groups=groups,
        row_ends=[last_token[index] for index in range(len(rows))],
        sampled_rows=sampled_rows,
        sampled_tokens=_indices(last_token[index] for index in sampled_rows),
    )


def _check(row: Row, block_size: int, num_blocks: int, vocab_size: int, context_tokens: int) -> None:
    end = row.position + len(row.token_ids)
    if not row.token_ids or row.position < 0 or end > context_tokens:
        raise ValueError(f"{row.request_id}: positions {row.position} to {end} are not within 0 to {context_tokens}")
    if min(row.token_ids) < 0 or max(row.token_ids) >= vocab_size:
        raise ValueError(f"{row.request_id}: a token id is not below the vocabulary's {vocab_size}")
    table = row.block_table[: _num_blocks(row, block_size)]
    if len(table) * block_size < end:
        raise ValueError(f"{row.request_id}: {len(table)} blocks of {block_size} do not hold {end} tokens")
    if min(table) < 0 or max(table) >= num_blocks:
        raise ValueError(f"{row.request_id}: a block id is not below the pool's {num_blocks}")


def _num_blocks(row: Row, block_size: int) -> int:
    return -(-(row.position + len(row.token_ids)) // block_size)


def _entered_part_filled(row: Row, block_size: int) -> list[int]:
    """The row's last block, if the row enters it now and leaves part of it unwritten."""
    end = row.position + len(row.token_ids)
    first = end - end % block_size
    return [row.block_table[first // block_size]] if end % block_size and row.position <= first else []


def _group(start: int, queries: int, blocks: int, rows: Sequence[Row], block_size: int) -> AttentionGroup:
    block_ids: list[int] = []
    for row in rows:
        table = row.block_table[: _num_blocks(row, block_size)]
        block_ids += table
        block_ids += [table[0]] * (blocks - len(table))
    positions = _indices(row.position for row in rows)[:, None] + torch.arange(queries)
    return AttentionGroup(start, len(rows), queries, _indices(block_ids), causal_mask(positions, blocks * block_size))


def _indices(values: Iterable[int]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.int64)
