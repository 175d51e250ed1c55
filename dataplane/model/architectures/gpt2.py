"""GPT-2 (Radford et al., 2019): learned positions, LayerNorms, biases everywhere, an MLP without a gate.

Its checkpoints hold matrices as [inputs, outputs], and those of queries, keys and values in one.
"""

import math
from collections.abc import Iterator

from torch import Tensor

from dataplane.contracts.model_config import ModelConfig
from dataplane.kernels.panels import whole_lanes
from dataplane.model.architectures.projections import Read, decoder_widths, head_matrix
from dataplane.model.program import (
    Activation,
    Attention,
    Cache,
    Embed,
    Linear,
    Norm,
    NormKind,
    Operation,
    Program,
    Select,
)

_NORMS = {"attention_norm": "ln_1", "mlp_norm": "ln_2"}


def program(config: ModelConfig) -> Program:
    """Return the forward pass of ``config``."""
    operations: list[Operation] = [Embed("rows", "embedding", positions="positions")]
    for layer in range(config.num_layers):
        operations += _layer(config, layer)
    operations += [
        Select("rows", "sampled"),
        Linear("sampled", "logits", head_matrix(config), norm=_norm(config, "norm")),
    ]
    return Program(
        tuple(operations), decoder_widths(config), config.num_heads, config.num_kv_heads, config.head_dim
    )  # fmt: skip


def _layer(config: ModelConfig, layer: int) -> list[Operation]:
    name = f"layers.{layer}"
    return [
        Linear("rows", "heads", f"{name}.qkv", f"{name}.qkv.bias", _norm(config, f"{name}.attention_norm")),
        Cache("heads", layer, None),
        Attention("heads", "attended", layer, 1 / math.sqrt(config.head_dim)),
        Linear("attended", "rows", f"{name}.attention_out", f"{name}.attention_out.bias", accumulate=True),
        Linear(
            "rows", "inner", f"{name}.up", f"{name}.up.bias", _norm(config, f"{name}.mlp_norm"), Activation.GELU_TANH
        ),
        Linear("inner", "rows", f"{name}.down", f"{name}.down.bias", accumulate=True),
    ]


def _norm(config: ModelConfig, name: str) -> Norm:
    return Norm(name, config.rms_norm_eps, NormKind.LAYER, bias=f"{name}.shift")


def tensors(config: ModelConfig, read: Read) -> Iterator[tuple[str, Tensor]]:
    """Yield the program's matrices [outputs, inputs] and vectors by name."""
    yield "embedding", read("transformer.wte.weight")
    yield "positions", read("transformer.wpe.weight")
    for layer in range(config.num_layers):
        yield from _layer_tensors(read, f"transformer.h.{layer}", f"layers.{layer}")
    yield from _norm_tensors(read, "transformer.ln_f", "norm")
    if not config.tied_embeddings:
        yield "head", read("lm_head.weight")


def _layer_tensors(read: Read, source: str, target: str) -> Iterator[tuple[str, Tensor]]:
    for ours, theirs in _NORMS.items():
        yield from _norm_tensors(read, f"{source}.{theirs}", f"{target}.{ours}")
    yield f"{target}.qkv", _turned(read(f"{source}.attn.c_attn.weight"))
    yield f"{target}.qkv.bias", read(f"{source}.attn.c_attn.bias")
    yield f"{target}.attention_out", _turned(read(f"{source}.attn.c_proj.weight"))
    yield f"{target}.attention_out.bias", read(f"{source}.attn.c_proj.bias")
    # channels that fill up the last eight have zeros on both sides
    yield f"{target}.up", _turned(whole_lanes(read(f"{source}.mlp.c_fc.weight")))
    yield f"{target}.up.bias", read(f"{source}.mlp.c_fc.bias")
    yield f"{target}.down", whole_lanes(_turned(read(f"{source}.mlp.c_proj.weight")))
    yield f"{target}.down.bias", read(f"{source}.mlp.c_proj.bias")


def _norm_tensors(read: Read, source: str, target: str) -> Iterator[tuple[str, Tensor]]:
    yield target, read(f"{source}.weight")
    yield f"{target}.shift", read(f"{source}.bias")


def _turned(matrix: Tensor) -> Tensor:
    return matrix.T.contiguous()
