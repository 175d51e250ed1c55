"""What the families share: the frame of a schema, the sizes of a decoder, and the tensors of one with a gated MLP."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from dataplane.contracts.model_config.config import ModelConfig
from dataplane.contracts.model_config.fields import Fields, shown

Shapes = dict[str, tuple[int, ...]]

MAX_WIDTH, MAX_INNER_WIDTH = 65_536, 1 << 19
MAX_HEADS, MAX_LAYERS = 512, 512
MAX_CONTEXT_TOKENS, MAX_VOCAB_SIZE = 1 << 24, 1 << 20

_LLAMA_NORMS = ("input_layernorm", "post_attention_layernorm")


@dataclass(frozen=True, slots=True)
class Family:
    """A ``model_type``: its closed schema, and the tensors of its checkpoints.

    Attributes:
        model_type: its name in configs.
        class_name: the class that writes them, for text generation.
        read: reads every field that the computation depends on.
        fixed: fields that may be there with these values only.
        harmless: fields that may hold anything.
        tensors: what a checkpoint must hold.
        ignored: what it may hold besides.
        prefix: what older tools leave out in front of the names of tensors.
        outputs_first: whether matrices are (out features, in features), as they must be to be stored quantised.
    """

    model_type: str
    class_name: str
    read: Callable[[Fields], ModelConfig]
    fixed: Mapping[str, tuple[Any, ...]]
    harmless: Collection[str]
    tensors: Callable[[ModelConfig], Shapes]
    ignored: Callable[[ModelConfig], Shapes]
    prefix: str = ""
    outputs_first: bool = True

    def tensor_name(self, stored: str) -> str:
        """Return the full name of a tensor."""
        return stored if stored.startswith((self.prefix, "lm_head.")) else self.prefix + stored


def read_decoder(
    fields: Fields,
    architecture: str,
    *,
    context_tokens: int,
    head_dim: int | None = None,
    one_kv_head_each: bool = False,
    tied_embeddings: bool = False,
) -> ModelConfig:
    """Read what every family but GPT-2 writes in the same fields: all but rotary positions, biases and windows.

    Args:
        fields: of the config.
        architecture: its ``model_type``.
        context_tokens: what the absence of a context means.
        head_dim: what the absence of a head's width means; None is a head's part of the hidden size.
        one_kv_head_each: whether the absence of a number of KV heads means as many as there are heads; else it is
            refused.
        tied_embeddings: what their absence means.
    """
    heads = fields.integer("num_attention_heads", 1, MAX_HEADS)
    kv_heads = fields.integer("num_key_value_heads", 1, heads, default=heads if one_kv_head_each else None)
    if heads % kv_heads:
        fields.refuse("num_key_value_heads", f"{kv_heads} does not divide the {heads} attention heads")
    hidden = fields.integer("hidden_size", 1, MAX_WIDTH)
    vocab = fields.integer("vocab_size", 1, MAX_VOCAB_SIZE)
    return ModelConfig(
        architecture=architecture,
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=fields.integer("intermediate_size", 1, MAX_INNER_WIDTH),
        num_layers=fields.integer("num_hidden_layers", 1, MAX_LAYERS),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=_head_dim(fields, hidden, heads, head_dim),
        context_tokens=fields.integer("max_position_embeddings", 1, MAX_CONTEXT_TOKENS, default=context_tokens),
        rms_norm_eps=fields.number("rms_norm_eps", 1e-12, 1e-1, default=1e-6),
        rope_theta=0.0,
        tied_embeddings=fields.boolean("tie_word_embeddings", default=tied_embeddings),
        attention_bias=False,
        mlp_bias=False,
        weight_dtype=fields.dtype(),
        bos_token_id=fields.optional_token("bos_token_id", vocab),
        eos_token_ids=fields.tokens("eos_token_id", vocab),
    )


def read_sliding_layers(fields: Fields, num_layers: int) -> tuple[int, ...] | None:
    """Return which layers slide, where ``layer_types`` lists that."""
    listed = fields.get("layer_types")
    if listed is None:
        return None
    kinds = {"full_attention": False, "sliding_attention": True}
    if type(listed) is not list or len(listed) != num_layers:
        fields.refuse("layer_types", f"it does not list {num_layers} layers")
    for kind in listed:
        if type(kind) is not str or kind not in kinds:
            fields.refuse("layer_types", f"{shown(kind)} is not supported", f"Supported are {', '.join(kinds)}.")
    return tuple(layer for layer, kind in enumerate(listed) if kinds[kind])


def read_window(fields: Fields, *, default: int | None) -> int | None:
    """Return the tokens that a sliding layer sees, or None; absence is ``default``."""
    return fields.optional_integer("sliding_window", 1, MAX_CONTEXT_TOKENS, default=default)


def decoder_tensors(config: ModelConfig, norms: tuple[str, ...] = _LLAMA_NORMS) -> Shapes:
    """Return the tensors of a decoder whose layers have these ``norms``; matrices are (out features, in features)."""
    hidden, inner = config.hidden_size, config.intermediate_size
    query, key_value = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    matrices = {
        "self_attn.q_proj": (query, hidden, config.attention_bias),
        "self_attn.k_proj": (key_value, hidden, config.attention_bias),
        "self_attn.v_proj": (key_value, hidden, config.attention_bias),
        "self_attn.o_proj": (hidden, query, config.attention_out_bias),
        "mlp.gate_proj": (inner, hidden, config.mlp_bias),
        "mlp.up_proj": (inner, hidden, config.mlp_bias),
        "mlp.down_proj": (hidden, inner, config.mlp_bias),
    }
    tensors: Shapes = {"model.embed_tokens.weight": (config.vocab_size, hidden)}
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}"
        tensors |= {f"{prefix}.{norm}.weight": (hidden,) for norm in norms}
        if config.head_norms:
            tensors |= {f"{prefix}.self_attn.{part}_norm.weight": (config.head_dim,) for part in "qk"}
        for name, (outputs, inputs, biased) in matrices.items():
            tensors[f"{prefix}.{name}.weight"] = (outputs, inputs)
            if biased:
                tensors[f"{prefix}.{name}.bias"] = (outputs,)
    tensors["model.norm.weight"] = (hidden,)
    if not config.tied_embeddings:
        tensors["lm_head.weight"] = (config.vocab_size, hidden)
    return tensors


def rotary_buffers(config: ModelConfig) -> Shapes:
    """Return the frequencies that versions of transformers before 4.32 saved in each layer."""
    frequencies = (config.head_dim // 2,)
    return {
        f"model.layers.{layer}.self_attn.rotary_emb.inv_freq": frequencies for layer in range(config.num_layers)
    }  # fmt: skip


def _head_dim(fields: Fields, hidden: int, heads: int, default: int | None) -> int:
    if default is None and fields.get("head_dim") is None and hidden % heads:
        fields.refuse("hidden_size", f"{hidden} is not a multiple of the {heads} attention heads")
    width = fields.integer("head_dim", 2, 1024, default=default or max(hidden // heads, 1))
    if width % 2:
        fields.refuse("head_dim", f"rotary positions need an even width, not {width}")
    return width
