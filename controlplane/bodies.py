"""A bound on request bodies, before Django: it keeps a whole body on disk before any view can refuse it."""

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from controlplane.api.errors import envelope, is_api
from dataplane.contracts.ids import Kind, new_id

MAX_BODY_BYTES = 9 * 1024 * 1024
"""Above the largest that any view takes, a batch of usage records; views have closer bounds of their own."""
BODY_TIMEOUT_S = 30.0
_REFUSALS = {
    408: ("too_slow", "The body did not arrive in time."),
    413: ("body_too_large", "The body is too large."),
}

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Any, Any, Any], Awaitable[None]]


class BoundedBodies:
    """An ASGI application that refuses bodies which are too large or too slow for the one it wraps."""

    def __init__(self, application: Application) -> None:
        self._application = application

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer 413 or 408 where the body has no end in sight; else let the application answer."""
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        body = _Body(receive)
        await self._application(scope, body.receive, send)
        if body.refused:
            await _refuse(send, body.refused, for_program=is_api(scope["path"]))


class _Body:
    """The body of one request. ``refused``: the status to answer, once it went over a bound."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._size_bytes = 0
        self._complete = False
        self._due_s = asyncio.get_running_loop().time() + BODY_TIMEOUT_S
        self.refused = 0

    async def receive(self) -> Message:
        """Return the next message; that the caller has gone, where the body went over a bound."""
        if self._complete:
            return await self._receive()
        if self.refused:
            return {"type": "http.disconnect"}
        try:
            async with asyncio.timeout_at(self._due_s):
                message = await self._receive()
        except TimeoutError:
            self.refused = 408
            return {"type": "http.disconnect"}
        self._size_bytes += len(message.get("body", b""))
        self._complete = not message.get("more_body", False)
        if self._size_bytes > MAX_BODY_BYTES:
            self.refused, self._complete = 413, False
            return {"type": "http.disconnect"}
        return message


async def _refuse(send: Send, status: int, *, for_program: bool) -> None:
    code, message = _REFUSALS[status]
    kind, text = b"text/plain", message.encode()
    if for_program:
        kind, text = b"application/json", json.dumps(envelope(code, message, {}, new_id(Kind.REQUEST))).encode()
    headers = [(b"content-type", kind), (b"content-length", b"%d" % len(text)), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text})
