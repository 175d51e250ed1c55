"""Gemma 2 and 3 (Gemma Team, 2024 and 2025).

Each half of a layer is normalised before and after; norms scale by 1 + weight, embeddings by the root of their width.
Layers that see a window of the context alternate with layers that see all of it. Gemma 2 bounds scores and logits;
Gemma 3 instead normalises each head of queries and keys, and turns the positions of sliding layers by a base of their
own.
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
from dataplane.model.program import (
    Activation,
    Attention,
    Cache,
    Embed,
    Linear,
    Norm,
    Normalise,
    Operation,
    Program,
    Select,
)

_NORMS = {
    "attention_norm": "input_layernorm",
    "attended_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "down_norm": "post_feedforward_layernorm",
}


def program(config: ModelConfig) -> Program:
    """Return the forward pass of ``config``."""
    operations: list[Operation] = [
        Embed("rows", "embedding", scale=math.sqrt(config.hidden_size)),
        angles("angles", config.head_dim, config.rope_theta, config.rope_scaling),
    ]
    widths = {**decoder_widths(config), "angles": config.head_dim, "branch": config.hidden_size}
    if config.sliding_rope_theta is not None:
        operations.append(angles("sliding_angles", config.head_dim, config.sliding_rope_theta))
        widths["sliding_angles"] = config.head_dim
    for layer in range(config.num_layers):
        operations += _layer(config, layer)
    operations += [
        Select("rows", "sampled"),
        Linear(
            "sampled", "logits", head_matrix(config), norm=Norm("norm", config.rms_norm_eps),
            softcap=config.logit_softcap or 0.0,
        ),
    ]  # fmt: skip
    return Program(tuple(operations), widths, config.num_heads, config.num_kv_heads, config.head_dim)


def _layer(config: ModelConfig, layer: int) -> list[Operation]:
    name = f"layers.{layer}"
    own_base = config.sliding_rope_theta is not None and layer in config.sliding_layers

    def norm(part: str, there: bool = True) -> Norm | None:
        return Norm(f"{name}.{part}_norm", config.rms_norm_eps) if there else None

    def bias(part: str) -> str | None:
        return f"{name}.{part}.bias" if config.attention_bias else None

    return [
        Linear("rows", "heads", f"{name}.qkv", bias("qkv"), norm("attention")),
        Cache(
            "heads", layer, "sliding_angles" if own_base else "angles",
            norm("query", config.head_norms), norm("key", config.head_norms),
        ),
        Attention(
            "heads", "attended", layer, config.attention_scale or 1 / math.sqrt(config.head_dim),
            config.window(layer), config.attention_softcap or 0.0,
        ),
        Linear("attended", "branch", f"{name}.attention_out", bias("attention_out")),
        Normalise("branch", "rows", Norm(f"{name}.attended_norm", config.rms_norm_eps), accumulate=True),
        Linear("rows", "inner", f"{name}.gate_up", None, norm("mlp"), Activation.GELU_TANH, gated=True),
        Linear("inner", "branch", f"{name}.down"),
        Normalise("branch", "rows", Norm(f"{name}.down_norm", config.rms_norm_eps), accumulate=True),
    ]  # fmt: skip


def tensors(config: ModelConfig, read: Read) -> Iterator[tuple[str, Tensor]]:
    """Yield the program's matrices [outputs, inputs] and vectors by name."""
    yield "embedding", read("model.embed_tokens.weight")
    for layer in range(config.num_layers):
        yield from _layer_tensors(config, read, f"model.layers.{layer}", f"layers.{layer}")
    yield "norm", 1 + read("model.norm.weight").float()
    if not config.tied_embeddings:
        yield "head", read("lm_head.weight")


def _layer_tensors(config: ModelConfig, read: Read, source: str, target: str) -> Iterator[tuple[str, Tensor]]:
    for ours, theirs in _NORMS.items():
        yield f"{target}.{ours}", 1 + read(f"{source}.{theirs}.weight").float()
    if config.head_norms:
        for part in ("query", "key"):
            weight = 1 + read(f"{source}.self_attn.{part[0]}_norm.weight").float()
            yield f"{target}.{part}_norm", interleave_pairs(weight, config.head_dim)
    yield f"{target}.qkv", queries_keys_values(config, read, source, "weight")
    yield f"{target}.attention_out", read(f"{source}.self_attn.o_proj.weight")
    if config.attention_bias:
        yield f"{target}.qkv.bias", queries_keys_values(config, read, source, "bias")
        yield f"{target}.attention_out.bias", read(f"{source}.self_attn.o_proj.bias")
    yield f"{target}.gate_up", gate_and_opened(read, source, "weight")
    yield f"{target}.down", whole_lanes(read(f"{source}.mlp.down_proj.weight"))
