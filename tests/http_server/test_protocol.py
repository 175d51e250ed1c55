"""Heads without end, heads that never come, and callers that do nothing wrong."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import pytest
import uvicorn

from dataplane.http_server import protocol
from dataplane.http_server.protocol import MAX_HEAD_BYTES, BoundedProtocol

pytestmark = pytest.mark.anyio

_HEAD = b"POST / HTTP/1.1\r\nhost: x\r\n"
_ANSWERED = b"200 OK"


async def _echo(scope: Any, receive: Any, send: Any) -> None:
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


@contextlib.asynccontextmanager
async def _connected(
    app: Any = _echo, kind: Callable[..., BoundedProtocol] = BoundedProtocol
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    config = uvicorn.Config(app, http=kind, port=0, lifespan="off", log_config=None, ws="none")
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    port = server.servers[0].sockets[0].getsockname()[1]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()
        await server.shutdown()


async def _until_cut(reader: asyncio.StreamReader) -> bytes:
    """Return what came before the server ended the connection."""
    said = b""
    with contextlib.suppress(ConnectionResetError):
        while part := await asyncio.wait_for(reader.read(65536), 60):
            said += part
    return said


async def _send_until_cut(writer: asyncio.StreamWriter, part: bytes, at_most_bytes: int) -> int:
    sent = 0
    try:
        while sent < at_most_bytes:
            writer.write(part)
            await writer.drain()
            sent += len(part)
    except ConnectionError:
        pass
    return sent


@pytest.mark.parametrize(
    ("begin", "part"),
    [(_HEAD + b"x-big: ", b"a" * 65536), (_HEAD, b"x: y\r\n" * 10_000), (b"GET /", b"a" * 65536)],
    ids=["one header without end", "headers without end", "an address without end"],
)
async def test_a_head_without_end_is_cut_before_it_takes_memory(begin: bytes, part: bytes) -> None:
    async with _connected() as (reader, writer):
        writer.write(begin)
        sent = await _send_until_cut(writer, part, 64 * 1024 * 1024)
        assert sent < 32 * 1024 * 1024  # what the kernel's buffers take
        assert _ANSWERED not in await _until_cut(reader)


@pytest.mark.parametrize("begun", [b"", b"\r\n", b"GET / HT", _HEAD], ids=["nothing", "a blank line", "part", "most"])
async def test_a_head_that_does_not_come_is_not_waited_for(begun: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_TIMEOUT_S", 0.2)
    async with _connected() as (reader, writer):
        writer.write(begun)
        assert await _until_cut(reader) == b""


@pytest.mark.parametrize("begun", [b"\r\n", b"GET / HT"])
async def test_a_second_head_that_does_not_come_is_not_waited_for(
    begun: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _connected() as (reader, writer):
        writer.write(_HEAD + b"content-length: 2\r\n\r\nhi")
        assert (await reader.readuntil(b"hi")).startswith(b"HTTP/1.1 200")
        monkeypatch.setattr(protocol, "HEAD_TIMEOUT_S", 0.2)
        writer.write(begun)
        assert await _until_cut(reader) == b""


async def test_bodies_and_pipelined_requests_are_not_counted_as_heads() -> None:
    big = b"b" * (4 * MAX_HEAD_BYTES)
    async with _connected() as (reader, writer):
        request = _HEAD + b"content-length: %d\r\n\r\n" % len(big) + big
        writer.write(request * 3)
        for _ in range(3):
            assert _ANSWERED in await reader.readuntil(b"\r\n\r\n")
            assert await reader.readexactly(len(big)) == big


class _OneRead(BoundedProtocol):
    """Gets a whole request at once, as an event loop that reads much at a time may hand it over."""

    expected_bytes = 0
    _waiting = b""

    def data_received(self, data: bytes) -> None:
        self._waiting += data
        if len(self._waiting) >= self.expected_bytes:
            whole, self._waiting = self._waiting, b""
            super().data_received(whole)


async def test_a_body_that_comes_with_its_head_is_not_counted_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    big = b"b" * (2 * MAX_HEAD_BYTES)
    request = _HEAD + b"content-length: %d\r\n\r\n" % len(big) + big
    monkeypatch.setattr(_OneRead, "expected_bytes", len(request))
    async with _connected(kind=_OneRead) as (reader, writer):
        for _ in range(2):
            writer.write(request)
            assert _ANSWERED in await reader.readuntil(b"\r\n\r\n")
            assert await reader.readexactly(len(big)) == big


async def test_a_head_just_below_the_bound_is_answered() -> None:
    async with _connected() as (reader, writer):
        writer.write(_HEAD + b"x-big: " + b"a" * (MAX_HEAD_BYTES - 200) + b"\r\ncontent-length: 0\r\n\r\n")
        assert _ANSWERED in await reader.readuntil(b"\r\n\r\n")


async def test_an_answer_that_takes_long_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(10):
            await send({"type": "http.response.body", "body": b"part", "more_body": True})
            await asyncio.sleep(0.05)
        await send({"type": "http.response.body", "body": b"end"})

    async with _connected(slow) as (reader, writer):
        writer.write(_HEAD + b"content-length: 0\r\n\r\n")
        await reader.readuntil(b"part")
        monkeypatch.setattr(protocol, "HEAD_TIMEOUT_S", 0.05)
        writer.write(b"\r\n")  # some clients end a body with a blank line that belongs to nothing
        assert await asyncio.wait_for(reader.readuntil(b"end"), 60)


_UNREAD_BYTES = 16 * 1024 * 1024
"""More than all buffers on the way take."""


async def test_a_caller_that_leaves_a_full_buffer_unread_is_dropped() -> None:
    dropped = asyncio.Event()

    async def stream(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(_UNREAD_BYTES // 65536):
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass
        dropped.set()

    async with _connected(stream, partial(BoundedProtocol, patience_s=0.2)) as (reader, writer):
        writer.write(_HEAD + b"content-length: 0\r\n\r\n")
        await asyncio.wait_for(dropped.wait(), 60)
        assert not (await _until_cut(reader)).endswith(b"0\r\n\r\n")


async def test_an_answer_that_was_given_whole_is_left_to_a_caller_that_reads_late() -> None:
    answered = asyncio.Event()

    async def whole(scope: Any, receive: Any, send: Any) -> None:
        fields = [(b"content-length", b"%d" % _UNREAD_BYTES)]
        await send({"type": "http.response.start", "status": 200, "headers": fields})
        await send({"type": "http.response.body", "body": b"x" * _UNREAD_BYTES})
        answered.set()

    async with _connected(whole, partial(BoundedProtocol, patience_s=0.01)) as (reader, writer):
        writer.write(_HEAD + b"content-length: 0\r\n\r\n")
        await answered.wait()
        await asyncio.sleep(0.1)  # many times its patience
        await reader.readuntil(b"\r\n\r\n")
        assert len(await asyncio.wait_for(reader.readexactly(_UNREAD_BYTES), 60)) == _UNREAD_BYTES
