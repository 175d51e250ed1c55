"""The schema of ``GPT2Config``."""

from dataplane.contracts.model_config.config import ModelConfig
from dataplane.contracts.model_config.decoder import (
    MAX_CONTEXT_TOKENS,
    MAX_HEADS,
    MAX_INNER_WIDTH,
    MAX_LAYERS,
    MAX_VOCAB_SIZE,
    MAX_WIDTH,
    Family,
    Shapes,
)
from dataplane.contracts.model_config.fields import Fields

POSITIONS = "transformer.wpe.weight"
"""Learned positions are added, never multiplied with: they are held in fp32, as vectors are."""


def _read(fields: Fields) -> ModelConfig:
    heads = fields.integer("n_head", 1, MAX_HEADS)
    hidden = fields.integer("n_embd", 1, MAX_WIDTH)
    if hidden % heads:
        fields.refuse("n_embd", f"{hidden} is not a multiple of the {heads} attention heads")
    vocab = fields.integer("vocab_size", 1, MAX_VOCAB_SIZE)
    return ModelConfig(
        architecture="gpt2",
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=fields.integer("n_inner", 1, MAX_INNER_WIDTH, default=4 * hidden),
        num_layers=fields.integer("n_layer", 1, MAX_LAYERS),
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=hidden // heads,
        context_tokens=fields.integer("n_positions", 1, MAX_CONTEXT_TOKENS, default=1024),
        rms_norm_eps=fields.number("layer_norm_epsilon", 1e-12, 1e-1, default=1e-5),
        rope_theta=0.0,
        tied_embeddings=fields.boolean("tie_word_embeddings", default=True),
        attention_bias=True,
        mlp_bias=True,
        weight_dtype=fields.dtype(),
        bos_token_id=fields.optional_token("bos_token_id", vocab),
        eos_token_ids=fields.tokens("eos_token_id", vocab),
    )


def _tensors(config: ModelConfig) -> Shapes:
    """Matrices are (in features, out features) here: GPT-2 multiplies from the left."""
    hidden, inner = config.hidden_size, config.intermediate_size
    layer_tensors = {
        "ln_1.weight": (hidden,),
        "ln_1.bias": (hidden,),
        "attn.c_attn.weight": (hidden, 3 * hidden),
        "attn.c_attn.bias": (3 * hidden,),
        "attn.c_proj.weight": (hidden, hidden),
        "attn.c_proj.bias": (hidden,),
        "ln_2.weight": (hidden,),
        "ln_2.bias": (hidden,),
        "mlp.c_fc.weight": (hidden, inner),
        "mlp.c_fc.bias": (inner,),
        "mlp.c_proj.weight": (inner, hidden),
        "mlp.c_proj.bias": (hidden,),
    }
    tensors: Shapes = {
        "transformer.wte.weight": (config.vocab_size, hidden),
        POSITIONS: (config.context_tokens, hidden),
    }
    for layer in range(config.num_layers):
        tensors |= {f"transformer.h.{layer}.{name}": shape for name, shape in layer_tensors.items()}
    tensors |= {"transformer.ln_f.weight": (hidden,), "transformer.ln_f.bias": (hidden,)}
    if not config.tied_embeddings:
        tensors["lm_head.weight"] = (config.vocab_size, hidden)
    return tensors


def _masks(config: ModelConfig) -> Shapes:
    shape = (1, 1, config.context_tokens, config.context_tokens)
    return {f"transformer.h.{layer}.attn.bias": shape for layer in range(config.num_layers)}


GPT_2 = Family(
    "gpt2",
    "GPT2LMHeadModel",
    _read,
    fixed={
        "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "reorder_and_upcast_attn": (False,),
    },
    harmless={
        "attn_pdrop", "embd_pdrop", "resid_pdrop", "n_ctx", "summary_activation", "summary_first_dropout",
        "summary_proj_to_labels", "summary_type", "summary_use_proj",
    },
    tensors=_tensors,
    ignored=_masks,
    prefix="transformer.",
    outputs_first=False,
)  # fmt: skip
