"""Llama (Touvron et al., 2023) and what computes the same, with grouped queries (Ainslie et al., 2023)."""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from dataplane.contracts.model_config import ModelConfig
from dataplane.kernels.panels import interleave_gate, whole_lanes
from dataplane.kernels.rotary import frequencies, interleave_pairs
from dataplane.model.program import (
    Activation,
    Angles,
    Attention,
    Cache,
    Embed,
    Linear,
    Norm,
    Operation,
    Program,
    Select,
)


def program(config: ModelConfig) -> Program:
    """Return the forward pass of ``config``."""
    operations: list[Operation] = [
        Embed("rows", "embedding"),
        Angles("angles", frequencies(config.head_dim, config.rope_theta)),
    ]
    for layer in range(config.num_layers):
        operations += _layer(config, layer)
    operations += [
        Select("rows", "sampled"),
        Linear("sampled", "logits", _head(config), norm=Norm("norm", config.rms_norm_eps)),
    ]
    query, key_value = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    widths = {
        "rows": config.hidden_size,
        "angles": config.head_dim,
        "heads": query + 2 * key_value,
        "attended": query,
        "inner": config.intermediate_size + -config.intermediate_size % 8,
        "sampled": config.hidden_size,
        "logits": config.vocab_size,
    }
    return Program(tuple(operations), widths, config.num_heads, config.num_kv_heads, config.head_dim)


def _layer(config: ModelConfig, layer: int) -> list[Operation]:
    name, epsilon = f"layers.{layer}", config.rms_norm_eps

    def bias(part: str, there: bool) -> str | None:
        return f"{name}.{part}.bias" if there else None

    return [
        Linear(
            "rows", "heads", f"{name}.qkv", bias("qkv", config.attention_bias), Norm(f"{name}.attention_norm", epsilon)
        ),
        Cache("heads", layer, "angles"),
        Attention("heads", "attended", layer, scale=1 / math.sqrt(config.head_dim)),
        Linear(
            "attended", "rows", f"{name}.attention_out", bias("attention_out", config.attention_bias), accumulate=True
        ),
        Linear(
            "rows", "inner", f"{name}.gate_up", bias("gate_up", config.mlp_bias), Norm(f"{name}.mlp_norm", epsilon),
            Activation.SILU, gated=True,
        ),
        Linear("inner", "rows", f"{name}.down", bias("down", config.mlp_bias), accumulate=True),
    ]  # fmt: skip


def _head(config: ModelConfig) -> str:
    return "embedding" if config.tied_embeddings else "head"


def tensors(config: ModelConfig, read: Callable[[str], Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yield the program's matrices [outputs, inputs] and vectors by name in the order of their use."""
    yield "embedding", read("model.embed_tokens.weight")
    for layer in range(config.num_layers):
        yield from _layer_tensors(config, read, f"model.layers.{layer}", f"layers.{layer}")
    yield "norm", read("model.norm.weight")
    if not config.tied_embeddings:
        yield "head", read("lm_head.weight")


def _layer_tensors(
    config: ModelConfig, read: Callable[[str], Tensor], source: str, target: str
) -> Iterator[tuple[str, Tensor]]:
    def qkv(kind: str) -> Tensor:
        query, key, value = (read(f"{source}.self_attn.{part}_proj.{kind}") for part in "qkv")
        return torch.cat((interleave_pairs(query, config.head_dim), interleave_pairs(key, config.head_dim), value))

    def gate_up(kind: str) -> Tensor:
        return interleave_gate(read(f"{source}.mlp.gate_proj.{kind}"), read(f"{source}.mlp.up_proj.{kind}"))

    yield f"{target}.attention_norm", read(f"{source}.input_layernorm.weight")
    yield f"{target}.qkv", qkv("weight")
    if config.attention_bias:
        yield f"{target}.qkv.bias", qkv("bias")
    yield f"{target}.attention_out", read(f"{source}.self_attn.o_proj.weight")
    if config.attention_bias:
        yield f"{target}.attention_out.bias", read(f"{source}.self_attn.o_proj.bias")
    yield f"{target}.mlp_norm", read(f"{source}.post_attention_layernorm.weight")
    yield f"{target}.gate_up", gate_up("weight")
    if config.mlp_bias:
        yield f"{target}.gate_up.bias", gate_up("bias")
    yield f"{target}.down", whole_lanes(read(f"{source}.mlp.down_proj.weight"))
    if config.mlp_bias:
        yield f"{target}.down.bias", read(f"{source}.mlp.down_proj.bias")
