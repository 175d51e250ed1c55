"""Projections that are computed in one: queries, keys and values; a gate and what it opens."""

from collections.abc import Callable

import torch
from torch import Tensor

from dataplane.contracts.model_config import ModelConfig
from dataplane.kernels.panels import interleave_gate
from dataplane.kernels.rotary import interleave_pairs

Read = Callable[[str], Tensor]
"""Returns a checkpoint's tensor by name."""


def queries_keys_values(config: ModelConfig, read: Read, source: str, kind: str) -> Tensor:
    """Return the ``kind`` (weight or bias) of a layer's projections, rotary pairs side by side."""
    query, key, value = (read(f"{source}.self_attn.{part}_proj.{kind}") for part in "qkv")
    return torch.cat((interleave_pairs(query, config.head_dim), interleave_pairs(key, config.head_dim), value))


def gate_and_opened(read: Read, source: str, kind: str) -> Tensor:
    """Return the ``kind`` (weight or bias) of a layer's MLP's two projections of its input."""
    return interleave_gate(read(f"{source}.mlp.gate_proj.{kind}"), read(f"{source}.mlp.up_proj.{kind}"))


def decoder_widths(config: ModelConfig) -> dict[str, int]:
    """Return the widths of the registers that every decoder has; ``inner`` is filled up to whole lanes of 8."""
    query, key_value = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    return {
        "rows": config.hidden_size,
        "heads": query + 2 * key_value,
        "attended": query,
        "inner": config.intermediate_size + -config.intermediate_size % 8,
        "sampled": config.hidden_size,
        "logits": config.vocab_size,
    }


def head_matrix(config: ModelConfig) -> str:
    """Return the name of the matrix that makes logits."""
    return "embedding" if config.tied_embeddings else "head"
