"""The closed config schema of the architectures we run, and the exact tensor set each config yields.

``config.json`` is read with bounds and ``type(x) is int``; a field that would change the computation and that we do not
know is refused by name, and nothing is allocated before the numbers are checked.

Field names and defaults are those of ``LlamaConfig`` and ``MistralConfig`` of transformers, versions 4 and 5 (which
moved ``rope_theta`` into ``rope_parameters``). Mistral without a sliding window computes exactly what Llama does.
"""

from typing import Any, NoReturn

import msgspec

from dataplane.contracts import strict_json

MAX_CONFIG_BYTES = 256 * 1024
SCHEMES = ("int8", "int4", "kv-int8")
"""What ``python -m dataplane.model.quantize`` makes: weights of a folder as integers, or the word that keys and values
are to be kept as such."""


class ConfigError(ValueError):
    """A config that cannot be run. ``field`` names the offender, ``mend`` says what to do."""

    def __init__(self, field: str, message: str, mend: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message
        self.mend = mend


class ModelConfig(msgspec.Struct, frozen=True):
    """A decoder-only transformer of the Llama family. Sizes in elements.

    ``architecture`` is ``llama`` for every family that computes the same; ``weight_dtype`` (fp32, fp16 or bf16) is what
    the config declares, the file's tensors may have another. ``eos_token_ids`` may be empty. ``quantisation`` is one of
    :data:`SCHEMES`, or empty.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context_tokens: int
    rms_norm_eps: float
    rope_theta: float
    tied_embeddings: bool
    attention_bias: bool
    mlp_bias: bool
    weight_dtype: str
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    quantisation: str = ""


_CLASSES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM"}
_DEFAULT_CONTEXT_TOKENS = {"llama": 2048, "mistral": 4096 * 32}
_DTYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}

_REFUSED = {
    "auto_map": "it names code to run, and no code of an upload is ever run",
    "trust_remote_code": "it asks to run code, and no code of an upload is ever run",
}
_MEND_REFUSED = {
    "auto_map": "Remove auto_map and upload a model of a supported architecture.",
    "trust_remote_code": "Remove trust_remote_code.",
}

_READ = frozenset({
    "architectures", "model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
    "num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps", "rope_theta",
    "rope_scaling", "rope_parameters", "tie_word_embeddings", "attention_bias", "mlp_bias", "torch_dtype", "dtype",
    "bos_token_id", "eos_token_id", "sliding_window", "quantization_config",
})  # fmt: skip

_FIXED: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "pretraining_tp": (1,),
    "rope_interleaved": (False,),
    "is_encoder_decoder": (False,),
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "cross_attention_hidden_size": (None,),
    "tie_encoder_decoder": (False,),
    "chunk_size_feed_forward": (0,),
    "partial_rotary_factor": (1, 1.0),
}
"""Fields that change the computation, with the only values that mean what we compute."""

_HARMLESS = frozenset({
    "_name_or_path", "transformers_version", "transformers.js_config", "is_llama_config", "unsloth_version",
    "use_cache", "initializer_range", "attention_dropout", "pad_token_id", "return_dict", "output_attentions",
    "output_hidden_states", "torchscript", "id2label", "label2id", "problem_type", "finetuning_task",
    "task_specific_params", "tokenizer_class", "prefix", "max_length", "min_length", "do_sample", "temperature",
    "top_k", "top_p", "num_beams", "repetition_penalty", "_attn_implementation_autoset",
})  # fmt: skip
"""Fields that never reach the computation of logits: training, bookkeeping, and sampling, which each request sets."""


def parse_config(raw: bytes) -> ModelConfig:
    """Read a Hugging Face ``config.json`` of the Llama family.

    Raises:
        ConfigError: not one of the architectures we run, a field outside its bounds, or a field we do not know.
    """
    fields = _Fields(_load(raw, "config.json"))
    family = fields.family()
    fields.refuse_what_we_do_not_compute(family)
    heads = fields.integer("num_attention_heads", 1, 512)
    kv_heads = fields.integer("num_key_value_heads", 1, heads, default=heads if family == "llama" else None)
    if heads % kv_heads:
        fields.refuse("num_key_value_heads", f"{kv_heads} does not divide the {heads} attention heads")
    hidden = fields.integer("hidden_size", 1, 65_536)
    vocab = fields.integer("vocab_size", 1, 1 << 20)
    return ModelConfig(
        architecture="llama",
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=fields.integer("intermediate_size", 1, 1 << 19),
        num_layers=fields.integer("num_hidden_layers", 1, 512),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=fields.head_dim(hidden, heads),
        context_tokens=fields.integer("max_position_embeddings", 1, 1 << 24, default=_DEFAULT_CONTEXT_TOKENS[family]),
        rms_norm_eps=fields.number("rms_norm_eps", 1e-12, 1e-1, default=1e-6),
        rope_theta=fields.rope_theta(),
        tied_embeddings=fields.boolean("tie_word_embeddings", default=False),
        attention_bias=fields.boolean("attention_bias", default=False),
        mlp_bias=fields.boolean("mlp_bias", default=False),
        weight_dtype=fields.dtype(),
        bos_token_id=fields.optional_token("bos_token_id", vocab),
        eos_token_ids=fields.tokens("eos_token_id", vocab),
        quantisation=fields.quantisation(),
    )


def add_generation_config(config: ModelConfig, raw: bytes) -> ModelConfig:
    """Return ``config`` with the end-of-text tokens that ``generation_config.json`` adds; the rest of it is not used.

    Chat models name the end of a turn there only.

    Raises:
        ConfigError: not a JSON object, or token ids outside the vocabulary.
    """
    fields = _Fields(_load(raw, "generation_config.json"))
    added = fields.tokens("eos_token_id", config.vocab_size)
    return msgspec.structs.replace(config, eos_token_ids=tuple(dict.fromkeys(config.eos_token_ids + added)))


def expected_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the exact tensors of the Hugging Face checkpoint by name; matrices are (out features, in features)."""
    hidden, inner = config.hidden_size, config.intermediate_size
    query, key_value = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    attention = {
        "q_proj": (query, hidden),
        "k_proj": (key_value, hidden),
        "v_proj": (key_value, hidden),
        "o_proj": (hidden, query),
    }
    mlp = {"gate_proj": (inner, hidden), "up_proj": (inner, hidden), "down_proj": (hidden, inner)}
    tensors: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, hidden)}
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}"
        tensors[f"{prefix}.input_layernorm.weight"] = (hidden,)
        tensors[f"{prefix}.post_attention_layernorm.weight"] = (hidden,)
        for part, matrices, biased in (("self_attn", attention, config.attention_bias), ("mlp", mlp, config.mlp_bias)):
            for name, shape in matrices.items():
                tensors[f"{prefix}.{part}.{name}.weight"] = shape
                if biased:
                    tensors[f"{prefix}.{part}.{name}.bias"] = shape[:1]
    tensors["model.norm.weight"] = (hidden,)
    if not config.tied_embeddings:
        tensors["lm_head.weight"] = (config.vocab_size, hidden)
    return tensors


