"""The HTTP side: routes, the two completion endpoints, and the ways a response can end."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import Any, NamedTuple, TypeVar

import msgspec
import structlog
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dataplane.contracts import headers
from dataplane.contracts.errors import ApiError, Code, envelope
from dataplane.contracts.generation import Submit
from dataplane.spool.writer import SpoolWriter
from dataplane.worker import answers, requests
from dataplane.worker.answer_rules import AnswerRules
from dataplane.worker.answers import AnswerWriter, Endpoint, Usage
from dataplane.worker.choice import Piece
from dataplane.worker.doors import Caller
from dataplane.worker.endpoint import JsonEndpoint
from dataplane.worker.exchange import Exchange, until_gone
from dataplane.worker.generation import Generation
from dataplane.worker.meter import Meter
from dataplane.worker.metrics import Metrics
from dataplane.worker.pace import paced
from dataplane.worker.prompts import ChatPrompt, Prompt, TextPrompt, TokenPrompt
from dataplane.worker.replica import Model, Replica
from dataplane.worker.requests import GenerationRequest
from dataplane.worker.tokenizing import DetokenizeEndpoint, TokenizeEndpoint

_PARSERS = {Endpoint.COMPLETIONS: requests.parse_completion, Endpoint.CHAT: requests.parse_chat}
_Request = TypeVar("_Request")
_SMALL_BODY_BYTES = 32 * 1024
_log = structlog.get_logger(__name__)


class CompletionEndpoint(JsonEndpoint):
    """``POST /v1/completions`` or ``/v1/chat/completions``; a client that goes away takes its sequences with it."""

    def __init__(self, worker: "Worker", endpoint: Endpoint) -> None:
        super().__init__(worker)
        self._endpoint = endpoint

    async def _answer(self, exchange: Exchange, caller: Caller) -> None:
        request = await self._worker.read(_PARSERS[self._endpoint], await exchange.body())
        with self._worker.replica.running(caller, request.model) as model:
            await until_gone(exchange, self._generate(exchange, caller, request, model))

    async def _generate(self, exchange: Exchange, caller: Caller, request: GenerationRequest, model: Model) -> None:
        worker = self._worker
        meter = worker.meter(caller, self._endpoint, request.stream)
        rules = await worker.rules.of(request, model, caller.tenant_id)
        prompt_token_ids = await worker.encode(request.prompt, model, caller.tenant_id)
        sampling = requests.sampling_of(
            request,
            prompt_tokens=len(prompt_token_ids),
            context_tokens=model.context_tokens,
            fill_tokens=worker.replica.fill_tokens(caller.tenant_id),
            vocab_size=model.vocab_size,
            grammar=rules.grammar,
        )
        submit = Submit(
            request_id=caller.sequence_id,
            tenant_id=caller.tenant_id,
            prompt_token_ids=prompt_token_ids,
            sampling=sampling,
            n=request.n,
            queue_wait_s=worker.replica.queue_wait_s if caller.queue_wait_s is None else caller.queue_wait_s,
        )
        answer = AnswerWriter(
            self._endpoint,
            caller.request_id,
            request.model,
            include_usage=request.include_usage,
            padded=request.padded,
            read_calls=rules.call_reader(request.tools),
        )
        detokenizer = worker.replica.tokenizer.detokenizer
        generation = Generation(worker.replica.engine, detokenizer, meter, submit, request.stops, echo=request.echo)
        if caller.probe:
            worker.replica.probes.check(caller.sequence_id)
        async with generation:
            told = _told(generation, meter)
            if caller.pace_s:
                told = paced(told, caller.pace_s, width=request.n)
            async with aclosing(told):
                await (_stream if request.stream else _answer_whole)(exchange, caller, told, answer)


class _Told(NamedTuple):
    """A piece of the answer, with the usage up to it: what the engine has done beyond that is told later."""

    piece: Piece
    usage: Usage
    is_last: bool


async def _told(generation: Generation, meter: Meter) -> AsyncGenerator[_Told, None]:
    async for piece in generation.pieces():
        usage = Usage(meter.prompt_tokens, generation.completion_tokens, meter.cached_tokens)
        yield _Told(piece, usage, generation.is_done())


async def _stream(exchange: Exchange, caller: Caller, told: AsyncIterator[_Told], answer: AnswerWriter) -> None:
    def metered(event: bytes) -> bytes:
        return answers.meter_line(usage) + event if event and caller.metered else event

    async for piece, usage, is_last in told:
        events = metered(answer.event(piece))
        if not exchange.started:
            # Only now is it certain that this is a success: until here a refusal is a status code of its own.
            head = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-store"}
            await exchange.start(200, head | {headers.PUBLIC_REQUEST_ID: caller.request_id})
        if is_last:
            events += metered(answer.usage_event(usage)) + metered(answers.DONE)
        if events:
            await exchange.write(events, more=not is_last)


async def _answer_whole(exchange: Exchange, caller: Caller, told: AsyncIterator[_Told], answer: AnswerWriter) -> None:
    whole = [each async for each in told]
    body = answer.whole([each.piece for each in whole], whole[-1].usage)
    await exchange.whole(200, body, {headers.PUBLIC_REQUEST_ID: caller.request_id})


class Worker:
    """What the HTTP side works with.

    Args:
        replica: the model.
        metrics: what ``/metrics`` shows.
        spool: where usage goes; None where nobody is billed.
        trust_header: internal headers count on TCP too.
    """

    def __init__(self, replica: Replica, metrics: Metrics, spool: SpoolWriter | None, *, trust_header: bool) -> None:
        self.replica = replica
        self.rules = AnswerRules(replica)
        self.metrics = metrics
        self.trust_header = trust_header
        self._spool = spool
        # One thread: with several, the loop would wait for each of them in turn to get the interpreter's lock.
        self._reading = ThreadPoolExecutor(max_workers=1, thread_name_prefix="large-bodies")

    async def read(self, parse: Callable[[bytes], _Request], body: bytes) -> _Request:
        """Read a body without holding up the streams of others: a large one beside the event loop.

        Raises:
            ApiError: it is refused.
        """
        if len(body) <= _SMALL_BODY_BYTES:
            return parse(body)
        return await asyncio.get_running_loop().run_in_executor(self._reading, parse, body)

    def meter(self, caller: Caller, endpoint: Endpoint, stream: bool) -> Meter:
        """Return the meter of one attempt; it writes records only where somebody is billed."""
        return Meter(
            caller,
            self._spool if caller.billed else None,
            self.metrics,
            endpoint=endpoint.value,
            stream=stream,
            replica_id=self.replica.replica_id,
        )

    async def encode(self, prompt: Prompt, model: Model, tenant_id: str) -> list[int]:
        """Return the prompt's token ids.

        Raises:
            ApiError: the tokenizer or the chat template refuses it, or it is empty.
        """
        tokenizer, most = self.replica.tokenizer, model.context_tokens
        match prompt:
            case TextPrompt(text):
                token_ids = await tokenizer.encode_text(text, tenant_id=tenant_id, max_tokens=most)
            case ChatPrompt(messages, tools):
                token_ids = await tokenizer.encode_chat(messages, tools=tools, tenant_id=tenant_id, max_tokens=most)
            case TokenPrompt(token_ids):
                requests.check_token_ids(token_ids, model.vocab_size)
        if not token_ids:
            raise ApiError(Code.INVALID_PARAMETER, "the prompt has no tokens; send some text", param="prompt")
        if (highest := max(token_ids)) >= model.vocab_size:
            # Only a control token can be (see Vocabulary.size), and only the model's own files write one.
            raise ApiError(Code.TEMPLATE_FAILED, f"the model's template wrote token {highest}, which it cannot read")
        return token_ids

    def app(self) -> Starlette:
        """Return the ASGI application."""
        return Starlette(
            routes=[
                Route("/v1/completions", CompletionEndpoint(self, Endpoint.COMPLETIONS), methods=["POST"]),
                Route("/v1/chat/completions", CompletionEndpoint(self, Endpoint.CHAT), methods=["POST"]),
                Route("/tokenize", TokenizeEndpoint(self), methods=["POST"]),
                Route("/detokenize", DetokenizeEndpoint(self), methods=["POST"]),
                Route("/v1/models", self._models),
                Route("/health", self._health),
                Route("/metrics", self._metrics),
            ],
            exception_handlers={HTTPException: _http_error},
        )

    async def _models(self, request: Request) -> Response:
        model = self.replica.model
        data = []
        if model is not None:
            data.append(
                {
                    "id": model.attach.served_name,
                    "object": "model",
                    "created": model.created_s,
                    "owned_by": "pagoda",
                    "max_model_len": model.context_tokens,
                }
            )
        return _json({"object": "list", "data": data})

    async def _health(self, request: Request) -> Response:
        status = self.replica.status()
        healthy = self.replica.is_healthy
        body = {
            "status": "ok" if healthy else "unhealthy",
            "state": status.state.value,
            "cause": status.cause,
            "pending": status.pending,
            "progress": status.progress,
            "stalled_s": round(self.replica.stalled_s, 3),
        }
        return _json(body, 200 if healthy else 503)

    async def _metrics(self, request: Request) -> Response:
        engine = self.replica.engine
        page = self.metrics.render(engine.load, engine.tenants, step_s=engine.step_s, model_s=engine.model_s)
        return Response(page, media_type=CONTENT_TYPE_LATEST)


def _json(body: dict[str, Any], status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status, media_type="application/json")


async def _http_error(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    if status == Code.METHOD_NOT_ALLOWED.status:
        refusal = ApiError(Code.METHOD_NOT_ALLOWED, f"{request.method} is not allowed here")
    else:
        refusal = ApiError(Code.NOT_FOUND, "there is nothing at this address; the API is under /v1")
    return Response(envelope(refusal, None), refusal.code.status, media_type="application/json")
