"""A replica as the gateway sees one: HTTP on a Unix socket, byte for byte as a script says."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self


@dataclass
class Call:
    """One request that reached the replica. ``gone`` is set when the gateway hung up."""

    path: str
    headers: dict[str, str]
    body: bytes
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.body)

    async def head(self, status: int = 200, content_type: str = "text/event-stream", length: int | None = None) -> None:
        framing = "transfer-encoding: chunked" if length is None else f"content-length: {length}"
        self.writer.write(f"HTTP/1.1 {status} OK\r\ncontent-type: {content_type}\r\n{framing}\r\n\r\n".encode())
        await self.writer.drain()

    async def chunk(self, data: bytes) -> None:
        self.writer.write(b"%x\r\n%s\r\n" % (len(data), data))
        await self.writer.drain()

    async def end(self) -> None:
        self.writer.write(b"0\r\n\r\n")
        await self.writer.drain()

    async def whole(self, status: int, body: bytes) -> None:
        await self.head(status, "application/json", len(body))
        self.writer.write(body)
        await self.writer.drain()

    def die(self) -> None:
        self.writer.transport.abort()


Script = Callable[[Call], Awaitable[None]]


def token_event(
    index: int, text: str = "x", finish: str | None = None, prompt_tokens: int = 7, choice: int = 0
) -> bytes:
    """Return the event of the ``index``-th token (from 1), with its meter line."""
    chunk = {
        "id": "c",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "chat",
        "choices": [{"index": choice, "delta": {"content": text}, "finish_reason": finish}],
        "obfuscation": "noise",
    }
    return f": t={index} p={prompt_tokens} c=2\ndata: {json.dumps(chunk)}\n\n".encode()


DONE = b"data: [DONE]\n\n"


def answer(tokens: int, text: str = "x", finish: str = "stop") -> bytes:
    return json.dumps(
        {
            "id": "c",
            "object": "chat.completion",
            "created": 1,
            "model": "chat",
            "choices": [
                {"index": 0, "message": {"role": "assistant", "content": text * tokens}, "finish_reason": finish}
            ],
            "usage": {"prompt_tokens": 7, "completion_tokens": tokens, "total_tokens": 7 + tokens},
        }
    ).encode()


def replies(tokens: int = 3, finish: str = "stop") -> Script:
    """Answer properly, streamed or whole as asked."""

    async def script(call: Call) -> None:
        if not call.json.get("stream"):
            await call.whole(200, answer(tokens, finish=finish))
            return
        await call.head()
        for index in range(1, tokens + 1):
            await call.chunk(token_event(index, finish=finish if index == tokens else None))
        await call.chunk(DONE)
        await call.end()

    return script


def pieces(*data: bytes, then: str = "end") -> Script:
    """Send the bytes as chunks of a stream, then ``end`` it, ``die``, or ``hang`` until the gateway hangs up."""

    async def script(call: Call) -> None:
        await call.head()
        for piece in data:
            await call.chunk(piece)
        if then == "end":
            await call.end()
        elif then == "die":
            call.die()
        else:
            await call.gone.wait()

    return script


def refuses(status: int, code: str) -> Script:
    body = json.dumps({"error": {"message": f"no: {code}", "type": "t", "code": code}}).encode()

    async def script(call: Call) -> None:
        await call.whole(status, body)

    return script


async def dies(call: Call) -> None:
    call.die()


class Gate:
    """A replica script that answers only once it is opened."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()

    async def __call__(self, call: Call) -> None:
        opened = asyncio.ensure_future(self.opened.wait())
        gone = asyncio.ensure_future(call.gone.wait())
        await asyncio.wait({opened, gone}, return_when=asyncio.FIRST_COMPLETED)
        opened.cancel()
        gone.cancel()
        if self.opened.is_set():
            await replies()(call)


class FakeReplica:
    """Listens on ``socket``; ``script`` may be changed between calls; ``calls`` are all that came."""

    def __init__(self, socket: Path, script: Script | None = None) -> None:
        self.socket = str(socket)
        self.script = script or replies()
        self.calls: list[Call] = []
        self.called = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_unix_server(self._serve, self.socket, backlog=512)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop()
        for writer in list(self._writers):
            writer.transport.abort()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def stop(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()

    async def until_called(self, times: int) -> None:
        async with asyncio.timeout(90), self.called:
            await self.called.wait_for(lambda: len(self.calls) >= times)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            await self._one(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()
            self._tasks.discard(task)
            self._writers.discard(writer)

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in head[1:] if line)
        body = await reader.readexactly(int(headers["content-length"]))
        call = Call(head[0].split(" ")[1], headers, body, reader, writer)
        async with self.called:
            self.calls.append(call)
            self.called.notify_all()
        script = asyncio.ensure_future(self.script(call))
        # The gateway sends nothing after its request, so whatever the read returns means that it hung up.
        gone = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait({script, gone}, return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                call.gone.set()
            await script
            await gone
            call.gone.set()
        finally:
            script.cancel()
            gone.cancel()
            await asyncio.gather(script, gone, return_exceptions=True)
