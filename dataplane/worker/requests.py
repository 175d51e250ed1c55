"""From the bytes of an OpenAI request to a checked one: closed sets of fields, one reading, every refusal by name.

Field names and meanings follow OpenAI's API reference (completions and chat completions), and vLLM's for ``top_k``,
``min_p``, ``repetition_penalty``, ``ignore_eos``, ``min_tokens`` and ``stop_token_ids``.
"""

import re
import secrets
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from dataplane.contracts import strict_json
from dataplane.contracts.errors import ApiError, Code
from dataplane.contracts.sampling import SamplingParams
from dataplane.worker import parameters
from dataplane.worker.parameters import invalid, unsupported

MAX_BODY_BYTES = 4 * 1024 * 1024
_MAX_PARTS = 32 * 1024
"""Strings, lists and objects in a body: a plain message has five."""
_MAX_ITEMS = 132 * 1024
"""Items of its lists and objects: as many token ids as a long context has, and all else."""
_ROLES = ("system", "developer", "user", "assistant")
_NUL = re.compile(rb"\\u0000")


class TextPrompt(msgspec.Struct, frozen=True):
    """A prompt to encode as it stands."""

    text: str


class TokenPrompt(msgspec.Struct, frozen=True):
    """A prompt that is token ids already."""

    token_ids: list[int]


class ChatPrompt(msgspec.Struct, frozen=True):
    """Messages to render: JSON of a list of {role, content}, both strings."""

    messages: bytes


