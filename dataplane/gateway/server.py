"""The HTTP server of a gateway: uvicorn, with a reset for callers that do not read and a drain that ends."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from dataplane.bounded_http import BoundedProtocol
from dataplane.gateway.app import Gateway
from dataplane.gateway.reply import ABORT

_BACKLOG = 4096
_KEEP_ALIVE_S = 75
_AFTER_DRAIN_S = 5


class _Protocol(BoundedProtocol):
    def on_message_begin(self) -> None:
        super().on_message_begin()
        # Closing a connection waits until its buffer is read, which a caller that never reads makes for ever.
        self.scope["extensions"] = {ABORT: self.transport.abort}  # type: ignore[dict-item]


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
