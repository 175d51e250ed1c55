"""The schemas of ``LlamaConfig`` and ``MistralConfig``."""

from msgspec.structs import replace

from dataplane.contracts.model_config.config import ModelConfig
from dataplane.contracts.model_config.decoder import (
    Family,
    decoder_tensors,
    read_decoder,
    read_window,
    rotary_buffers,
)
from dataplane.contracts.model_config.fields import Fields
from dataplane.contracts.model_config.rotary import with_rope


def _read_llama(fields: Fields) -> ModelConfig:
    config = read_decoder(fields, "llama", context_tokens=2048, one_kv_head_each=True)
    return replace(
        with_rope(fields, config),
        attention_bias=fields.boolean("attention_bias", default=False),
        mlp_bias=fields.boolean("mlp_bias", default=False),
    )


def _read_mistral(fields: Fields) -> ModelConfig:
    config = read_decoder(fields, "mistral", context_tokens=4096 * 32)
    window = read_window(fields, default=4096)
    layers = () if window is None else tuple(range(config.num_layers))
    return replace(with_rope(fields, config), sliding_window=window, sliding_layers=layers)


LLAMA = Family(
    "llama",
    "LlamaForCausalLM",
    _read_llama,
    fixed={"hidden_act": ("silu",), "pretraining_tp": (1,), "rope_interleaved": (False,), "sliding_window": (None,)},
    harmless={"is_llama_config"},
    tensors=decoder_tensors,
    ignored=rotary_buffers,
)
MISTRAL = Family(
    "mistral",
    "MistralForCausalLM",
    _read_mistral,
    fixed={"hidden_act": ("silu",), "attention_bias": (False,), "mlp_bias": (False,)},
    harmless=(),
    tensors=decoder_tensors,
    ignored=rotary_buffers,
)
