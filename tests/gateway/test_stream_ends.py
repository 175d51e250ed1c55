"""A stream ends in exactly one of: a finish reason and [DONE]; an error event; a TCP abort. Never a clean EOF."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from fake_replica import DONE, Call, dies, pieces, refuses, replies, token_event
from gateway_harness import BODY, NO_REDIS, Harness, error_of, gateway
from gateway_world import World

from dataplane.contracts.usage import Outcome

pytestmark = pytest.mark.anyio

BREAKS = {
    "resets after a token": pieces(token_event(1), then="die"),
    "ends cleanly without [DONE]": pieces(token_event(1)),
    "says [DONE] without a finish": pieces(token_event(1), DONE),
    "finishes, but dies before [DONE]": pieces(token_event(1), token_event(2, finish="stop"), then="die"),
    "cuts an event in two": pieces(token_event(1), b'data: {"choices"', then="die"),
    "sends an event without end": pieces(token_event(1), b"data: " + b"x" * 1_200_000, then="hang"),
    "sends a meter that does not count": pieces(token_event(1), b": t=many\ndata: {}\n\n", then="hang"),
}


@pytest.mark.parametrize("way", BREAKS)
async def test_a_replica_that_breaks_mid_stream_ends_it_with_one_error_event(world: World, home, way: str) -> None:
    async with gateway(world, home, NO_REDIS, replicas=2) as g:
        for replica in g.replicas:
            replica.script = BREAKS[way]
        response, data = await g.stream()
        assert response.status_code == 200
        assert error_of(data[-1])["code"] == "replica_lost"
        assert error_of(data[-1])["request_id"] == response.headers["x-request-id"]
        assert [json.loads(d)["choices"][0]["finish_reason"] for d in data[:-1]] == [None]
        [record] = await g.records(1)
        assert (record.outcome, record.error_code, record.completion_tokens) == (Outcome.FAILED, "replica_lost", 1)
        assert sum(len(replica.calls) for replica in g.replicas) == 1


async def closes_before_answering(call: Call) -> None:
    call.writer.close()


async def dies_after_its_head(call: Call) -> None:
    await call.head()
    call.die()


async def dies_inside_its_answer(call: Call) -> None:
    await call.head(200, "application/json", 1000)
    call.writer.write(b"{")
    await call.writer.drain()
    call.die()


@pytest.mark.parametrize(
    ("script", "stream", "code"),
    [
        (dies, True, "replica_lost"),
        (dies, False, "replica_lost"),
        (closes_before_answering, True, "replica_lost"),
        (dies_after_its_head, True, "replica_lost"),
        (dies_inside_its_answer, False, "replica_lost"),
        (refuses(503, "shutting_down"), True, "shutting_down"),
        (refuses(503, "shutting_down"), False, "shutting_down"),
        (refuses(502, "replica_lost"), True, "replica_lost"),
        (refuses(502, "replica_lost"), False, "replica_lost"),
    ],
)
async def test_a_replica_that_breaks_before_the_first_byte_costs_the_caller_nothing(
    world: World, home, script, stream: bool, code: str
) -> None:
    async with gateway(world, home, NO_REDIS) as g:
        g.replicas[0].script = script
        answering = asyncio.ensure_future(g.post(BODY | {"stream": stream}))
        await g.replicas[0].until_called(1)
        await g.add_replica(replies(3))
        response = await answering
        assert response.status_code == 200
        first, second = await g.records(2)
        assert (first.request_id, first.attempt, first.replica_id) == (second.request_id, 1, "rep_0")
        assert (first.outcome, first.last_attempt, first.completion_tokens) == (Outcome.REDISPATCHED, False, 0)
        assert first.error_code == code
        assert (second.attempt, second.replica_id, second.outcome) == (2, "rep_1", Outcome.STOP)
        assert (second.last_attempt, second.completion_tokens) == (True, 3)


async def test_a_request_is_tried_on_two_replicas_and_no_third(world: World, home) -> None:
    async with gateway(world, home, NO_REDIS, replicas=3) as g:
        for replica in g.replicas:
            replica.script = dies
        response = await g.post()
        assert (response.status_code, error_of(response.content)["code"]) == (502, "replica_lost")
        records = await g.records(2)
        assert [record.outcome for record in records] == [Outcome.REDISPATCHED, Outcome.FAILED]
        assert sum(len(replica.calls) for replica in g.replicas) == 2


async def test_a_replica_that_nobody_listens_for_is_tried_once_and_then_passed_over(world: World, home) -> None:
    async with gateway(world, home, NO_REDIS, replicas=2) as g:
        g.replicas[0].stop()
        for _ in range(12):
            assert (await g.post()).status_code == 200
        assert len(g.replicas[1].calls) == 12
        await g.post()
        outcomes = [record.outcome for record in await g.records(13)]
        assert outcomes.count(Outcome.REDISPATCHED) <= 1


async def test_a_replica_that_falls_silent_is_lost(world: World, home) -> None:
    async with gateway(world, home, NO_REDIS, silent_replica_s=1.0) as g:
        g.replicas[0].script = pieces(token_event(1), then="hang")
        _, data = await g.stream()
        assert error_of(data[-1])["code"] == "replica_lost"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_caller_that_goes_away_is_told_to_the_replica_at_once(world: World, home, stream: bool) -> None:
    async def hangs(call: Call) -> None:
        if stream:
            await call.head()
            await call.chunk(token_event(1))
        await call.gone.wait()

    async with gateway(world, home, NO_REDIS) as g:
        g.replicas[0].script = hangs
        if stream:
            async with g.streaming() as response:
                await anext(response.aiter_bytes())
        else:
            call = asyncio.ensure_future(g.post())
            await g.replicas[0].until_called(1)
            call.cancel()
        async with asyncio.timeout(90):
            await g.replicas[0].calls[0].gone.wait()
        [record] = await g.records(1)
        assert (record.outcome, record.completion_tokens) == (Outcome.ABORTED, 1 if stream else 0)
        assert len(g.gateway.running) == 0


@asynccontextmanager
async def _open_stream(g: Harness) -> AsyncIterator[tuple[asyncio.StreamReader, int]]:
    """Ask for a stream over a connection whose buffers are small, so that not reading is soon felt."""
    reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(g.url).port, limit=1024)
    body = json.dumps(BODY | {"stream": True}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\ncontent-length: {len(body)}\r\n"
    writer.write(f"{head}authorization: Bearer {g.world.acme_key.text}\r\n\r\n".encode() + body)
    try:
        yield reader, writer.get_extra_info("sockname")[1]
    finally:
        writer.transport.abort()


async def _read_to_its_end(reader: asyncio.StreamReader) -> bytes:
    """Return what a response brings up to its last chunk; a connection that ends before raises."""
    received = bytearray()
    while not received.endswith(b"0\r\n\r\n"):
        piece = await reader.read(60_000)
        if not piece:
            raise EOFError
        received += piece
        await asyncio.sleep(0.02)
    return bytes(received)


async def floods(call: Call) -> None:
    await call.head()
    index = 0
    while not call.gone.is_set():
        index += 1
        await call.chunk(token_event(index, "x" * 10_000))


async def test_a_caller_that_never_reads_pauses_the_replica_and_is_reset_in_the_end(world: World, home) -> None:
    async with gateway(world, home, NO_REDIS, stalled_client_s=1.0) as g:
        g.replicas[0].script = floods
        async with _open_stream(g) as (reader, port):
            await g.replicas[0].until_called(1)
            async with asyncio.timeout(90):
                await g.replicas[0].calls[0].gone.wait()
            [record] = await g.records(1)
            assert record.outcome is Outcome.ABORTED
            # All between replica and caller is bounded: kernel buffers and ours, not what the replica could make.
            assert record.completion_tokens * 10_000 < 20_000_000
            async with asyncio.timeout(90):
                while port in {connection.client[1] for connection in g.server.server_state.connections}:
                    await asyncio.sleep(0.01)
            with pytest.raises((ConnectionResetError, EOFError)):
                await _read_to_its_end(reader)


async def test_a_slow_reader_is_not_mistaken_for_one_that_never_reads(world: World, home) -> None:
    script = pieces(*(token_event(i, "x" * 50_000) for i in range(1, 60)), token_event(60, finish="stop"), DONE)
    async with gateway(world, home, NO_REDIS, stalled_client_s=1.0) as g:
        g.replicas[0].script = script
        async with _open_stream(g) as (reader, _):
            assert b"[DONE]" in await _read_to_its_end(reader)