Prompt = TextPrompt | TokenPrompt | ChatPrompt


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller asked for, each value checked by itself. None: the caller did not say.

    ``logprobs``: how many of the likeliest tokens it wants told beside each of the answer's, None for no scores at all.
    """

    model: str
    prompt: Prompt
    n: int
    max_tokens: int | None
    min_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: dict[int, float]
    logprobs: int | None
    echo: bool
    seed: int | None
    stops: tuple[str, ...]
    stop_token_ids: tuple[int, ...]
    ignore_eos: bool
    stream: bool
    include_usage: bool


class _Fields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    model: str
    n: int = 1
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    seed: int | None = None
    stop: str | list[str] = []
    stop_token_ids: list[int] = []
    ignore_eos: bool = False
    stream: bool = False
    stream_options: dict[str, Any] | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None


class _CompletionFields(_Fields, kw_only=True, forbid_unknown_fields=True):
    prompt: str | list[Any]
    logprobs: int | None = None
    echo: bool = False
    best_of: int | None = None


class _ChatFields(_Fields, kw_only=True, forbid_unknown_fields=True):
    messages: list[dict[str, Any]]
    logprobs: bool = False
    top_logprobs: int | None = None


_AnyFields = TypeVar("_AnyFields", bound=_Fields)


def parse_completion(raw: bytes) -> GenerationRequest:
    """Read the body of ``/v1/completions``.

    Raises:
        ApiError: 400, naming the field at fault.
    """
    fields = _convert(_load(raw), parameters.COMPLETION, _CompletionFields)
    if fields.best_of not in (None, fields.n):
        raise unsupported("best_of", " unless it equals n")
    return _checked(fields, _completion_prompt(fields.prompt), logprobs=fields.logprobs, echo=fields.echo)


def parse_chat(raw: bytes) -> GenerationRequest:
    """Read the body of ``/v1/chat/completions``. Raises as :func:`parse_completion`."""
    fields = _convert(_load(raw), parameters.CHAT, _ChatFields)
    if fields.top_logprobs and not fields.logprobs:
        raise invalid("top_logprobs", "it is allowed only when logprobs is true")
    return _checked(
        fields, _chat_prompt(fields.messages), logprobs=(fields.top_logprobs or 0) if fields.logprobs else None
    )


def sampling_of(
    request: GenerationRequest, prompt_tokens: int, context_tokens: int, fill_tokens: int, vocab_size: int
) -> SamplingParams:
    """Resolve what depends on the prompt's length and on the model.

    Args:
        request: what the caller asked for.
        prompt_tokens: length of the encoded prompt.
        context_tokens: most tokens of prompt and completion together.
        fill_tokens: where an absent max_tokens ends: the context, or the tenant's cap where that is less.
        vocab_size: token ids of the model are below it.

    Raises:
        ApiError: the prompt or max_tokens does not fit (the message names both numbers), or a token id is none.
    """
    if prompt_tokens >= context_tokens:
        raise ApiError(
            Code.CONTEXT_LENGTH_EXCEEDED,
            f"the prompt has {prompt_tokens} tokens and the model's context is {context_tokens} tokens, of which at "
            "least one must be left for the completion; shorten the prompt",
            param="messages" if isinstance(request.prompt, ChatPrompt) else "prompt",
        )
    max_tokens = request.max_tokens
    if max_tokens is None:
        max_tokens = max(min(fill_tokens, context_tokens) - prompt_tokens, 1)
    elif prompt_tokens + max_tokens > context_tokens:
        raise ApiError(
            Code.CONTEXT_LENGTH_EXCEEDED,
            f"the prompt has {prompt_tokens} tokens and max_tokens is {max_tokens}: together "
            f"{prompt_tokens + max_tokens}, over the model's context of {context_tokens} tokens; lower max_tokens or "
            "leave it out",
            param="max_tokens",
        )
    if request.min_tokens > max_tokens:
        raise invalid("min_tokens", f"{request.min_tokens} is above the {max_tokens} tokens that may be generated")
    for token_id in request.stop_token_ids:
        if not 0 <= token_id < vocab_size:
            raise invalid("stop_token_ids", f"{token_id} is no token id, they are from 0 to {vocab_size - 1}")
    for token_id in request.logit_bias:
        if not 0 <= token_id < vocab_size:
            raise invalid("logit_bias", f"{token_id} is no token id, they are from 0 to {vocab_size - 1}")
    _check_scores(request, prompt_tokens, max_tokens)
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=max(request.top_k, 0),
        min_p=request.min_p,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        repetition_penalty=request.repetition_penalty,
        logit_bias=request.logit_bias,
        seed=secrets.randbits(63) if request.seed is None else request.seed,
        min_tokens=request.min_tokens,
        ignore_eos=request.ignore_eos,
        stop_token_ids=request.stop_token_ids,
        logprobs=request.logprobs,
        score_prompt=request.echo and request.logprobs is not None,
    )


def _check_scores(request: GenerationRequest, prompt_tokens: int, max_tokens: int) -> None:
    """Refuse an answer whose log probabilities would be more than anybody should have to hold."""
    if request.logprobs is None:
        return
    tokens = request.n * (max_tokens + (prompt_tokens if request.echo else 0))
    scores = tokens * (1 + request.logprobs)
    if scores > parameters.MAX_SCORES:
        raise invalid(
            "logprobs",
            f"an answer of up to {tokens} tokens with {request.logprobs} others beside each has {scores} log "
            f"probabilities, at most {parameters.MAX_SCORES} are allowed; lower max_tokens, n or their number",
        )


def check_token_ids(token_ids: list[int], vocab_size: int) -> None:
    """Check a caller's own token ids.

    Raises:
        ApiError: one is not of this model.
    """
    for token_id in token_ids:
        if not 0 <= token_id < vocab_size:
            raise invalid("prompt", f"{token_id} is no token id, they are from 0 to {vocab_size - 1}")


def _load(raw: bytes) -> dict[str, Any]:
    try:
        strict_json.check_counts(raw, _MAX_PARTS, _MAX_ITEMS)
    except strict_json.StrictJsonError as error:
        raise ApiError(Code.INVALID_REQUEST, f"the body is too much for one request: {error}") from error
    try:
        fields = strict_json.loads_object(raw, MAX_BODY_BYTES)
    except strict_json.StrictJsonError as error:
        raise ApiError(Code.INVALID_JSON, f"the body cannot be read: {error}") from error
    if _NUL.search(raw) and _has_nul(fields):
        raise ApiError(Code.INVALID_REQUEST, "the body has a NUL character, which no text may have; remove it")
    return fields


def _has_nul(value: object) -> bool:
    if isinstance(value, str):
        return "\0" in value
    if isinstance(value, dict):
        return any(_has_nul(part) for pair in value.items() for part in pair)
    return isinstance(value, list) and any(map(_has_nul, value))


def _convert(fields: Mapping[str, Any], supported: frozenset[str], kind: type[_AnyFields]) -> _AnyFields:
    kept = parameters.supported_only(fields, supported)
    try:
        return msgspec.convert(kept, kind, str_keys=True)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at ")
        path = place.removeprefix("`key` in ").strip("`").removeprefix("$.")
        if missing := re.search(r"missing required field `(\w+)`", message):
            raise invalid(missing[1], "it is required") from error
        raise invalid(path or "body", message[:1].lower() + message[1:]) from error


def _checked(fields: _Fields, prompt: Prompt, *, logprobs: int | None, echo: bool = False) -> GenerationRequest:
    parameters.check_ranges(msgspec.structs.asdict(fields))
    if len(fields.model) > parameters.MAX_MODEL_CHARS:
        raise invalid("model", f"at most {parameters.MAX_MODEL_CHARS} characters are allowed")
    stops = (fields.stop,) if isinstance(fields.stop, str) else tuple(fields.stop)
    parameters.check_stops(stops)
    parameters.check_labels(fields.user, fields.metadata)
    parameters.check_logit_bias(fields.logit_bias)
    if len(fields.stop_token_ids) > parameters.MAX_STOP_TOKEN_IDS:
        raise invalid("stop_token_ids", f"at most {parameters.MAX_STOP_TOKEN_IDS} ids are allowed")
    max_tokens, newer = fields.max_tokens, fields.max_completion_tokens
    if max_tokens is not None and newer is not None and max_tokens != newer:
        raise invalid("max_completion_tokens", f"{newer} contradicts max_tokens {max_tokens}; give one of them")
    return GenerationRequest(
        model=fields.model,
        prompt=prompt,
        n=fields.n,
        max_tokens=max_tokens if newer is None else newer,
        min_tokens=fields.min_tokens,
        temperature=fields.temperature,
        top_p=fields.top_p,
        top_k=fields.top_k,
        min_p=fields.min_p,
        presence_penalty=fields.presence_penalty,
        frequency_penalty=fields.frequency_penalty,
        repetition_penalty=fields.repetition_penalty,
        logit_bias=fields.logit_bias,
        logprobs=logprobs,
        echo=echo,
        seed=fields.seed,
        stops=stops,
        stop_token_ids=tuple(fields.stop_token_ids),
        ignore_eos=fields.ignore_eos,
        stream=fields.stream,
        include_usage=_include_usage(fields.stream_options, fields.stream),
    )


def _include_usage(options: Mapping[str, Any] | None, stream: bool) -> bool:
    if options is None:
        return False
    if not stream:
        raise invalid("stream_options", "it is allowed only when stream is true")
    for name, value in options.items():
        if name == "include_usage" and isinstance(value, bool | None):
            continue
        if name == "include_usage":
            raise invalid("stream_options.include_usage", "expected `bool`")
        if not (name == "include_obfuscation" and value in (False, None)):
            raise unsupported(f"stream_options.{name[:100]}")
    return bool(options.get("include_usage"))


def _completion_prompt(prompt: str | list[Any]) -> Prompt:
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        if not prompt:
            raise invalid("prompt", "it must not be empty")
        return TextPrompt(prompt)
    if not prompt:
        raise invalid("prompt", "it must not be empty")
    if isinstance(prompt[0], str | list):
        raise unsupported("prompt", f" with {len(prompt)} prompts in one request: send one request for each")
    if not all(type(token_id) is int for token_id in prompt):
        raise invalid("prompt", "expected a string, or a list of token ids")
    return TokenPrompt(prompt)


def _chat_prompt(messages: list[dict[str, Any]]) -> ChatPrompt:
    if not messages:
        raise invalid("messages", "it must not be empty")
    return ChatPrompt(msgspec.json.encode([_message(index, message) for index, message in enumerate(messages)]))


def _message(index: int, message: Mapping[str, Any]) -> dict[str, str]:
    path = f"messages[{index}]."
    for name, value in message.items():
        # What an answer of ours or of OpenAI carries when it is sent back as history, and says nothing.
        if name not in ("role", "content") and value not in (None, []):
            raise unsupported(f"{path}{name[:100]}")
    role = message.get("role")
    if role in ("tool", "function"):
        raise unsupported(f"{path}role", f" with the value {role}")
    if role not in _ROLES:
        raise invalid(f"{path}role", f"it must be one of {', '.join(_ROLES)}")
    return {
        "role": "system" if role == "developer" else role,
        "content": _content(f"{path}content", message.get("content")),
    }


def _content(path: str, content: object) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise invalid(path, "expected a string, or a list of text parts")
    texts = []
    for index, part in enumerate(content):
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise invalid(f"{path}[{index}]", "expected an object with a type")
        if part["type"] != "text":
            raise unsupported(f"{path}[{index}].type", f" with the value {part['type'][:50]}: only text is")
        for name in part.keys() - {"type", "text"}:
            raise unsupported(f"{path}[{index}].{name[:100]}")
        if not isinstance(part.get("text"), str):
            raise invalid(f"{path}[{index}].text", "expected a string")
        texts.append(part["text"])
    return "\n".join(texts)
