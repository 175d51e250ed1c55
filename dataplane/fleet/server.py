"""Runs a fleet as a process: one per state folder, its HTTP door on a port of this machine, ended by a signal."""

import asyncio
import contextlib
import fcntl
import os
import signal
import socket
from collections.abc import Iterator

import structlog
import uvicorn

from dataplane.bounded_http import BoundedProtocol
from dataplane.fleet.app import make_app
from dataplane.fleet.backends import Backend
from dataplane.fleet.fleet import Fleet
from dataplane.fleet.replica import Patience
from dataplane.fleet.settings import Settings, SettingsError

_log = structlog.get_logger(__name__)


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone: they drain the fleet first, and the server goes on answering meanwhile."""
        yield


async def serve(settings: Settings, backend: Backend, patience: Patience) -> None:
    """Run until SIGTERM or SIGINT, then drain every replica and return.

    Raises:
        SettingsError: the port is taken, or another fleet runs on this state folder.
    """
    with _only_fleet(settings), _listening(settings.port) as door:
        fleet = Fleet(settings, backend, patience)
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, ended.set)
        app = make_app(fleet, settings.internal_secret)
        server = _Server(uvicorn.Config(app, http=BoundedProtocol, lifespan="off", log_config=None, access_log=False))
        serving = asyncio.create_task(server.serve(sockets=[door]))
        _log.info("fleet.started", node=fleet.journal.node, port=settings.port, pid=os.getpid())
        try:
            await fleet.run(ended)
        finally:
            server.should_exit = True
            server.force_exit = True  # a gateway's long poll must not hold the process
            await serving
        _log.info("fleet.stopped")


@contextlib.contextmanager
def _only_fleet(settings: Settings) -> Iterator[None]:
    settings.home.mkdir(parents=True, exist_ok=True, mode=0o700)
    settings.run_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (settings.home / "fleet.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise SettingsError(f"another fleet already runs on {settings.home}; stop it first.") from error
        yield


@contextlib.contextmanager
def _listening(port: int) -> Iterator[socket.socket]:
    with socket.socket() as door:
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            door.bind(("127.0.0.1", port))
        except OSError as error:
            raise SettingsError(
                f"port {port} is taken ({error.strerror}); set PAGODA_FLEET_PORT to a free one."
            ) from error
        yield door