def _load(raw: bytes, file_name: str) -> dict[str, Any]:
    try:
        return strict_json.loads_object(raw, MAX_CONFIG_BYTES)
    except strict_json.StrictJsonError as error:
        raise ConfigError(file_name, str(error), f"Write {file_name} again as plain JSON.") from error


class _Fields:
    """The fields of one JSON object, read one by one; every reading raises :class:`ConfigError` out of bounds."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def refuse(self, field: str, message: str, mend: str = "") -> NoReturn:
        raise ConfigError(field, message, mend or f"Correct {field} in config.json.")

    def family(self) -> str:
        family = self._values.get("model_type")
        if type(family) is not str or family not in _CLASSES:
            self.refuse("model_type", f"{_shown(family)} is not supported", f"Supported are {', '.join(_CLASSES)}.")
        architectures = self._values.get("architectures")
        if architectures is not None and architectures != [_CLASSES[family]]:
            self.refuse(
                "architectures",
                f"{_shown(architectures)} is not supported",
                f"Supported for {family} is [{_CLASSES[family]!r}].",
            )
        return family

    def refuse_what_we_do_not_compute(self, family: str) -> None:
        for field, why in _REFUSED.items():
            if self._values.get(field) is not None:
                self.refuse(field, why, _MEND_REFUSED[field])
        if family == "mistral" and "sliding_window" not in self._values:
            self.refuse(
                "sliding_window",
                "its absence means a window of 4096 tokens, which is not supported",
                "Set it to null where the model has none.",
            )
        if self._values.get("sliding_window") is not None:
            self.refuse("sliding_window", "attention over a window is not supported")
        for field, allowed in _FIXED.items():
            value = self._values.get(field, allowed[0])
            if not any(type(value) is type(one) and value == one for one in allowed):
                self.refuse(field, f"only {_shown(allowed[0])} is supported, not {_shown(value)}")
        unknown = sorted(self._values.keys() - _READ - _FIXED.keys() - _HARMLESS - _REFUSED.keys())
        if unknown:
            self.refuse(
                _shown(unknown[0]),
                "it is not known, so it may change what the model computes",
                "Remove it where it has no effect; otherwise this model is not supported.",
            )

    def integer(self, field: str, least: int, most: int, *, default: int | None = None) -> int:
        value = self._values.get(field)
        if value is None and default is not None:
            return default
        if type(value) is not int or not least <= value <= most:
            self.refuse(field, f"{_shown(value)} is not an integer from {least} to {most}")
        return value

    def number(self, field: str, least: float, most: float, *, default: float | None = None) -> float:
        value = self._values.get(field, default)
        if not isinstance(value, int | float) or type(value) is bool or not least <= value <= most:
            self.refuse(field, f"{_shown(value)} is not a number from {least:g} to {most:g}")
        return float(value)

    def boolean(self, field: str, *, default: bool) -> bool:
        value = self._values.get(field, default)
        if type(value) is not bool:
            self.refuse(field, f"{_shown(value)} is not true or false")
        return value

    def head_dim(self, hidden: int, heads: int) -> int:
        if self._values.get("head_dim") is None and hidden % heads:
            self.refuse("hidden_size", f"{hidden} is not a multiple of the {heads} attention heads")
        width = self.integer("head_dim", 2, 1024, default=max(hidden // heads, 1))
        if width % 2:
            self.refuse("head_dim", f"rotary positions need an even width, not {width}")
        return width

    def dtype(self) -> str:
        names = {self._values[field] for field in ("dtype", "torch_dtype") if self._text_or_none(field) is not None}
        if len(names) > 1:
            self.refuse("torch_dtype", "it contradicts dtype")
        name = names.pop() if names else "float32"
        if name not in _DTYPES:
            self.refuse("dtype", f"{_shown(name)} is not supported", f"Supported are {', '.join(_DTYPES)}.")
        return _DTYPES[name]

    def quantisation(self) -> str:
        """Our own, exactly as the quantizer writes it: ``{"quant_method": "pagoda", "scheme": ...}``."""
        value = self._values.get("quantization_config")
        if value is None:
            return ""
        ours = next((one for one in SCHEMES if value == {"quant_method": "pagoda", "scheme": one}), "")
        if not ours:
            self.refuse(
                "quantization_config",
                "weights quantised by another tool cannot be read",
                "Upload the weights in fp32, fp16 or bf16 and remove quantization_config.",
            )
        return ours

    def _text_or_none(self, field: str) -> str | None:
        value = self._values.get(field)
        if value is not None and type(value) is not str:
            self.refuse(field, f"{_shown(value)} is not a name")
        return value

    def rope_theta(self) -> float:
        """Plain rotary positions only: every way to write scaling is refused unless it says ``default``."""
        thetas = [self.number("rope_theta", 1.0, 1e12)] if self._values.get("rope_theta") is not None else []
        for field in ("rope_scaling", "rope_parameters"):
            value = self._values.get(field)
            if value is None:
                continue
            if type(value) is not dict:
                self.refuse(field, f"{_shown(value)} is not an object")
            rope = _Fields(value)
            kind = value.get("rope_type", value.get("type", "default"))
            if kind != "default" or value.get("type", kind) != kind:
                self.refuse(
                    field,
                    f"scaled rotary positions ({_shown(kind)}) are not supported",
                    "Models without rope scaling are supported.",
                )
            unknown = sorted(value.keys() - {"rope_type", "type", "rope_theta", "partial_rotary_factor"})
            if unknown or value.get("partial_rotary_factor", 1.0) != 1.0:
                self.refuse(field, f"{_shown((unknown or ['partial_rotary_factor'])[0])} is not supported")
            if "rope_theta" in value:
                thetas.append(rope.number("rope_theta", 1.0, 1e12))
        if len(set(thetas)) > 1:
            self.refuse("rope_theta", "it is given twice with two values")
        return thetas[0] if thetas else 10_000.0

    def optional_token(self, field: str, vocab: int) -> int | None:
        return None if self._values.get(field) is None else self.integer(field, 0, vocab - 1)

    def tokens(self, field: str, vocab: int) -> tuple[int, ...]:
        """One id, a list of at most 64, or null."""
        value = self._values.get(field)
        if type(value) is not list:
            one = self.optional_token(field, vocab)
            return () if one is None else (one,)
        if len(value) > 64:
            self.refuse(field, f"{len(value)} ids are more than 64")
        for token in value:
            if type(token) is not int or not 0 <= token < vocab:
                self.refuse(field, f"{_shown(token)} is not a token id below {vocab}")
        return tuple(dict.fromkeys(value))


def _shown(value: object) -> str:
    """A stranger's value in a message: one short printable line."""
    text = ascii(value) if isinstance(value, str | list | dict) else str(value)
    return text if len(text) <= 80 else text[:77] + "..."
