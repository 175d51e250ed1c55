"""uvicorn's HTTP protocol with bounds on the head of a request, and on what a caller leaves unread.

llhttp, the parser below uvicorn, leaves the size of a head to its caller, and uvicorn's keep-alive timeout begins after
the first answer. Without these bounds a stranger's one connection takes as much memory as it sends, and silent
connections stay until there are no descriptors left.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from dataplane.http_server.asgi import ABORT

MAX_HEAD_BYTES = 64 * 1024
HEAD_TIMEOUT_S = 20.0
_WRITE_BUFFER_BYTES = 32 * 1024
"""Unread bytes of an answer after which the application waits for the caller."""


class BoundedProtocol(HttpToolsProtocol):
    """Drops a connection whose next head is over :data:`MAX_HEAD_BYTES`, or not complete in :data:`HEAD_TIMEOUT_S`.

    A head is waited for from the first byte, from the connection's begin where there has been no request yet; between
    two requests uvicorn's keep-alive timeout waits. The application finds in its scope how to drop the connection.

    Args:
        patience_s: so long a caller may leave a full buffer of an answer unread, then its connection is dropped; None:
            for ever. The timer runs only while the buffer is full, since an answer is written in very many parts.
        arguments: uvicorn's.
    """

    _unread_due: asyncio.TimerHandle | None = None
    _head_due: asyncio.TimerHandle | None = None
    _head_bytes = 0
    _heads = 0
    _awaits_head = True

    def __init__(self, *, patience_s: float | None = None, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._patience_s = patience_s

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first head."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._stop_waiting()
        self._stop_counting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Feed the parser, then count what it has taken of a head that is not complete."""
        if self._awaits_head and self._head_due is None:
            # Any byte ends uvicorn's keep-alive timeout, a blank line before a head too.
            self._wait_for_head()
        still_awaited = self._awaits_head
        heads = self._heads
        super().data_received(data)
        # what came with the end of a head is its body and perhaps the next request: not to be taken for a long head
        if still_awaited and heads == self._heads:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self.transport.abort()

    def on_message_begin(self) -> None:
        """Begin to count a head."""
        super().on_message_begin()
        self.scope["extensions"] = {ABORT: self.transport.abort}  # type: ignore[dict-item]
        self._awaits_head, self._head_bytes = True, 0
        if self._head_due is None:
            self._wait_for_head()

    def on_headers_complete(self) -> None:
        """End the wait: what follows is a body, which the application bounds."""
        self._stop_waiting()
        self._awaits_head = False
        self._heads += 1
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Know that a head is what comes next."""
        super().on_message_complete()
        self._awaits_head, self._head_bytes = True, 0

    def pause_writing(self) -> None:
        """Begin to count how long the caller does not read."""
        super().pause_writing()
        self._count_unread()

    def resume_writing(self) -> None:
        """It reads."""
        self._stop_counting()
        super().resume_writing()

    def _count_unread(self) -> None:
        if self._patience_s is not None:
            self._unread_due = self.loop.call_later(self._patience_s, self._drop_unread)

    def _drop_unread(self) -> None:
        if self.cycle is None or self.cycle.response_complete:  # nobody waits for it; the next answer may
            self._count_unread()
        else:
            self.transport.abort()

    def _stop_counting(self) -> None:
        if self._unread_due is not None:
            self._unread_due.cancel()
            self._unread_due = None

    def _wait_for_head(self) -> None:
        self._head_due = self.loop.call_later(HEAD_TIMEOUT_S, self._expire)

    def _expire(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()
        else:  # a blank line after a body that is still being answered is no reason to cut the answer
            self._wait_for_head()

    def _stop_waiting(self) -> None:
        if self._head_due is not None:
            self._head_due.cancel()
            self._head_due = None
