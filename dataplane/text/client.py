"""The parent's side of the tokenizer child: asyncio, restarts, replay.

A hostile tokenizer can end its process. Then the encode call in work fails, and only that one: the next child gets the
tokens that open decode streams have seen, then the calls that were waiting. The child encodes one text at a time, so
the client sends one at a time and knows which it was.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path

import structlog

from dataplane.contracts.errors import ApiError, Code
from dataplane.contracts.generation import (
    CallFormFound,
    CloseStream,
    Decoded,
    DecodeTokens,
    EncodeChat,
    Encoded,
    EncodeText,
    FindCallForm,
    FromTokenizer,
    OpenTokenizer,
    Spelled,
    SpellTokens,
    TokenizerError,
    TokenizerOpened,
)
from dataplane.contracts.wire import FrameError, frame
from dataplane.text.grammar import CALL_FORMS, CallForm
from dataplane.text.process import TokenizerProcess

_log = structlog.get_logger(__name__)

_START_TIMEOUT_S = 60.0
_Prompt = EncodeText | EncodeChat | FindCallForm
_Answer = Encoded | CallFormFound | Decoded | Spelled
_FIRST_BACKOFF_S, _LAST_BACKOFF_S = 0.1, 5.0
_MAX_DECODE_DEATHS = 3
"""A decode call that was waiting at so many deaths of the child fails: pure Python, it is not what kills, but it must
not wait for ever."""


class _Call:
    """A call that waits for its answer.

    Raises:
        ApiError: it cannot be sent: a lone surrogate, or longer than a frame.
    """

    def __init__(self, message: _Prompt | DecodeTokens | SpellTokens) -> None:
        self.message = message
        try:
            self.frame = frame(message)
        except (FrameError, UnicodeEncodeError) as error:
            raise ApiError(Code.INVALID_PARAMETER, f"The prompt cannot be encoded: {error}") from error
        self.answer: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()
        self.deaths = 0
        self.sent_at_s: float | None = None

    def age_s(self) -> float:
        """How long the child has had it; 0 when it is not sent yet."""
        return 0.0 if self.sent_at_s is None else asyncio.get_running_loop().time() - self.sent_at_s

    def fail(self, error: ApiError) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)
            self.answer.exception()  # nobody may be waiting any more: that is no fault to log


class _Turns:
    """Calls that wait for the child: tenants take turns, so one that sends many delays another by one of them."""

    def __init__(self) -> None:
        self._lines: dict[str, deque[_Call]] = {}

    def add(self, tenant_id: str, call: _Call) -> None:
        self._lines.setdefault(tenant_id, deque()).append(call)

    def next(self) -> _Call | None:
        for tenant_id, line in self._lines.items():
            call = line.popleft()
            del self._lines[tenant_id]
            if line:
                self._lines[tenant_id] = line  # behind the others
            return call
        return None

    def clear(self) -> list[_Call]:
        waiting = [call for line in self._lines.values() for call in line]
        self._lines.clear()
        return waiting


class TokenizerClient:
    """Encodes and decodes through a child process, for one model.

    Args:
        memory_bytes: the child's limit of address space; None is the child's own default.
        call_timeout_s: after so long without an answer the child counts as hung and is killed.
    """

    def __init__(self, *, memory_bytes: int | None = None, call_timeout_s: float = 20.0) -> None:
        self._memory_bytes = memory_bytes
        self._call_timeout_s = call_timeout_s
        self._model_dir = ""
        self._child: TokenizerProcess | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._next_call = 0
        self._decoding: dict[int, _Call] = {}
        self._encoding: _Call | None = None
        self._to_encode = _Turns()
        self._streams: dict[str, list[int]] = {}
        self._call_form: CallForm | None = None
        self._spellings: dict[int, bytes] = {}
        self.restarts = 0

    @property
    def pid(self) -> int | None:
        """The child's process id, None between two children."""
        return self._child.process.pid if self._child else None

    async def start(self, model_dir: Path) -> None:
        """Start the child and open the model folder.

        Raises:
            ApiError: the tokenizer or the template cannot be loaded; the message says why.
        """
        self._model_dir = str(model_dir.resolve())
        self._child, answers = await self._spawn_opened()
        self._supervisor = asyncio.create_task(self._supervise(self._child, answers))

    async def stop(self) -> None:
        """End the child; calls that wait fail."""
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)
            self._supervisor = None
        if self._child is not None:  # the supervisor was cancelled before its first step
            await self._child.close()
            self._child = None
        self._fail_all(ApiError(Code.SHUTTING_DOWN, "The replica is shutting down."))

    async def encode_text(self, text: str, *, tenant_id: str = "", max_tokens: int | None = None) -> list[int]:
        """Return the token ids of a plain prompt; control tokens in it are text.

        Args:
            text: the prompt.
            tenant_id: whose; tenants take turns.
            max_tokens: a text that cannot fit so many tokens is refused unread.

        Raises:
            ApiError: the text cannot be encoded, or ended the child.
        """
        return await self._encode(EncodeText(call=self._new_call(), text=text, max_tokens=max_tokens), tenant_id)

    async def encode_chat(
        self, messages: bytes, *, tools: bytes = b"[]", tenant_id: str = "", max_tokens: int | None = None
    ) -> list[int]:
        """Return the token ids of a chat, opened for the assistant's answer.

        Args:
            messages: JSON of a list of :class:`dataplane.text.tokenizer.Message`.
            tools: JSON of a list of tools that the assistant may call, in OpenAI's shape.
            tenant_id: as in :meth:`encode_text`.
            max_tokens: as in :meth:`encode_text`.

        Raises:
            ApiError: no template, messages that it refuses, or a template that fails.
        """
        message = EncodeChat(call=self._new_call(), messages=messages, max_tokens=max_tokens, tools=tools)
        return await self._encode(message, tenant_id)

    async def call_form(self, *, tenant_id: str = "") -> CallForm:
        """Return in which form the model calls functions.

        Raises:
            ApiError: it cannot, or in none that we read.
        """
        if self._call_form is None:
            answer = await self._in_turn(FindCallForm(call=self._new_call()), tenant_id)
            if isinstance(answer, CallFormFound):
                self._call_form = CALL_FORMS.get(answer.form)
            if self._call_form is None:
                raise ApiError(Code.TOKENIZER_FAILED, "The model's chat template failed.")
        return self._call_form

    async def decode(self, stream: str, token_ids: list[int], *, last: bool = False) -> str:
        """Return the text that ``token_ids``, the next ones of ``stream``, make certain; ``last`` flushes and forgets.

        Raises:
            ApiError: the child died too often meanwhile.
        """
        return "".join(await self.decode_each(stream, token_ids, last=last))

    async def decode_each(self, stream: str, token_ids: list[int], *, last: bool = False) -> list[str]:
        """Return what becomes certain with each token, and behind the last token of all what is left.

        Raises:
            ApiError: as :meth:`decode`.
        """
        message = DecodeTokens(call=self._new_call(), stream=stream, token_ids=token_ids, last=last)
        call = _Call(message)
        self._streams.setdefault(stream, [])
        self._decoding[message.call] = call
        self._send(call)
        answer = await self._answered(call)
        return answer.texts if isinstance(answer, Decoded) else []

    async def spell(self, token_ids: Iterable[int]) -> Mapping[int, bytes]:
        """Return the bytes of tokens by id, of more than were asked for: what was asked once is known.

        Raises:
            ApiError: as :meth:`decode`.
        """
        unknown = [token_id for token_id in dict.fromkeys(token_ids) if token_id not in self._spellings]
        if unknown:
            message = SpellTokens(call=self._new_call(), token_ids=unknown)
            call = self._decoding[message.call] = _Call(message)
            self._send(call)
            answer = await self._answered(call)
            if isinstance(answer, Spelled):
                self._spellings.update(zip(unknown, answer.tokens, strict=True))
        return self._spellings

    def close_stream(self, stream: str) -> None:
        """Forget a stream whose rest nobody will read. An unknown one is fine."""
        if self._streams.pop(stream, None) is not None and self._child is not None:
            self._child.send(frame(CloseStream(stream=stream)))

    def _new_call(self) -> int:
        if self._supervisor is None:
            raise ApiError(Code.SHUTTING_DOWN, "The replica is not serving a model.")
        self._next_call += 1
        return self._next_call

    async def _encode(self, message: _Prompt, tenant_id: str) -> list[int]:
        answer = await self._in_turn(message, tenant_id)
        return answer.token_ids if isinstance(answer, Encoded) else []

    async def _in_turn(self, message: _Prompt, tenant_id: str) -> _Answer:
        call = _Call(message)
        self._to_encode.add(tenant_id, call)
        self._encode_next()
        return await self._answered(call)

    async def _answered(self, call: _Call) -> _Answer:
        """Wait for the answer; a child that gives none in time is killed, which restarts it."""
        while True:
            try:
                async with asyncio.timeout(self._call_timeout_s):
                    return await asyncio.shield(call.answer)
            except asyncio.CancelledError:  # the caller has gone: what is not sent yet need not be
                call.answer.cancel()
                raise
            except TimeoutError:
                pass
            if self._child is not None and call.age_s() >= self._call_timeout_s:
                _log.warning("tokenizer_hung", pid=self.pid, timeout_s=self._call_timeout_s)
                self._child.kill()

    def _send(self, call: _Call) -> None:
        if self._child is not None:  # between two children the replay sends it
            call.sent_at_s = asyncio.get_running_loop().time()
            self._child.send(call.frame)

    def _encode_next(self) -> None:
        while self._encoding is None and self._child is not None and (call := self._to_encode.next()) is not None:
            if call.answer.cancelled():
                continue
            self._encoding = call
            self._send(call)

    async def _spawn_opened(self) -> tuple[TokenizerProcess, AsyncIterator[FromTokenizer]]:
        child = await TokenizerProcess.spawn(self._memory_bytes)
        try:
            return child, await self._open(child)
        except BaseException:
            await child.close()
            raise

    async def _open(self, child: TokenizerProcess) -> AsyncIterator[FromTokenizer]:
        """Open the model folder; return the answers that follow."""
        answers = child.messages()
        child.send(frame(OpenTokenizer(model_dir=self._model_dir)))
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                answer = await anext(answers, None)
        except TimeoutError:
            raise ApiError(Code.TOKENIZER_FAILED, "The tokenizer took too long to load.") from None
        if isinstance(answer, TokenizerError):
            raise _api_error(answer)
        if not isinstance(answer, TokenizerOpened):
            raise ApiError(Code.TOKENIZER_FAILED, "The tokenizer ended its process while it was loaded.")
        return answers

    async def _supervise(self, child: TokenizerProcess, answers: AsyncIterator[FromTokenizer]) -> None:
        while True:
            try:
                async for answer in answers:
                    self._take(answer)
            finally:
                self._child = None
                code = await child.close()
            self.restarts += 1
            _log.warning("tokenizer_died", exit_code=code, restarts=self.restarts)
            self._blame()
            child, answers = await self._reopened()
            self._child = child
            self._replay()

    async def _reopened(self) -> tuple[TokenizerProcess, AsyncIterator[FromTokenizer]]:
        backoff_s = _FIRST_BACKOFF_S
        while True:
            try:
                return await self._spawn_opened()
            except (ApiError, OSError) as error:
                _log.error("tokenizer_not_reopened", reason=str(error), backoff_s=backoff_s)
                self._fail_all(ApiError(Code.INTERNAL, "The tokenizer cannot be started again."))
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, _LAST_BACKOFF_S)

    def _take(self, answer: FromTokenizer) -> None:
        if isinstance(answer, TokenizerOpened):
            return
        call = self._encoding if self._encoding and self._encoding.message.call == answer.call else None
        if call is not None:
            self._encoding = None
            self._encode_next()
        else:
            call = self._decoding.pop(answer.call, None)
        if call is None:  # the answer to a replay
            return
        if isinstance(call.message, DecodeTokens):
            self._note(call.message)
        if isinstance(answer, TokenizerError):
            call.fail(_api_error(answer))
        elif not call.answer.done():
            call.answer.set_result(answer)

    def _note(self, message: DecodeTokens) -> None:
        """Keep what the child has seen of a stream, for its successor."""
        if message.last:
            self._streams.pop(message.stream, None)
        elif message.stream in self._streams:
            self._streams[message.stream] += message.token_ids

    def _blame(self) -> None:
        """The child is dead: fail the encode call in work, and decode calls that have seen too many deaths."""
        if self._encoding is not None:
            self._encoding.fail(ApiError(Code.TOKENIZER_FAILED, "The model's tokenizer failed on this text."))
            self._encoding = None
        for number, call in list(self._decoding.items()):
            call.deaths += 1
            if call.deaths >= _MAX_DECODE_DEATHS:
                del self._decoding[number]
                call.fail(ApiError(Code.TOKENIZER_FAILED, "The model's tokenizer failed on these tokens."))

    def _replay(self) -> None:
        """Bring a new child to where the dead one was."""
        for stream, token_ids in self._streams.items():
            if token_ids:
                self._next_call += 1
                seen = DecodeTokens(call=self._next_call, stream=stream, token_ids=token_ids)
                self._send(_Call(seen))
        for call in self._decoding.values():
            self._send(call)
        self._encode_next()

    def _fail_all(self, error: ApiError) -> None:
        waiting = [*self._decoding.values(), *self._to_encode.clear(), *([self._encoding] if self._encoding else [])]
        self._decoding.clear()
        self._encoding = None
        self._streams.clear()
        for call in waiting:
            call.fail(error)


def _api_error(error: TokenizerError) -> ApiError:
    return ApiError(Code.named(error.code, Code.TOKENIZER_FAILED), error.message)
