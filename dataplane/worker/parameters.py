"""Which request parameters there are, which of OpenAI's and vLLM's we do not have, and what values each may take.

A parameter that is not supported is refused by name, unless its value asks for nothing (its documented default): then
there is nothing to ignore.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from dataplane.contracts.errors import ApiError, Code
from dataplane.contracts.sampling import MAX_ALTERNATIVES, MAX_BIASED_TOKENS, MAX_CHOICES

COMMON = frozenset({
    "model", "n", "max_tokens", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "logit_bias", "logprobs", "seed", "stop", "stream", "stream_options", "ignore_eos",
    "min_tokens", "user", "metadata", "stop_token_ids", "response_format", "structured_outputs",
})  # fmt: skip
COMPLETION = COMMON | {"prompt", "echo", "best_of"}
CHAT = COMMON | {
    "messages", "max_completion_tokens", "top_logprobs", "tools", "tool_choice", "parallel_tool_calls",
}  # fmt: skip
STREAM_OPTIONS = frozenset({"include_usage", "include_obfuscation"})

_MAX_COMPLETION_LOGPROBS = 5
_ASKS_NOTHING: Mapping[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "top_logprobs": (0,),
    "length_penalty": (1,),
    "use_beam_search": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "include_stop_str_in_output": (False,),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "tools": ([],),
    "tool_choice": ("none",),
    "parallel_tool_calls": (True,),
    "functions": ([],),
    "function_call": ("none",),
    "modalities": (["text"],),
    "service_tier": ("auto", "default"),
    "store": (False,),
}
_RANGES: Mapping[str, tuple[float, float]] = {
    "n": (1, MAX_CHOICES),
    "temperature": (0, 2),
    "top_p": (0, 1),
    "top_k": (-1, 2**31 - 1),
    "min_p": (0, 1),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "repetition_penalty": (0.1, 10),
    "logprobs": (0, _MAX_COMPLETION_LOGPROBS),
    "top_logprobs": (0, MAX_ALTERNATIVES),
    "seed": (-(2**63), 2**63 - 1),
    "max_tokens": (1, 2**31 - 1),
    "max_completion_tokens": (1, 2**31 - 1),
    "min_tokens": (0, 2**31 - 1),
}
MAX_MODEL_CHARS = 256
MAX_STOPS = 4
MAX_STOP_CHARS = 1024
MAX_STOP_TOKEN_IDS = 64
MAX_SCORES = 128 * 1024
"""Log probabilities in one answer, of tokens and of the likeliest beside them: as JSON about 100 bytes each."""
_MAX_BIAS = 100
_MAX_METADATA = 16
_MAX_USER_CHARS = 512


def unsupported(path: str, detail: str = "") -> ApiError:
    """Return the refusal of a parameter that this server does not have."""
    return ApiError(Code.UNSUPPORTED_PARAMETER, f"{path} is not supported{detail}; leave it out", param=path)


def invalid(path: str, message: str) -> ApiError:
    """Return the refusal of a value; ``message`` says what is allowed."""
    return ApiError(Code.INVALID_PARAMETER, f"{path}: {message}", param=path)


def supported_only(fields: Mapping[str, Any], supported: Iterable[str], path: str = "") -> dict[str, Any]:
    """Return the supported fields that are not null.

    Raises:
        ApiError: a field that is not supported and asks for something.
    """
    kept = {}
    for name, value in fields.items():
        if value is None:
            continue
        if name in supported:
            kept[name] = value
        elif not asks_nothing(name, value):
            raise unsupported(f"{path}{name[:100]}")
    return kept


def asks_nothing(name: str, value: object) -> bool:
    """Say whether ``value`` is a documented default of a parameter that we do not have."""
    return any(
        isinstance(value, bool) == isinstance(default, bool) and value == default
        for default in _ASKS_NOTHING.get(name, ())
    )


def check_ranges(fields: Mapping[str, Any]) -> None:
    """Check every number.

    Raises:
        ApiError: out of range; the message names the field and what is allowed.
    """
    for name, (least, most) in _RANGES.items():
        value = fields.get(name)
        if value is not None and not least <= value <= most:
            limit = f"at least {least:g}" if most == 2**31 - 1 else f"from {least:g} to {most:g}"
            raise invalid(name, f"{value} is not allowed, it must be {limit}")
    if fields.get("top_p") == 0:
        raise invalid("top_p", "0 is not allowed, it must be above 0 and at most 1")


def check_stops(stops: tuple[str, ...]) -> None:
    """Check the stop strings.

    Raises:
        ApiError: too many, empty, or too long.
    """
    if len(stops) > MAX_STOPS:
        raise invalid("stop", f"{len(stops)} stop strings are not allowed, at most {MAX_STOPS} are")
    if not all(0 < len(stop) <= MAX_STOP_CHARS for stop in stops):
        raise invalid("stop", f"a stop string must have 1 to {MAX_STOP_CHARS} characters")


def check_logit_bias(bias: Mapping[int, float]) -> None:
    """Check the tokens that are made more or less likely.

    Raises:
        ApiError: too many, or a value out of range.
    """
    if len(bias) > MAX_BIASED_TOKENS:
        raise invalid("logit_bias", f"{len(bias)} tokens are not allowed, at most {MAX_BIASED_TOKENS} are")
    for token_id, value in bias.items():
        if not -_MAX_BIAS <= value <= _MAX_BIAS:
            path = f"logit_bias.{token_id}"
            raise invalid(path, f"{value:g} is not allowed, it must be from -{_MAX_BIAS} to {_MAX_BIAS}")


def check_labels(user: str | None, metadata: Mapping[str, str] | None) -> None:
    """Check what a caller may attach to a request; it is accepted and not stored.

    Raises:
        ApiError: longer than OpenAI allows.
    """
    if user is not None and len(user) > _MAX_USER_CHARS:
        raise invalid("user", f"{len(user)} characters are not allowed, at most {_MAX_USER_CHARS} are")
    if metadata is None:
        return
    if len(metadata) > _MAX_METADATA:
        raise invalid("metadata", f"{len(metadata)} pairs are not allowed, at most {_MAX_METADATA} are")
    if any(len(key) > 64 or len(value) > 512 for key, value in metadata.items()):
        raise invalid("metadata", "keys have at most 64 characters and values at most 512")
