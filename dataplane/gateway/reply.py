"""The answer to one caller: whole, or a stream that ends in one of the three legal ways."""

import asyncio
from collections.abc import Iterable, MutableMapping
from typing import Any

from dataplane.contracts.errors import ApiError, Code, envelope
from dataplane.contracts.headers import PUBLIC_REQUEST_ID
from dataplane.gateway import rate_headers
from dataplane.gateway.limits import LimitExceeded
from dataplane.gateway.rate_headers import Header
from dataplane.http_server.asgi import Scope, Send, abort_of

_JSON: Header = (b"content-type", b"application/json")
_STREAM: tuple[Header, ...] = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
_LAST_WORDS_S = 2.0
"""How long an error event may wait for a caller that does not read, before the connection is reset instead."""


class ClientStalled(Exception):
    """The caller has read nothing for too long."""


class Reply:
    """Sends one answer.

    ``headers`` go out with whatever is answered; ``started`` says whether a byte went out, ``answered`` whether one of
    the answer itself did; ``status`` what was said; ``aborted`` whether the connection was reset instead of a proper
    end.

    Args:
        scope: ASGI's.
        send: ASGI's.
        request_id: for the header and the envelope.
        stalled_s: how long the caller may read nothing.
    """

    def __init__(self, scope: Scope, send: Send, request_id: str, stalled_s: float) -> None:
        self._abort = abort_of(scope)
        self._send = send
        self._stalled_s = stalled_s
        self._streaming = False
        self._ended = False
        self.answered = False
        self.aborted = False
        self.request_id = request_id
        self.headers: list[Header] = [(PUBLIC_REQUEST_ID.encode(), request_id.encode())]
        self.status = 0

    @property
    def started(self) -> bool:
        """Whether the caller was sent a byte."""
        return self.status != 0

    async def whole(self, status: int, body: bytes, headers: Iterable[Header] = (_JSON,)) -> None:
        """Send a whole answer.

        Raises:
            ClientStalled: the caller does not take it.
        """
        self.answered = True
        length = (b"content-length", str(len(body)).encode())
        await self._start(status, [*headers, length])
        await self._body(body, more=False)

    async def stream(self, data: bytes, *, last: bool) -> None:
        """Send a piece of a stream, the first with its head.

        Raises:
            ClientStalled: the caller does not take it.
        """
        self.answered = True
        await self._piece(data, last=last)

    async def heartbeat(self) -> None:
        """Send a sign of life that readers of streams pass over, the first with the stream's head.

        Raises:
            ClientStalled: the caller does not take it.
        """
        await self._piece(b": waiting\n\n", last=False)

    async def _piece(self, data: bytes, *, last: bool) -> None:
        if not self.started:
            self._streaming = True
            await self._start(200, _STREAM)
        await self._body(data, more=not last)

    async def refusal(self, status: int, body: bytes, headers: Iterable[Header]) -> None:
        """Pass on an error envelope: as ``status``, or as the last event of a stream that heartbeats have begun.

        Raises:
            ClientStalled: the caller does not take it.
        """
        if self.started:
            await self.stream(_event(body), last=True)
        else:
            await self.whole(status, body, headers)

    async def error(self, error: ApiError) -> None:
        """Answer with an error, whatever was sent before: a status, the error event of a stream, or a reset."""
        body = envelope(error, self.request_id)
        try:
            if not self.started:
                await self.whole(error.code.status, body, [_JSON, *error_headers(error)])
            elif not self._streaming:
                self.abort()
            elif not self._ended:
                async with asyncio.timeout(_LAST_WORDS_S):
                    await self._body(_event(body), more=False)
        except (ClientStalled, TimeoutError):
            self.abort()

    def abort(self) -> None:
        """Reset the connection, unless all was said."""
        if not self._ended:
            self._abort()
            self.aborted = True
        self._ended = True

    async def _start(self, status: int, headers: Iterable[Header]) -> None:
        self.status = status
        await self._timed({"type": "http.response.start", "status": status, "headers": [*self.headers, *headers]})

    async def _body(self, data: bytes, *, more: bool) -> None:
        await self._timed({"type": "http.response.body", "body": data, "more_body": more})
        self._ended = not more

    async def _timed(self, message: MutableMapping[str, Any]) -> None:
        try:
            async with asyncio.timeout(self._stalled_s):
                await self._send(message)
        except TimeoutError as error:
            raise ClientStalled from error


def _event(body: bytes) -> bytes:
    return b"data: " + body + b"\n\n"


def error_headers(error: ApiError) -> list[Header]:
    """Return the headers that an error brings: when to retry, the limits, how to authenticate."""
    headers = [] if error.retry_after_s is None else rate_headers.retry_after(error.retry_after_s)
    if isinstance(error, LimitExceeded):
        headers += rate_headers.of(error.gauges)
    if error.code in (Code.INVALID_API_KEY, Code.KEY_REVOKED):
        headers.append((b"www-authenticate", b"Bearer"))
    return headers
