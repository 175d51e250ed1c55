"""The schemas of ``Qwen2Config`` and ``Qwen3Config``."""

from msgspec.structs import replace

from dataplane.contracts.model_config.config import ModelConfig
from dataplane.contracts.model_config.decoder import (
    MAX_LAYERS,
    Family,
    decoder_tensors,
    read_decoder,
    read_sliding_layers,
    read_window,
    rotary_buffers,
)
from dataplane.contracts.model_config.fields import Fields
from dataplane.contracts.model_config.rotary import with_rope


def _read_qwen2(fields: Fields) -> ModelConfig:
    config = read_decoder(fields, "qwen2", context_tokens=32_768)
    return _sliding(fields, replace(with_rope(fields, config), attention_bias=True))


def _read_qwen3(fields: Fields) -> ModelConfig:
    config = read_decoder(fields, "qwen3", context_tokens=32_768, head_dim=128)
    return _sliding(
        fields, replace(with_rope(fields, config), attention_bias=fields.boolean("attention_bias", default=False))
    )


def _sliding(fields: Fields, config: ModelConfig) -> ModelConfig:
    """A window counts only where ``use_sliding_window`` says so.

    Configs without ``layer_types`` give the number of first layers that see everything.
    """
    window = read_window(fields, default=4096)
    full_layers = fields.integer("max_window_layers", 0, MAX_LAYERS, default=28)
    layers = read_sliding_layers(fields, config.num_layers)
    if not fields.boolean("use_sliding_window", default=False):
        if layers:
            fields.refuse("layer_types", "it has sliding layers, and use_sliding_window is not true")
        return config
    if window is None:
        if layers:
            fields.refuse("sliding_window", "layer_types has sliding layers, and there is no window")
        return config
    if layers is None:
        layers = tuple(range(full_layers, config.num_layers))
    return replace(config, sliding_window=window, sliding_layers=layers)


QWEN_2 = Family(
    "qwen2",
    "Qwen2ForCausalLM",
    _read_qwen2,
    fixed={"hidden_act": ("silu",), "use_mrope": (False,)},
    harmless=(),
    tensors=decoder_tensors,
    ignored=rotary_buffers,
)
QWEN_3 = Family(
    "qwen3",
    "Qwen3ForCausalLM",
    _read_qwen3,
    fixed={"hidden_act": ("silu",)},
    harmless=(),
    tensors=decoder_tensors,
    ignored=rotary_buffers,
)
