"""A gateway as a process: it serves until SIGTERM or SIGINT, then lets what runs finish within the drain time."""

import asyncio

from dataplane.gateway.app import Gateway
from dataplane.gateway.settings import Settings
from dataplane.http_server.server import on_end_signals, open_port, serving

_AFTER_DRAIN_S = 5


async def serve(settings: Settings) -> None:
    """Run a gateway to its end.

    Raises:
        ListenError: its port is taken.
    """
    with open_port(settings.host, settings.port) as door:
        gateway = Gateway(settings)
        on_end_signals(gateway.drain)
        async with gateway.informed(), serving(gateway.app, [door], int(settings.drain_s) + _AFTER_DRAIN_S) as server:
            draining = asyncio.create_task(gateway.draining.wait())
            await asyncio.wait({server, draining}, return_when=asyncio.FIRST_COMPLETED)
            draining.cancel()
