"""``POST /tokenize`` and ``/detokenize``, as vLLM names them: a text or a chat to token ids, and back, unbilled."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from dataplane.contracts import headers
from dataplane.contracts.errors import ApiError, Code
from dataplane.worker import bodies, logprobs, prompts, requests
from dataplane.worker.endpoint import JsonEndpoint
from dataplane.worker.parameters import invalid
from dataplane.worker.prompts import Prompt

if TYPE_CHECKING:
    from dataplane.text.detokenize import Detokenizer
    from dataplane.worker.doors import Caller
    from dataplane.worker.exchange import Exchange

_PROMPT = frozenset({"model", "prompt", "return_token_strs"})
_CHAT = frozenset({"model", "messages", "return_token_strs"})
_TOKENS = frozenset({"model", "tokens"})
_TOKENS_A_TURN = 1024


class TokenizeRequest(msgspec.Struct, frozen=True):
    """What to encode, and whether the tokens are wanted as text too."""

    model: str
    prompt: Prompt
    return_token_strs: bool


class DetokenizeRequest(msgspec.Struct, frozen=True):
    """Token ids to decode."""

    model: str
    tokens: list[int]


class _PromptFields(msgspec.Struct, frozen=True):
    model: str
    prompt: str
    return_token_strs: bool = False


class _ChatFields(msgspec.Struct, frozen=True):
    model: str
    messages: list[dict[str, Any]]
    return_token_strs: bool = False


def parse_tokenize(raw: bytes) -> TokenizeRequest:
    """Read the body of ``/tokenize``: ``prompt`` is a text, ``messages`` a chat, encoded as a completion's would be.

    Raises:
        ApiError: 400, naming the field at fault.
    """
    fields = bodies.load(raw)
    if "messages" not in fields:
        text = bodies.convert(fields, _PROMPT, _PromptFields)
        return TokenizeRequest(text.model, prompts.of_completion(text.prompt), text.return_token_strs)
    if "prompt" in fields:
        raise invalid("prompt", "it contradicts messages; give one of them")
    chat = bodies.convert(fields, _CHAT, _ChatFields)
    return TokenizeRequest(chat.model, prompts.of_chat(chat.messages), chat.return_token_strs)


def parse_detokenize(raw: bytes) -> DetokenizeRequest:
    """Read the body of ``/detokenize``. Raises as :func:`parse_tokenize`."""
    return bodies.convert(bodies.load(raw), _TOKENS, DetokenizeRequest)


class TokenizeEndpoint(JsonEndpoint):
    """``POST /tokenize``."""

    async def _answer(self, exchange: Exchange, caller: Caller) -> None:
        worker = self._worker
        request = await worker.read(parse_tokenize, await exchange.body())
        with worker.replica.running(caller, request.model) as model:
            token_ids = await worker.encode(request.prompt, model, caller.tenant_id)
            answer: dict[str, Any] = {
                "count": len(token_ids),
                "max_model_len": model.context_tokens,
                "tokens": token_ids,
            }
            if request.return_token_strs:
                spell = worker.replica.tokenizer.detokenizer.spell
                answer["token_strs"] = [logprobs.token_text(spell(token_id)) for token_id in token_ids]
            await exchange.whole(200, msgspec.json.encode(answer), {headers.PUBLIC_REQUEST_ID: caller.request_id})


class DetokenizeEndpoint(JsonEndpoint):
    """``POST /detokenize``."""

    async def _answer(self, exchange: Exchange, caller: Caller) -> None:
        worker = self._worker
        request = await worker.read(parse_detokenize, await exchange.body())
        with worker.replica.running(caller, request.model) as model:
            if len(request.tokens) > model.context_tokens:
                raise ApiError(
                    Code.CONTEXT_LENGTH_EXCEEDED,
                    f"{len(request.tokens)} tokens are more than the model's context of {model.context_tokens}",
                    param="tokens",
                )
            requests.check_token_ids(request.tokens, model.vocab_size, "tokens")
            text = await _decoded(worker.replica.tokenizer.detokenizer, request.tokens)
            answer = msgspec.json.encode({"prompt": text})
            await exchange.whole(200, answer, {headers.PUBLIC_REQUEST_ID: caller.request_id})


async def _decoded(detokenizer: Detokenizer, token_ids: list[int]) -> str:
    """Decode as many tokens as a long context has, with a turn for others in between."""
    stream = detokenizer.stream()
    texts = []
    for start in range(0, len(token_ids), _TOKENS_A_TURN):
        texts.append(stream.push(token_ids[start : start + _TOKENS_A_TURN]))
        await asyncio.sleep(0)
    return "".join([*texts, stream.push([], last=True)])
