"""The private control socket of one replica, from the fleet's side: one call, one answer, in order."""

import asyncio
import contextlib
from pathlib import Path

from dataplane.contracts.replica import ControlAnswer, ControlCall, Dump, Refused, Status
from dataplane.contracts.wire import FrameError, FrameReader, frame

_READ_BYTES = 65536


class ControlLostError(Exception):
    """The socket is not there, closed, or did not answer in time."""


class ControlRefusedError(Exception):
    """The replica's state does not allow the call."""


class ControlClient:
    """Connects on first use, and again after a loss. Calls of several tasks take turns."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._turn = asyncio.Lock()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def call(self, message: ControlCall, timeout_s: float) -> Status:
        """Send ``message`` and return the status it is answered with.

        Raises:
            ControlLostError: no answer within ``timeout_s``, or the connection broke.
            ControlRefusedError: the replica said no.
        """
        async with self._turn:
            try:
                async with asyncio.timeout(timeout_s):
                    answer = await self._exchange(message)
            except (OSError, EOFError, FrameError, TimeoutError) as error:
                # A late answer would be taken for that of the next call: the connection ends here.
                self.close()
                raise ControlLostError(str(error) or type(error).__name__) from error
            except asyncio.CancelledError:
                self.close()
                raise
        match answer:
            case Refused(code, text):
                raise ControlRefusedError(f"{code}: {text}")
            case Dump(status):
                return status
            case Status():
                return answer

    async def _exchange(self, message: ControlCall) -> ControlAnswer:
        if self._streams is None:
            self._streams = await asyncio.open_unix_connection(str(self._path))
        reader, writer = self._streams
        writer.write(frame(message))
        await writer.drain()
        frames: FrameReader[ControlAnswer] = FrameReader(ControlAnswer)
        while True:
            data = await reader.read(_READ_BYTES)
            if not data:
                raise EOFError("the replica closed its control socket")
            for answer in frames.feed(data):
                return answer

    def close(self) -> None:
        """Drop the connection."""
        if self._streams is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closing
                self._streams[1].transport.abort()
            self._streams = None
