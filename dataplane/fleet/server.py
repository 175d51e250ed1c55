"""Runs a fleet as a process: one per state folder, its HTTP door on a port of this machine, ended by a signal."""

import asyncio
import contextlib
import fcntl
import os
from collections.abc import Iterator

import structlog

from dataplane.environment import SettingsError
from dataplane.fleet.app import make_app
from dataplane.fleet.backends import Backend
from dataplane.fleet.fleet import Fleet
from dataplane.fleet.replica import Patience
from dataplane.fleet.settings import Settings
from dataplane.http_server.server import on_end_signals, open_port, serving

_log = structlog.get_logger(__name__)


async def serve(settings: Settings, backend: Backend, patience: Patience) -> None:
    """Run until SIGTERM or SIGINT, then drain every replica and return.

    Raises:
        SettingsError: another fleet runs on this state folder.
        ListenError: the port is taken.
    """
    with _only_fleet(settings), open_port("127.0.0.1", settings.port) as door:
        fleet = Fleet(settings, backend, patience)
        ended = asyncio.Event()
        on_end_signals(ended.set)
        async with serving(make_app(fleet, settings.internal_secret), [door], graceful_s=0):
            _log.info("fleet.started", node=fleet.journal.node, port=settings.port, pid=os.getpid())
            await fleet.run(ended)
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
