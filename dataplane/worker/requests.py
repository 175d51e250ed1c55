"""From the bytes of an OpenAI request to a checked one: closed sets of fields, one reading, every refusal by name.

Field names and meanings follow OpenAI's API reference (completions and chat completions), and vLLM's for ``top_k``,
``min_p``, ``repetition_penalty``, ``ignore_eos``, ``min_tokens``, ``stop_token_ids`` and ``structured_outputs``.
"""

import secrets
from collections.abc import Mapping
from typing import Any

import msgspec

from dataplane.contracts.errors import ApiError, Code
from dataplane.contracts.sampling import SamplingParams
from dataplane.worker import bodies, parameters, prompts, structure, tools
from dataplane.worker.parameters import invalid, unsupported
from dataplane.worker.prompts import ChatPrompt, Prompt
from dataplane.worker.structure import Structure
from dataplane.worker.tools import Tools


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
    padded: bool
    structure: Structure | None
    tools: Tools | None


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
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None


class _CompletionFields(_Fields, kw_only=True, forbid_unknown_fields=True):
    prompt: str | list[Any]
    logprobs: int | None = None
    echo: bool = False
    best_of: int | None = None


class _ChatFields(_Fields, kw_only=True, forbid_unknown_fields=True):
    messages: list[dict[str, Any]]
    logprobs: bool = False
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] = []
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool = True


def parse_completion(raw: bytes) -> GenerationRequest:
    """Read the body of ``/v1/completions``.

    Raises:
        ApiError: 400, naming the field at fault.
    """
    fields = bodies.convert(bodies.load(raw), parameters.COMPLETION, _CompletionFields)
    if fields.best_of not in (None, fields.n):
        raise unsupported("best_of", " unless it equals n")
    return _checked(fields, prompts.of_completion(fields.prompt), logprobs=fields.logprobs, echo=fields.echo)


def parse_chat(raw: bytes) -> GenerationRequest:
    """Read the body of ``/v1/chat/completions``. Raises as :func:`parse_completion`."""
    fields = bodies.convert(bodies.load(raw), parameters.CHAT, _ChatFields)
    if fields.top_logprobs and not fields.logprobs:
        raise invalid("top_logprobs", "it is allowed only when logprobs is true")
    callable_tools = tools.of_fields(fields.tools, fields.tool_choice, fields.parallel_tool_calls)
    return _checked(
        fields,
        prompts.of_chat(fields.messages, callable_tools.raw if callable_tools else b"[]"),
        logprobs=(fields.top_logprobs or 0) if fields.logprobs else None,
        callable_tools=callable_tools,
    )


def sampling_of(
    request: GenerationRequest,
    prompt_tokens: int,
    context_tokens: int,
    fill_tokens: int,
    vocab_size: int,
    *,
    grammar: str = "",
) -> SamplingParams:
    """Resolve what depends on the prompt's length and on the model.

    Args:
        request: what the caller asked for.
        prompt_tokens: length of the encoded prompt.
        context_tokens: most tokens of prompt and completion together.
        fill_tokens: where an absent max_tokens ends: the context, or the tenant's cap where that is less.
        vocab_size: token ids of the model are below it.
        grammar: what the answer follows; empty is none.

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
        grammar=grammar,
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


def check_token_ids(token_ids: list[int], vocab_size: int, field: str = "prompt") -> None:
    """Check a caller's own token ids.

    Raises:
        ApiError: one is not of this model.
    """
    for token_id in token_ids:
        if not 0 <= token_id < vocab_size:
            raise invalid(field, f"{token_id} is no token id, they are from 0 to {vocab_size - 1}")


def _checked(
    fields: _Fields,
    prompt: Prompt,
    *,
    logprobs: int | None,
    echo: bool = False,
    callable_tools: Tools | None = None,
) -> GenerationRequest:
    parameters.check_ranges(msgspec.structs.asdict(fields))
    if len(fields.model) > parameters.MAX_MODEL_CHARS:
        raise invalid("model", f"at most {parameters.MAX_MODEL_CHARS} characters are allowed")
    stops = (fields.stop,) if isinstance(fields.stop, str) else tuple(fields.stop)
    parameters.check_stops(stops)
    parameters.check_labels(fields.user, fields.metadata)
    parameters.check_logit_bias(fields.logit_bias)
    if len(fields.stop_token_ids) > parameters.MAX_STOP_TOKEN_IDS:
        raise invalid("stop_token_ids", f"at most {parameters.MAX_STOP_TOKEN_IDS} ids are allowed")
    options = _stream_options(fields.stream_options, fields.stream)
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
        include_usage=options.get("include_usage", False),
        padded=options.get("include_obfuscation", True),
        structure=structure.of_fields(fields.response_format, fields.structured_outputs),
        tools=callable_tools,
    )


def _stream_options(options: Mapping[str, Any] | None, stream: bool) -> dict[str, bool]:
    """Return the options that the caller set; null is as good as absent."""
    if options is None:
        return {}
    if not stream:
        raise invalid("stream_options", "it is allowed only when stream is true")
    found = parameters.supported_only(options, parameters.STREAM_OPTIONS, "stream_options.")
    for name, value in found.items():
        if not isinstance(value, bool):
            raise invalid(f"stream_options.{name}", "expected `bool`")
    return found
