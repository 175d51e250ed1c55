"""One HTTP exchange over ASGI: a bounded body in, a response out, and a watch on the client."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from dataplane.contracts.errors import ApiError, Code
from dataplane.http_server.asgi import ClientGone, Receive, Scope, Send, gone, read_body
from dataplane.worker import bodies


class Exchange:
    """One request and its response over ASGI, with what has been sent so far.

    Args:
        scope, receive, send: ASGI's.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.started = False
        self._receive = receive
        self._send = send

    async def body(self) -> bytes:
        """Return the whole body.

        Raises:
            ApiError: not JSON by its declared type, or not to be had; see :func:`.read_body`.
            ClientGone: it never came to its end.
        """
        sent: dict[bytes, bytes] = dict(self.scope["headers"])
        media_type = sent.get(b"content-type", b"").split(b";")[0].strip().lower()
        if media_type != b"application/json":
            raise ApiError(Code.INVALID_REQUEST, "the content-type must be application/json")
        return await read_body(self.scope, self._receive, bodies.MAX_BODY_BYTES)

    async def disconnected(self) -> None:
        """Return when the client closes its connection."""
        await gone(self._receive)

    async def start(self, status: int, fields: dict[str, str]) -> None:
        """Send the head of the response."""
        self.started = True
        pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": pairs})

    async def write(self, body: bytes, *, more: bool = True) -> None:
        """Send a part of the body; waits while the client does not read, as long as the server bears it."""
        await self._send({"type": "http.response.body", "body": body, "more_body": more})

    async def whole(self, status: int, body: bytes, fields: dict[str, str]) -> None:
        """Send a complete JSON response."""
        length = {"content-type": "application/json", "content-length": str(len(body))}
        await self.start(status, length | fields)
        await self.write(body, more=False)


async def until_gone(exchange: Exchange, work: Coroutine[Any, Any, None]) -> None:
    """Run ``work``; cancel it when the client closes its connection.

    Raises:
        ClientGone: it did.
    """
    working = asyncio.create_task(work)
    watching = asyncio.create_task(exchange.disconnected())
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        left = not working.done()
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)
    if left:
        raise ClientGone
    working.result()
