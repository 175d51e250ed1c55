"""The schemas of ``Gemma2Config`` and ``Gemma3TextConfig``."""

from msgspec.structs import replace

from dataplane.contracts.model_config.config import ModelConfig
from dataplane.contracts.model_config.decoder import (
    MAX_LAYERS,
    Family,
    Shapes,
    decoder_tensors,
    read_decoder,
    read_sliding_layers,
    read_window,
    rotary_buffers,
)
from dataplane.contracts.model_config.fields import Fields
from dataplane.contracts.model_config.rotary import with_layered_rope, with_rope

_NORMS = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
_FIXED = {
    "hidden_activation": ("gelu_pytorch_tanh",),
    "hidden_act": ("gelu_pytorch_tanh",),
    "use_bidirectional_attention": (False, None),
    "mlp_bias": (False,),
}
_SOFTCAPS = (1e-3, 1e6)
_HARMLESS = ("cache_implementation", "_sliding_window_pattern")


def _read_gemma2(fields: Fields) -> ModelConfig:
    config = read_decoder(fields, "gemma2", context_tokens=8192, head_dim=256, tied_embeddings=True)
    config = replace(
        with_rope(fields, config),
        attention_softcap=fields.optional_number("attn_logit_softcapping", *_SOFTCAPS, default=50.0),
        logit_softcap=fields.optional_number("final_logit_softcapping", *_SOFTCAPS, default=30.0),
    )
    return _gemma(fields, config, every=2)


def _read_gemma3(fields: Fields) -> ModelConfig:
    config = read_decoder(fields, "gemma3_text", context_tokens=131_072, head_dim=256, tied_embeddings=True)
    config = replace(
        with_layered_rope(fields, config),
        logit_softcap=fields.optional_number("final_logit_softcapping", *_SOFTCAPS),
    )
    return _gemma(fields, config, every=fields.integer("sliding_window_pattern", 1, MAX_LAYERS, default=6))


def _gemma(fields: Fields, config: ModelConfig, *, every: int) -> ModelConfig:
    """What both have; without a list of them, every so many layers one sees everything."""
    layers = read_sliding_layers(fields, config.num_layers)
    if layers is None:
        layers = tuple(layer for layer in range(config.num_layers) if (layer + 1) % every)
    window = read_window(fields, default=4096)
    if layers and window is None:
        fields.refuse("sliding_window", "it has sliding layers, and there is no window")
    return replace(
        config,
        attention_bias=fields.boolean("attention_bias", default=False),
        attention_scale=fields.integer("query_pre_attn_scalar", 1, 1 << 20, default=256) ** -0.5,
        sliding_window=window,
        sliding_layers=layers,
    )


def _tensors(config: ModelConfig) -> Shapes:
    return decoder_tensors(config, _NORMS)


GEMMA_2 = Family(
    "gemma2",
    "Gemma2ForCausalLM",
    _read_gemma2,
    fixed=_FIXED,
    harmless=_HARMLESS,
    tensors=_tensors,
    ignored=rotary_buffers,
)
GEMMA_3 = Family(
    "gemma3_text",
    "Gemma3ForCausalLM",
    _read_gemma3,
    # transformers reads this one, and then computes without it
    fixed={**_FIXED, "attn_logit_softcapping": (None,)},
    harmless=_HARMLESS,
    tensors=_tensors,
    ignored=rotary_buffers,
)
