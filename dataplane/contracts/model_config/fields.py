"""Reads the fields of a config one by one, each within its bounds. What nobody has read at the end is refused."""

from collections.abc import Collection, Mapping
from typing import Any, NoReturn

from dataplane.contracts.model_config.config import ConfigError

_DTYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
_MAX_TOKENS = 64

_REFUSED = {
    "auto_map": (
        "it names code to run, and no code of an upload is ever run",
        "Remove auto_map and upload a model of a supported architecture.",
    ),
    "trust_remote_code": ("it asks to run code, and no code of an upload is ever run", "Remove trust_remote_code."),
}

_FIXED: Mapping[str, tuple[Any, ...]] = {
    "is_encoder_decoder": (False,),
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "cross_attention_hidden_size": (None,),
    "tie_encoder_decoder": (False,),
    "chunk_size_feed_forward": (0,),
    "partial_rotary_factor": (1, 1.0),
}
"""Fields of any config that change the computation, with the only values that mean what we compute."""

_HARMLESS = frozenset({
    "_name_or_path", "transformers_version", "transformers.js_config", "unsloth_version", "use_cache",
    "initializer_range", "attention_dropout", "pad_token_id", "return_dict", "output_attentions",
    "output_hidden_states", "torchscript", "id2label", "label2id", "problem_type", "finetuning_task",
    "task_specific_params", "tokenizer_class", "prefix", "max_length", "min_length", "do_sample", "temperature",
    "top_k", "top_p", "num_beams", "repetition_penalty", "_attn_implementation_autoset",
})  # fmt: skip
"""Fields that never reach the computation of logits: training, bookkeeping, and sampling, which each request sets."""


class Fields:
    """The fields of one JSON object; every reading raises :class:`ConfigError` out of bounds.

    Args:
        values: the object.
        place: what stands before the name of a field, where the object is itself one.
    """

    def __init__(self, values: dict[str, Any], place: str = "") -> None:
        self._values = values
        self._place = place
        self._known: set[str] = set()

    def refuse(self, field: str, message: str, mend: str = "") -> NoReturn:
        """Raise :class:`ConfigError` about a field."""
        raise ConfigError(self._place + field, message, mend or f"Correct {self._place}{field} in config.json.")

    def refuse_code(self) -> None:
        """Refuse what asks for code of an upload."""
        for field, (why, mend) in _REFUSED.items():
            if self.get(field) is not None:
                self.refuse(field, why, mend)

    def close(self, fixed: Mapping[str, tuple[Any, ...]], harmless: Collection[str]) -> None:
        """Refuse every field that was not read and is neither harmless nor one of the values that are ``fixed``."""
        fixed = {**_FIXED, **fixed}
        for field, allowed in fixed.items():
            value = self._values.get(field, allowed[0])
            if not any(type(value) is type(one) and value == one for one in allowed):
                self.refuse(field, f"only {shown(allowed[0])} is supported, not {shown(value)}")
        unknown = sorted(self._values.keys() - self._known - fixed.keys() - _HARMLESS - set(harmless))
        if unknown:
            self.refuse_unknown(unknown[0])

    def refuse_unknown(self, field: str) -> NoReturn:
        """Refuse a field that is not known."""
        self.refuse(
            shown(field),
            "it is not known, so it may change what the model computes",
            "Remove it where it has no effect; otherwise this model is not supported.",
        )

    def only_read(self) -> None:
        """Refuse every field that was not read."""
        unknown = sorted(self._values.keys() - self._known)
        if unknown:
            self.refuse_unknown(unknown[0])

    def get(self, field: str, default: object = None) -> Any:  # noqa: ANN401 - JSON
        """Return whatever a field holds."""
        self._known.add(field)
        return self._values.get(field, default)

    def __contains__(self, field: str) -> bool:
        return field in self._values

    def integer(self, field: str, least: int, most: int, *, default: int | None = None) -> int:
        """Read an integer; absent and null are ``default``."""
        value = self.get(field)
        if value is None and default is not None:
            return default
        if type(value) is not int or not least <= value <= most:
            self.refuse(field, f"{shown(value)} is not an integer from {least} to {most}")
        return value

    def optional_integer(self, field: str, least: int, most: int, *, default: int | None = None) -> int | None:
        """Read an integer or null; absent is ``default``."""
        if self.get(field, default) is None:
            return None
        return self.integer(field, least, most, default=default)

    def number(self, field: str, least: float, most: float, *, default: float | None = None) -> float:
        """Read a number; absent is ``default``."""
        value = self.get(field, default)
        if not isinstance(value, int | float) or type(value) is bool or not least <= value <= most:
            self.refuse(field, f"{shown(value)} is not a number from {least:g} to {most:g}")
        return float(value)

    def optional_number(self, field: str, least: float, most: float, *, default: float | None = None) -> float | None:
        """Read a number or null; absent is ``default``."""
        return None if self.get(field, default) is None else self.number(field, least, most, default=default)

    def boolean(self, field: str, *, default: bool) -> bool:
        """Read true or false; absent is ``default``."""
        value = self.get(field, default)
        if type(value) is not bool:
            self.refuse(field, f"{shown(value)} is not true or false")
        return value

    def object(self, field: str) -> "Fields":
        """Read an object, whose fields are refused by their names within it."""
        value = self.get(field)
        if type(value) is not dict:
            self.refuse(field, f"{shown(value)} is not an object")
        return Fields(value, f"{self._place}{field}.")

    def dtype(self) -> str:
        """Read what the weights are declared to be; absent is fp32, as in transformers."""
        given = {field: self.get(field) for field in ("dtype", "torch_dtype")}
        for field, value in given.items():
            if value is not None and type(value) is not str:
                self.refuse(field, f"{shown(value)} is not a name")
        names = {value for value in given.values() if value is not None}
        if len(names) > 1:
            self.refuse("torch_dtype", "it contradicts dtype")
        name = names.pop() if names else "float32"
        if name not in _DTYPES:
            self.refuse("dtype", f"{shown(name)} is not supported", f"Supported are {', '.join(_DTYPES)}.")
        return _DTYPES[name]

    def optional_token(self, field: str, vocab_size: int) -> int | None:
        """Read a token id or null."""
        return self.optional_integer(field, 0, vocab_size - 1)

    def tokens(self, field: str, vocab_size: int) -> tuple[int, ...]:
        """Read one token id, a list of some, or null."""
        value = self.get(field)
        if type(value) is not list:
            one = self.optional_token(field, vocab_size)
            return () if one is None else (one,)
        if len(value) > _MAX_TOKENS:
            self.refuse(field, f"{len(value)} ids are more than {_MAX_TOKENS}")
        for token in value:
            if type(token) is not int or not 0 <= token < vocab_size:
                self.refuse(field, f"{shown(token)} is not a token id below {vocab_size}")
        return tuple(dict.fromkeys(value))


def shown(value: object) -> str:
    """Return a stranger's value for a message: one short printable line."""
    text = ascii(value) if isinstance(value, str | list | dict) else str(value)
    return text if len(text) <= 80 else text[:77] + "..."
