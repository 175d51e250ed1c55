"""Llama (Touvron et al., 2023), and what differs from it in little: Mistral, Qwen2 and Qwen3.

Grouped queries (Ainslie et al., 2023) in all. Mistral (Jiang et al., 2023) and Qwen have layers that see a window of
the context; Qwen2 (Yang et al., 2024) has biases on queries, keys and values; Qwen3 (Yang et al., 2025) normalises
each head of queries and keys.
"""

import math
from collections.abc import Iterator

from torch import Tensor

from dataplane.contracts.model_config import ModelConfig
from dataplane.kernels.panels import whole_lanes
from dataplane.kernels.rotary import interleave_pairs
from dataplane.model.architectures.positions import angles
from dataplane.model.architectures.projections import (
    Read,
    decoder_widths,
    gate_and_opened,
    head_matrix,
    queries_keys_values,
)
from dataplane.model.program import Activation, Attention, Cache, Embed, Linear, Norm, Operation, Program, Select


def program(config: ModelConfig) -> Program:
    """Return the forward pass of ``config``."""
    operations: list[Operation] = [
        Embed("rows", "embedding"),
        angles("angles", config.head_dim, config.rope_theta, config.rope_scaling),
    ]
    for layer in range(config.num_layers):
        operations += _layer(config, layer)
    operations += [
        Select("rows", "sampled"),
        Linear("sampled", "logits", head_matrix(config), norm=Norm("norm", config.rms_norm_eps)),
    ]
    widths = {**decoder_widths(config), "angles": config.head_dim}
    return Program(tuple(operations), widths, config.num_heads, config.num_kv_heads, config.head_dim)


def _layer(config: ModelConfig, layer: int) -> list[Operation]:
    name = f"layers.{layer}"

    def norm(part: str, there: bool = True) -> Norm | None:
        return Norm(f"{name}.{part}_norm", config.rms_norm_eps) if there else None

    def bias(part: str, there: bool) -> str | None:
        return f"{name}.{part}.bias" if there else None

    return [
        Linear("rows", "heads", f"{name}.qkv", bias("qkv", config.attention_bias), norm("attention")),
        Cache("heads", layer, "angles", norm("query", config.head_norms), norm("key", config.head_norms)),
        Attention("heads", "attended", layer, 1 / math.sqrt(config.head_dim), config.window(layer)),
        Linear(
            "attended", "rows", f"{name}.attention_out", bias("attention_out", config.attention_out_bias),
            accumulate=True,
        ),
        Linear(
            "rows", "inner", f"{name}.gate_up", bias("gate_up", config.mlp_bias), norm("mlp"), Activation.SILU,
            gated=True,
        ),
        Linear("inner", "rows", f"{name}.down", bias("down", config.mlp_bias), accumulate=True),
    ]  # fmt: skip


def tensors(config: ModelConfig, read: Read) -> Iterator[tuple[str, Tensor]]:
    """Yield the program's matrices [outputs, inputs] and vectors by name in the order of their use."""
    yield "embedding", read("model.embed_tokens.weight")
    for layer in range(config.num_layers):
        yield from _layer_tensors(config, read, f"model.layers.{layer}", f"layers.{layer}")
    yield "norm", read("model.norm.weight")
    if not config.tied_embeddings:
        yield "head", read("lm_head.weight")


def _layer_tensors(config: ModelConfig, read: Read, source: str, target: str) -> Iterator[tuple[str, Tensor]]:
    yield f"{target}.attention_norm", read(f"{source}.input_layernorm.weight")
    yield f"{target}.qkv", queries_keys_values(config, read, source, "weight")
    if config.attention_bias:
        yield f"{target}.qkv.bias", queries_keys_values(config, read, source, "bias")
    if config.head_norms:
        for part in ("query", "key"):
            weight = read(f"{source}.self_attn.{part[0]}_norm.weight")
            yield f"{target}.{part}_norm", interleave_pairs(weight, config.head_dim)
    yield f"{target}.attention_out", read(f"{source}.self_attn.o_proj.weight")
    if config.attention_out_bias:
        yield f"{target}.attention_out.bias", read(f"{source}.self_attn.o_proj.bias")
    yield f"{target}.mlp_norm", read(f"{source}.post_attention_layernorm.weight")
    yield f"{target}.gate_up", gate_and_opened(read, source, "weight")
    if config.mlp_bias:
        yield f"{target}.gate_up.bias", gate_and_opened(read, source, "bias")
    yield f"{target}.down", whole_lanes(read(f"{source}.mlp.down_proj.weight"))
    if config.mlp_bias:
        yield f"{target}.down.bias", read(f"{source}.mlp.down_proj.bias")
