"""The HTTP server of a gateway: uvicorn, with a reset for callers that do not read and a drain that ends."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from dataplane.gateway.app import Gateway
from dataplane.gateway.reply import ABORT

_BACKLOG = 4096
_KEEP_ALIVE_S = 75
_MAX_HEAD_BYTES = 64 * 1024
_AFTER_DRAIN_S = 5


class _Protocol(HttpToolsProtocol):
    """Adds the reset of a connection to the scope, and bounds to the head of a request in bytes and time."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_bytes = 0
        self._head_due = self.loop.call_later(self.timeout_keep_alive, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_due.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._head_due.cancelled():
            return
        self._head_bytes += len(data)
        if self._head_bytes > _MAX_HEAD_BYTES:
            self.transport.abort()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        # Closing a connection waits until its buffer is read, which a caller that never reads makes for ever.
        self.scope["extensions"] = {ABORT: self.transport.abort}  # type: ignore[dict-item]
        self._head_bytes = 0
        self._head_due.cancel()
        self._head_due = self.loop.call_later(self.timeout_keep_alive, self.transport.abort)

    def on_headers_complete(self) -> None:
        self._head_due.cancel()
        super().on_headers_complete()


class Server(uvicorn.Server):
    """Serves one gateway. At SIGTERM it listens no more and lets running requests finish within the drain time."""

    def __init__(self, gateway: Gateway) -> None:
        settings = gateway.settings
        super().__init__(
            uvicorn.Config(
                gateway.app,
                host=settings.host,
                port=settings.port,
                http=_Protocol,
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                backlog=_BACKLOG,
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=int(settings.drain_s) + _AFTER_DRAIN_S,
            )
        )
        self._gateway = gateway

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take the signals that end a service. Uvicorn would raise them again after a clean end."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    async def shutdown(self, sockets: list[object] | None = None) -> None:  # type: ignore[override]
        """Drain, then stop."""
        self._gateway.drain()
        await super().shutdown()
