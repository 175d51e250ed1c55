"""Attention over the paged KV pool: gather a group's blocks, then one fused softmax-attention call.

Rows with the same number of queries and of (padded) blocks form a group; a decode row is a row with one query. The
padded length of a row depends on that row alone, so its neighbours cannot change its result.

A layer's pool is [num_blocks, block_size, 2, kv_heads, head_dim]: a block is one run of memory, keys beside values.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name for it
from torch import Tensor


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """Rows computed together, whose queries are ``start`` to ``start + rows * queries`` of the step.

    Attributes:
        start: index of the group's first query in the step.
        rows: rows in the group.
        queries: queries of each row.
        block_ids: [rows * blocks] the rows' block tables, all of one length. Padding repeats a block of the same row.
        mask: [rows, 1, queries, blocks * block_size] 0 where a query may look, -inf elsewhere.
    """

    start: int
    rows: int
    queries: int
    block_ids: Tensor
    mask: Tensor


def padded_blocks(blocks: int, queries: int) -> int:
    """Return the length to which a table of ``blocks`` is padded.

    A decode row's goes to a power of two, so that a step has few groups; a longer row's is not padded.
    """
    return 1 << (blocks - 1).bit_length() if queries == 1 else blocks


def causal_mask(positions: Tensor, context: int) -> Tensor:
    """Return the mask [rows, 1, queries, context] for queries at ``positions`` [rows, queries]."""
    visible = torch.arange(context) <= positions[:, :, None]
    return torch.zeros(visible.shape).masked_fill_(~visible, -math.inf)[:, None]


def paged_attention(query: Tensor, pool: Tensor, groups: Sequence[AttentionGroup]) -> Tensor:
    """Attend with ``query`` [n, heads, head_dim] (fp32) to a layer's ``pool``; return [n, heads * head_dim].

    Everything in the groups' blocks must be finite, also beyond a row's last position: the mask weighs it with zero,
    and zero times NaN is NaN.
    """
    out = torch.empty(query.shape[0], query.shape[1] * query.shape[2])
    for group in groups:
        end = group.start + group.rows * group.queries
        queries = query[group.start : end].view(group.rows, group.queries, *query.shape[1:]).transpose(1, 2)
        blocks = pool.index_select(0, group.block_ids)
        keys_values = blocks.float().view(group.rows, -1, *pool.shape[2:]).transpose(1, 3)
        attended = F.scaled_dot_product_attention(
            queries, keys_values[:, :, 0], keys_values[:, :, 1], attn_mask=group.mask, enable_gqa=True
        )
        out[group.start : end] = attended.transpose(1, 2).reshape(group.rows * group.queries, -1)
    return out


def reference_paged_attention(query: Tensor, pool: Tensor, block_table: Sequence[int], position: int) -> Tensor:
    """Attend with one row's ``query`` [queries, heads, head_dim], whose first stands at ``position``.

    The textbook formula in fp64, over exactly the positions that each query may see.
    """
    queries, heads, head_dim = query.shape
    context = pool[list(block_table)].double().flatten(0, 1)
    out = torch.empty(queries, heads * head_dim)
    for index in range(queries):
        keys, values = context[: position + index + 1].unbind(1)
        group = heads // keys.shape[1]
        keys, values = keys.repeat_interleave(group, dim=1), values.repeat_interleave(group, dim=1)
        scores = torch.einsum("hd,thd->ht", query[index].double(), keys) / math.sqrt(head_dim)
        out[index] = torch.einsum("ht,thd->hd", scores.softmax(-1), values).flatten()
    return out
