"""Folders of every family that ask for more than is computed, or hold other tensors than their config says."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file

from dataplane.inspect.names import CONFIG, WEIGHTS
from tests.hostile.case import Case, Change, cases, change
from tests.tiny_models import make_tiny, write_safetensors

Tensors = dict[str, npt.NDArray[np.float32]]


def other(model_type: str, then: Change = lambda _model: None, **fields: object) -> Change:
    """Replace the model by one of another family, and do something to that."""

    def apply(model: Path) -> None:
        make_tiny(model, model_type, **fields)
        then(model)

    return apply


def renamed_tensors(rename: Callable[[str], str], added: Mapping[str, Any]) -> Change:
    """Give the tensors other names, and others beside them."""

    def apply(model: Path) -> None:
        weights: Tensors = {rename(name): tensor for name, tensor in load_file(model / WEIGHTS).items()}
        write_safetensors(model / WEIGHTS, {**weights, **added})

    return apply


def with_tensor(name: str, *shape: int) -> Change:
    return renamed_tensors(str, {name: np.ones(shape, dtype=np.float32)})


def without_tensor(lost: str) -> Change:
    def apply(model: Path) -> None:
        weights = load_file(model / WEIGHTS)
        del weights[lost]
        write_safetensors(model / WEIGHTS, weights)

    return apply


_LAYER = "model.layers.1"
_GPT_2 = "transformer.h.1"

FAMILIES: dict[str, tuple[Change, str | None]] = {
    "Mistral that says it is a Llama": (other("mistral", change(CONFIG, model_type="llama")), "architectures"),
    "Mistral with biases": (other("mistral", with_tensor(f"{_LAYER}.self_attn.q_proj.bias", 32)), "does not ask for"),
    "Mistral of an empty window": (other("mistral", change(CONFIG, sliding_window=0)), "sliding_window"),
    "Qwen2 without biases": (other("qwen2", without_tensor(f"{_LAYER}.self_attn.q_proj.bias")), "lack"),
    "Qwen2 of a million window layers": (other("qwen2", change(CONFIG, max_window_layers=10**6)), "max_window_layers"),
    "Qwen2 of another modality": (other("qwen2", change(CONFIG, vision_config={})), "vision_config"),
    "Qwen2 of layers in a text": (other("qwen2", change(CONFIG, layer_types="full_attention")), "layer_types"),
    "Qwen3 without its norms of heads": (other("qwen3", without_tensor(f"{_LAYER}.self_attn.q_norm.weight")), "lack"),
    "Qwen3 of experts": (other("qwen3", change(CONFIG, num_experts=128)), "num_experts"),
    "Qwen3 of heads that are not shared": (other("qwen3", change(CONFIG, num_key_value_heads=3)), "does not divide"),
    "Gemma 2 of a million layers by name": (
        other("gemma2", change(CONFIG, layer_types=["sliding_attention"] * 10_000)), "layer_types",
    ),
    "Gemma 2 of unbounded bounds": (other("gemma2", change(CONFIG, final_logit_softcapping=1e308)), "softcapping"),
    "Gemma 2 that lacks a norm": (
        other("gemma2", without_tensor(f"{_LAYER}.post_feedforward_layernorm.weight")), "lack",
    ),
    "Gemma 3 with eyes": (other("gemma3_text", change(CONFIG, model_type="gemma3")), "model_type"),
    "Gemma 3 of a layer that is both": (
        other("gemma3_text", change(CONFIG, rope_parameters={"rope_type": "yarn"})), "rope_parameters",
    ),
    "GPT-2 with a mask of another size": (other("gpt2", with_tensor(f"{_GPT_2}.attn.bias", 1, 1, 9, 9)), "ask for"),
    "GPT-2 with a tensor twice": (
        other("gpt2", with_tensor("h.1.ln_1.bias", 32)), "two tensors have one name",
    ),
    "GPT-2 of positions that are not there": (other("gpt2", change(CONFIG, n_positions=10**6)), "has the shape"),
    "GPT-2 of five heads": (other("gpt2", change(CONFIG, n_head=5)), "n_embd"),
    "GPT-2 that crosses attention": (other("gpt2", change(CONFIG, add_cross_attention=True)), "add_cross_attention"),
}  # fmt: skip

CASES: list[Case] = cases("architecture", FAMILIES)
