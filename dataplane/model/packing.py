"""Which tensors the runtime format holds, and how they are made of a Hugging Face checkpoint's.

Query, key and value become one matrix, gate and up another; rotary pairs become neighbours; matrices are cast to the
runtime dtype. Norms and biases stay fp32: they are small, and activations are fp32.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from dataplane.contracts.model_config import ModelConfig
from dataplane.kernels.linear import MAX_HALF
from dataplane.kernels.rotary import interleave_pairs

LAYOUT_VERSION = 1
"""Part of a runtime folder's name: raise it with any change of names, order or meaning of the tensors."""

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


class PackingError(ValueError):
    """Weights that the runtime dtype cannot hold; the message says which and what to do."""


def packed_tensors(config: ModelConfig, dtype: str, read: Callable[[str], Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yield the runtime tensors by name in the order of their use; ``read`` returns a checkpoint tensor.

    Raises:
        PackingError: a weight too large for a 16-bit dtype.
    """
    yield "embedding.weight", _cast("model.embed_tokens.weight", read("model.embed_tokens.weight"), dtype)
    for layer in range(config.num_layers):
        yield from _packed_layer(config, dtype, read, f"model.layers.{layer}", f"layers.{layer}")
    yield "norm", read("model.norm.weight").float()
    if not config.tied_embeddings:
        yield "head.weight", _cast("lm_head.weight", read("lm_head.weight"), dtype)


def _packed_layer(
    config: ModelConfig, dtype: str, read: Callable[[str], Tensor], source: str, target: str
) -> Iterator[tuple[str, Tensor]]:
    def rotary(tensor: Tensor) -> Tensor:
        return interleave_pairs(tensor, config.head_dim)

    def qkv(kind: str) -> Tensor:
        query, key, value = (read(f"{source}.self_attn.{part}_proj.{kind}") for part in "qkv")
        return torch.cat((rotary(query), rotary(key), value))

    def gate_up(kind: str) -> Tensor:
        return torch.cat([read(f"{source}.mlp.{part}_proj.{kind}") for part in ("gate", "up")])

    def attention_out(kind: str) -> Tensor:
        return read(f"{source}.self_attn.o_proj.{kind}")

    def down(kind: str) -> Tensor:
        return read(f"{source}.mlp.down_proj.{kind}")

    yield f"{target}.attention_norm", read(f"{source}.input_layernorm.weight").float()
    yield from _linear(f"{target}.qkv", qkv, dtype, config.attention_bias)
    yield from _linear(f"{target}.attention_out", attention_out, dtype, config.attention_bias)
    yield f"{target}.mlp_norm", read(f"{source}.post_attention_layernorm.weight").float()
    yield from _linear(f"{target}.gate_up", gate_up, dtype, config.mlp_bias)
    yield from _linear(f"{target}.down", down, dtype, config.mlp_bias)


def _linear(name: str, make: Callable[[str], Tensor], dtype: str, biased: bool) -> Iterator[tuple[str, Tensor]]:
    yield f"{name}.weight", _cast(name, make("weight"), dtype)
    if biased:
        yield f"{name}.bias", make("bias").float()


def _cast(name: str, tensor: Tensor, dtype: str) -> Tensor:
    # bf16 reaches further than fp16, but the CPU kernel holds both as fp16
    if dtype != "fp32" and tensor.abs().amax().item() > MAX_HALF:
        raise PackingError(f"{name} holds values beyond {MAX_HALF:.0f}, too large for {dtype} on CPU; run it as fp32")
    return tensor.to(DTYPES[dtype])
