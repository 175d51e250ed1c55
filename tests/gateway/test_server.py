"""Connections that are no requests: heads without end in bytes or in time."""

import asyncio

import httpx
import pytest
from gateway_harness import NO_REDIS, Harness, gateway
from gateway_world import World

from dataplane.http_server import protocol

pytestmark = pytest.mark.anyio


async def _reset_after(g: Harness, *pieces: bytes) -> bool:
    """Send pieces on a connection of their own; say whether the gateway hung up without an answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(g.url).port)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        async with asyncio.timeout(90):
            return await reader.read(1) == b""
    except ConnectionError:
        return True
    finally:
        writer.transport.abort()


async def test_a_connection_that_says_nothing_or_never_ends_its_head_is_closed(
    world: World, home, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gateway(world, home, NO_REDIS) as g:
        assert not await _reset_after(g, b"GET /health HTTP/1.1\r\nhost: g\r\n\r\n")
        monkeypatch.setattr(protocol, "HEAD_TIMEOUT_S", 0.3)
        assert await _reset_after(g)
        assert await _reset_after(g, b"GET /health HTTP/1.1\r\nhost: g\r\nx: ")


async def test_a_head_without_end_is_not_held_in_memory(world: World, home) -> None:
    async with gateway(world, home, NO_REDIS) as g:
        flood = (b"x-%d: " % n + b"y" * 10_000 + b"\r\n" for n in range(1000))
        assert await _reset_after(g, b"GET /health HTTP/1.1\r\nhost: g\r\n", *flood)


async def test_a_large_body_is_not_taken_for_a_large_head(world: World, home) -> None:
    async with gateway(world, home, NO_REDIS) as g:
        body = b'{"model":"chat","messages":[{"role":"user","content":"' + b"x" * 1_000_000 + b'"}],"max_tokens":1}'
        for _ in range(2):
            assert (await g.post(body)).status_code == 200
