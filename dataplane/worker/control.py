"""The private control socket: framed calls of the fleet, each answered in order."""

import asyncio
import contextlib
from pathlib import Path

import structlog

from dataplane.contracts.replica import ControlCall, ReplicaState, Status
from dataplane.contracts.wire import FrameError, FrameReader, frame
from dataplane.worker.replica import Replica

_READ_BYTES = 65536
_log = structlog.get_logger(__name__)


class ControlServer:
    """Serves ``replica``'s control calls on a Unix socket that only this user may open."""

    def __init__(self, replica: Replica, path: Path) -> None:
        self._replica = replica
        self._path = path
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.told = asyncio.Event()
        """Set once somebody has heard that the replica is STOPPED, and why."""

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: the path cannot be bound.
        """
        self._path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._serve, self._path)
        self._path.chmod(0o600)

    async def stop(self) -> None:
        """Close the socket and its connections."""
        if self._server is None:
            return
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        self._path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)
        try:
            with contextlib.suppress(ConnectionError):
                await self._converse(reader, writer)
        except FrameError as error:
            _log.warning("control_frame_unreadable", error=str(error))
        finally:
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames: FrameReader[ControlCall] = FrameReader(ControlCall)
        while data := await reader.read(_READ_BYTES):
            for call in frames.feed(data):
                answer = await self._replica.answer(call)
                writer.write(frame(answer))
                if isinstance(answer, Status) and answer.state is ReplicaState.STOPPED:
                    self.told.set()
            await writer.drain()
