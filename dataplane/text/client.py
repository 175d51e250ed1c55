"""The parent's side of the tokenizer child: asyncio, restarts, and the table with which tokens become text here.

A hostile tokenizer can end its process. Then the call in work fails, and only that one: the next child gets the calls
that were waiting. The child answers one call at a time, so the client sends one at a time and knows which it was.
What is decoded needs no child.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from pathlib import Path

import structlog

from dataplane.contracts.errors import ApiError, Code
from dataplane.contracts.generation import (
    CallFormFound,
    EncodeChat,
    Encoded,
    EncodeText,
    FindCallForm,
    FromTokenizer,
    OpenTokenizer,
    TokenizerError,
    TokenizerOpened,
)
from dataplane.contracts.wire import FrameError, frame
from dataplane.text.detokenize import Detokenizer, VocabularyRefused
from dataplane.text.grammar import CALL_FORMS, CallForm
from dataplane.text.process import TokenizerProcess

_log = structlog.get_logger(__name__)

_START_TIMEOUT_S = 60.0
_Question = EncodeText | EncodeChat | FindCallForm
_Answer = Encoded | CallFormFound
_FIRST_BACKOFF_S, _LAST_BACKOFF_S = 0.1, 5.0


class _Call:
    """A call that waits for its answer.

    Raises:
        ApiError: it cannot be sent: a lone surrogate, or longer than a frame.
    """

    def __init__(self, message: _Question) -> None:
        self.message = message
        try:
            self.frame = frame(message)
        except (FrameError, UnicodeEncodeError) as error:
            raise ApiError(Code.INVALID_PARAMETER, f"The prompt cannot be encoded: {error}") from error
        self.answer: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()
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
    """Encodes through a child process, for one model.

    Attributes:
        restarts: children that died.

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
        self._in_work: _Call | None = None
        self._waiting = _Turns()
        self._call_form: CallForm | None = None
        self._detokenizer: Detokenizer | None = None
        self.restarts = 0

    @property
    def pid(self) -> int | None:
        """The child's process id, None between two children."""
        return None if self._child is None or self._child.has_ended else self._child.process.pid

    @property
    def detokenizer(self) -> Detokenizer:
        """What turns the model's tokens into text; it is there from the start on, whatever happens to the child.

        Raises:
            ApiError: no model was opened yet.
        """
        if self._detokenizer is None:
            raise _not_serving()
        return self._detokenizer

    async def prepare(self) -> None:
        """Start the child while no model is known yet, so that it has imported its libraries when one is."""
        self._child = await TokenizerProcess.spawn(self._memory_bytes)

    async def start(self, model_dir: Path) -> None:
        """Open the model folder in the child that was prepared, or in a new one.

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

    def _new_call(self) -> int:
        if self._supervisor is None:
            raise _not_serving()
        self._next_call += 1
        return self._next_call

    async def _encode(self, message: _Question, tenant_id: str) -> list[int]:
        answer = await self._in_turn(message, tenant_id)
        return answer.token_ids if isinstance(answer, Encoded) else []

    async def _in_turn(self, message: _Question, tenant_id: str) -> _Answer:
        call = _Call(message)
        self._waiting.add(tenant_id, call)
        self._ask_next()
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

    def _ask_next(self) -> None:
        while self._in_work is None and self._child is not None and (call := self._waiting.next()) is not None:
            if call.answer.cancelled():
                continue
            self._in_work = call
            call.sent_at_s = asyncio.get_running_loop().time()
            self._child.send(call.frame)

    async def _spawn_opened(self) -> tuple[TokenizerProcess, AsyncIterator[FromTokenizer]]:
        if self._child is not None and self._child.has_ended:
            await self._child.close()
            self._child = None
        if self._child is None:
            self._child = await TokenizerProcess.spawn(self._memory_bytes)
        child, self._child = self._child, None  # nobody's call goes to it before it has the model
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
        if self._detokenizer is None:  # a child that follows another says the same again
            try:
                self._detokenizer = Detokenizer(answer.spellings)
            except VocabularyRefused as error:
                raise ApiError(Code.TOKENIZER_FAILED, f"The tokenizer cannot be used: {error}.") from error
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
            if self._in_work is not None:
                self._in_work.fail(ApiError(Code.TOKENIZER_FAILED, "The model's tokenizer failed on this text."))
                self._in_work = None
            child, answers = await self._reopened()
            self._child = child
            self._ask_next()

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
        call = self._in_work
        if call is None or isinstance(answer, TokenizerOpened) or answer.call != call.message.call:
            return
        self._in_work = None
        self._ask_next()
        if isinstance(answer, TokenizerError):
            call.fail(_api_error(answer))
        elif not call.answer.done():
            call.answer.set_result(answer)

    def _fail_all(self, error: ApiError) -> None:
        waiting = [*self._waiting.clear(), *([self._in_work] if self._in_work else [])]
        self._in_work = None
        for call in waiting:
            call.fail(error)


def _not_serving() -> ApiError:
    return ApiError(Code.SHUTTING_DOWN, "The replica is not serving a model.")


def _api_error(error: TokenizerError) -> ApiError:
    return ApiError(Code.named(error.code, Code.TOKENIZER_FAILED), error.message)
