"""Doors, and what happens to running requests at the end."""

import asyncio
import os
import signal
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest

from dataplane.http_server.asgi import Receive, Scope, Send
from dataplane.http_server.server import ListenError, on_end_signals, open_path, open_port, serving

pytestmark = pytest.mark.anyio


async def hello(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
    await send({"type": "http.response.body", "body": b"hello"})


class Slow:
    """Answers once it is told to; ``begun`` is set when it is asked."""

    def __init__(self) -> None:
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.begun.set()
        await self.go_on.wait()
        await hello(scope, receive, send)


def client(door: socket.socket) -> httpx.AsyncClient:
    if door.family == socket.AF_UNIX:
        transport = httpx.AsyncHTTPTransport(uds=door.getsockname())
        return httpx.AsyncClient(base_url="http://x", transport=transport, timeout=30)
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{door.getsockname()[1]}", trust_env=False, timeout=30)


async def test_one_application_answers_at_every_door_and_at_none_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "door"
    with open_port("127.0.0.1", 0) as port, open_path(path) as unix:
        assert path.stat().st_mode & 0o777 == 0o600
        async with client(port) as by_port, client(unix) as by_path:
            async with serving(hello, [port, unix], graceful_s=1):
                assert [(await to.get("/")).text for to in (by_port, by_path)] == ["hello", "hello"]
            for to in (by_port, by_path):
                with pytest.raises(httpx.TransportError):
                    await to.get("/")
    assert not path.exists()


def test_an_address_that_is_taken_or_impossible_is_named(tmp_path: Path) -> None:
    with open_port("127.0.0.1", 0) as door, pytest.raises(ListenError, match=str(door.getsockname()[1])):
        open_port("127.0.0.1", door.getsockname()[1])
    with pytest.raises(ListenError, match="no/such"), open_path(tmp_path / "no/such/folder"):
        pass


def test_a_path_left_by_a_crash_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "door"
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))
    left.close()
    with open_path(path):
        assert path.exists()


async def test_a_running_request_is_answered_before_the_end() -> None:
    app = Slow()
    with open_port("127.0.0.1", 0) as door:
        async with client(door) as caller:
            async with serving(app, [door], graceful_s=30):
                answer = asyncio.create_task(caller.get("/"))
                await app.begun.wait()
                asyncio.get_running_loop().call_later(0.05, app.go_on.set)
            assert (await answer).text == "hello"


async def test_where_nothing_is_left_to_them_running_requests_do_not_hold_the_end() -> None:
    app = Slow()
    with open_port("127.0.0.1", 0) as door:
        async with client(door) as caller:
            async with asyncio.timeout(20), serving(app, [door], graceful_s=0):
                answer = asyncio.create_task(caller.get("/"))
                await app.begun.wait()
            assert not answer.done()
            app.go_on.set()
            await asyncio.gather(answer, return_exceptions=True)


async def test_every_signal_that_ends_a_process_is_handed_over_on_the_loop() -> None:
    handed: list[Any] = []
    seen = asyncio.Event()

    def handle() -> None:
        handed.append(asyncio.get_running_loop())
        if len(handed) == 2:
            seen.set()

    on_end_signals(handle)
    try:
        async with asyncio.timeout(20):
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)
            await seen.wait()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(number)
