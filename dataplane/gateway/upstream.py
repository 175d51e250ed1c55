"""One HTTP/1.1 exchange with a replica over its Unix socket.

A fresh connection for each attempt: over a Unix socket that costs microseconds, a request can never be lost to a
connection that was kept alive too long, and closing it is how the replica learns that the caller has gone.
"""

import asyncio
from collections.abc import Iterable
from typing import Self, cast

import httptools

from dataplane.contracts.errors import Code

_HIGH_WATER_BYTES = 256 * 1024
_CONNECT_TIMEOUT_S = 2.0


class ReplicaLost(Exception):
    """The connection broke, or never came to be, before the answer was complete.

    ``code`` is what the replica said where it only could not take the request: then nothing of it was lost.
    """

    def __init__(self, reason: str, code: str = Code.REPLICA_LOST.code) -> None:
        super().__init__(reason)
        self.code = code


class _Connection(asyncio.Protocol):
    """Parses the answer; pauses the replica while more than the high-water mark is unread."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.body = bytearray()
        self.complete = False
        self.lost: Exception | None = None
        self.changed = asyncio.Event()
        self._paused = False
        self._parser = httptools.HttpResponseParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.connection_lost(error)
            self.close()
        self.changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.complete and self.lost is None:
            self.lost = exc or ConnectionResetError("closed before the answer was complete")
        self.changed.set()

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self.body += body
        if len(self.body) > _HIGH_WATER_BYTES and not self._paused:
            self._paused = True
            self.transport.pause_reading()

    def on_message_complete(self) -> None:
        self.complete = True

    def take(self) -> bytes:
        data = bytes(self.body)
        self.body.clear()
        if self._paused and not self.transport.is_closing():
            self._paused = False
            self.transport.resume_reading()
        return data

    def close(self) -> None:
        self.transport.abort()


class Upstream:
    """An exchange under way; made by :meth:`open`. ``status`` and ``headers`` are the answer's."""

    def __init__(self, connection: _Connection, silence_s: float) -> None:
        self._connection = connection
        self._silence_s = silence_s

    @classmethod
    async def open(
        cls, socket: str, path: str, headers: Iterable[tuple[str, str]], body: bytes, silence_s: float
    ) -> Self:
        """Send a POST and wait for the head of its answer.

        Args:
            socket: path of the replica's Unix socket.
            path: the request target.
            headers: beside Host, Content-Type, Content-Length and Connection.
            body: JSON.
            silence_s: how long the replica may say nothing before it counts as lost.

        Raises:
            ReplicaLost: nothing listens there, or it hung up or fell silent first.
        """
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                _, connection = await asyncio.get_running_loop().create_unix_connection(_Connection, socket)
        except (OSError, TimeoutError) as error:
            raise ReplicaLost(f"no connection: {error}") from error
        exchange = cls(connection, silence_s)
        try:
            exchange._send(path, headers, body)
            while not connection.status:
                await exchange._wait()
        except BaseException:
            connection.close()
            raise
        return exchange

    def _send(self, path: str, headers: Iterable[tuple[str, str]], body: bytes) -> None:
        lines = [f"POST {path} HTTP/1.1", "host: replica", "content-type: application/json"]
        lines += [f"content-length: {len(body)}", "connection: close"]
        lines += [f"{name}: {value}" for name, value in headers]
        head = "\r\n".join(lines).encode("ascii") + b"\r\n\r\n"
        self._connection.transport.write(head + body)

    async def _wait(self) -> None:
        """Return when something new was heard.

        Raises:
            ReplicaLost: there was and will be nothing.
        """
        connection = self._connection
        if connection.lost is not None:
            raise ReplicaLost(str(connection.lost)) from connection.lost
        connection.changed.clear()
        try:
            async with asyncio.timeout(self._silence_s):
                await connection.changed.wait()
        except TimeoutError as error:
            raise ReplicaLost(f"silent for {self._silence_s:.0f} s") from error

    @property
    def status(self) -> int:
        """HTTP status of the answer."""
        return self._connection.status

    @property
    def headers(self) -> dict[bytes, bytes]:
        """Headers of the answer, names in lower case."""
        return self._connection.headers

    async def read(self) -> bytes:
        """Return the next piece of the answer's body; empty at its end.

        Raises:
            ReplicaLost: it ended before its end.
        """
        while not self._connection.body:
            if self._connection.complete:
                return b""
            await self._wait()
        return self._connection.take()

    async def read_all(self, max_bytes: int) -> bytes:
        """Return the rest of the body.

        Raises:
            ReplicaLost: it broke off, or is longer than ``max_bytes``.
        """
        body = bytearray()
        while piece := await self.read():
            body += piece
            if len(body) > max_bytes:
                raise ReplicaLost(f"an answer over {max_bytes} bytes")
        return bytes(body)

    def close(self) -> None:
        """Hang up at once; the replica aborts what it was doing."""
        self._connection.close()
