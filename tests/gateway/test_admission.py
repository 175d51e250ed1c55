"""Limits, a full spool and a full gateway, as callers meet them over HTTP."""

import asyncio
import json

import msgspec
import pytest
import redis
import redis.asyncio
from fake_replica import DONE, Call, Gate, replies, token_event
from gateway_harness import BODY, NO_REDIS, error_of, gateway
from gateway_world import World
from ports import free_port

from dataplane.contracts.usage import Outcome
from stack.redis import Redis

pytestmark = pytest.mark.anyio


async def test_of_a_burst_of_twenty_exactly_the_ten_allowed_at_a_time_run(world: World, home, clean_redis) -> None:
    world.limit("acme", concurrent_requests=10)
    async with gateway(world, home, clean_redis) as g:
        gate = g.replicas[0].script = Gate()
        calls = [asyncio.ensure_future(g.post(BODY | {"stream": n % 2 == 0})) for n in range(20)]
        await g.replicas[0].until_called(10)
        async with asyncio.timeout(90):
            while sum(call.done() for call in calls) < 10:
                await asyncio.sleep(0.01)
        assert len(g.replicas[0].calls) == 10
        gate.opened.set()
        statuses = sorted(response.status_code for response in await asyncio.gather(*calls))
        assert statuses == [200] * 10 + [429] * 10
        assert (await g.post()).status_code == 200
        assert len(await g.records(11)) == 11, "what the gate refuses is not billed"


async def test_a_caller_that_asks_again_right_after_its_answer_finds_its_slot_free(
    world: World, home, clean_redis
) -> None:
    world.limit(world.acme_key.lookup, concurrent_requests=1)
    async with gateway(world, home, clean_redis) as g:
        settle = g.gateway.limiter.settle

        async def slowly(*args: object) -> None:
            await asyncio.sleep(0.1)
            await settle(*args)

        g.gateway.limiter.settle = slowly
        for n in range(6):
            response = await g.post(BODY | {"stream": n % 2 == 0})
            assert response.status_code == 200, n


async def test_a_429_names_the_limit_and_when_to_come_back(world: World, home, clean_redis) -> None:
    world.limit("acme", requests_per_minute=2, tokens_per_minute=10_000)
    async with gateway(world, home, clean_redis) as g:
        first = await g.post()
        assert first.headers["x-ratelimit-limit-requests"] == "2"
        assert first.headers["x-ratelimit-remaining-requests"] == "1"
        assert '"tenant-requests-per-minute";r=1' in first.headers["ratelimit"]
        await g.post()
        waits = set()
        for _ in range(5):
            response = await g.post()
            assert (response.status_code, error_of(response.content)["code"]) == (429, "requests_per_minute")
            assert error_of(response.content)["type"] == "rate_limit_error"
            assert "limit of 2 requests per minute" in error_of(response.content)["message"]
            assert response.headers["x-ratelimit-remaining-requests"] == "0"
            assert 50 <= int(response.headers["retry-after"]) <= 76
            waits.add(response.headers["retry-after-ms"])
        assert len(waits) > 1, "every caller was told the same moment"


async def test_tokens_are_settled_by_what_the_replica_counted(world: World, home, clean_redis) -> None:
    world.limit("acme", tokens_per_minute=1000)
    async with gateway(world, home, clean_redis) as g:
        for stream in (False, True):
            reserved = await g.post(BODY | {"max_tokens": 500, "stream": stream})
            left = int(reserved.headers["x-ratelimit-remaining-tokens"])
            assert left < 500
            settled = await g.post(BODY | {"max_tokens": 1})
            # 7 prompt and 3 completion tokens were used, whatever had been reserved.
            assert int(settled.headers["x-ratelimit-remaining-tokens"]) > 900


async def test_choices_are_all_reserved_streamed_and_billed(world: World, home, clean_redis) -> None:
    async def two(call: Call) -> None:
        await call.head()
        events = [token_event(1), token_event(2, choice=1, finish="length"), token_event(3, finish="stop")]
        for event in [*events, DONE]:
            await call.chunk(event)
        await call.end()

    world.limit("acme", tokens_per_minute=1000)
    async with gateway(world, home, clean_redis) as g:
        g.replicas[0].script = two
        response, data = await g.stream(n=2, max_tokens=300)
        assert int(response.headers["x-ratelimit-remaining-tokens"]) < 1000 - 2 * 300
        assert [json.loads(event)["choices"][0]["index"] for event in data[:-1]] == [0, 1, 0]
        [record] = await g.records(1)
        assert (record.completion_tokens, record.outcome) == (3, Outcome.STOP)


async def test_an_aborted_stream_pays_for_what_was_generated(world: World, home, clean_redis) -> None:
    async def some(call: Call) -> None:
        await call.head()
        await call.chunk(token_event(100, prompt_tokens=50))
        await call.gone.wait()

    world.limit("acme", tokens_per_minute=1000)
    async with gateway(world, home, clean_redis) as g:
        g.replicas[0].script = some
        async with g.streaming(max_tokens=800) as response:
            await anext(response.aiter_bytes())
        await g.records(1)
        g.replicas[0].script = replies()
        left = int((await g.post(BODY | {"max_tokens": 1})).headers["x-ratelimit-remaining-tokens"])
        assert 1000 - 150 - 60 <= left <= 1000 - 150


async def test_once_streams_are_cancelled_no_slot_and_no_token_of_an_answer_is_held(
    world: World, home, clean_redis
) -> None:
    async def hangs(call: Call) -> None:
        if call.json["max_tokens"] % 2:
            await call.head()
        await call.gone.wait()

    world.limit("acme", concurrent_requests=12, tokens_per_minute=10**6)
    world.limit(world.acme_key.lookup, concurrent_requests=12)
    async with gateway(world, home, clean_redis) as g, redis.asyncio.Redis.from_url(clean_redis) as client:
        g.replicas[0].script = hangs
        calls = [asyncio.ensure_future(g.stream(max_tokens=10_000 + n % 2)) for n in range(12)]
        await g.replicas[0].until_called(12)
        for call in calls:
            call.cancel()
        await g.records(12)
        async with asyncio.timeout(90):
            while await _in_use(client):
                await asyncio.sleep(0.01)
        prompts = 12 * 100
        assert await _in_use(client, "tokens_per_minute") < prompts, (
            "only prompts, which a replica had begun to compute"
        )
        assert len(g.gateway.running) == 0
        g.replicas[0].script = Gate()
        again = [asyncio.ensure_future(g.post()) for _ in range(12)]
        await g.replicas[0].until_called(24)
        g.replicas[0].script.opened.set()
        assert [response.status_code for response in await asyncio.gather(*again)] == [200] * 12


async def _in_use(client: redis.asyncio.Redis, kind: str = "concurrent_requests") -> int:
    """What Redis holds of one kind of limit, of everybody."""
    used = 0
    async for key in client.scan_iter(f"pagoda:limits:*:{kind}"):
        used += await client.zcard(key) if kind == "concurrent_requests" else sum(map(int, await client.hvals(key)))
    return used


async def test_a_request_that_could_never_pass_is_a_400_and_not_a_429(world: World, home, clean_redis) -> None:
    world.limit("acme", tokens_per_minute=100, max_request_tokens=80)
    async with gateway(world, home, clean_redis) as g:
        response = await g.post(BODY | {"max_tokens": 90})
        assert (response.status_code, error_of(response.content)["code"]) == (400, "max_request_tokens")
        assert "retry-after" not in response.headers


async def test_killing_and_flushing_redis_under_load_fails_no_request(world: World, home) -> None:
    world.limit("acme", requests_per_minute=100_000, tokens_per_minute=10**9, concurrent_requests=100)
    with Redis(free_port(), home / "redis.log") as server:
        async with gateway(world, home, server.url, redis_timeout_s=0.25) as g:
            stopped = asyncio.Event()
            statuses: list[int] = []

            async def load() -> None:
                while not stopped.is_set():
                    statuses.append((await g.post()).status_code)

            callers = [asyncio.ensure_future(load()) for _ in range(4)]
            for fault in (server.kill, server.start, _flush(server), server.kill):
                so_far = len(statuses)
                await asyncio.to_thread(fault)
                async with asyncio.timeout(90):
                    while len(statuses) < so_far + 20:
                        await asyncio.sleep(0.01)
            stopped.set()
            await asyncio.gather(*callers)
            assert set(statuses) == {200}
            assert len(await g.records(len(statuses))) == len(statuses)


def _flush(server: Redis):
    def flush() -> None:
        with redis.Redis.from_url(server.url) as client:
            client.flushall()

    return flush


async def test_a_full_spool_stops_admission_and_loses_nothing(world: World, home) -> None:
    async with gateway(world, home, NO_REDIS, max_spool_bytes=20_000) as g:
        g.outside.away = True
        statuses = []
        for _ in range(400):
            response = await g.post()
            statuses.append(response.status_code)
            if response.status_code != 200:
                assert error_of(response.content)["code"] == "spool_full"
                assert "retry-after" in response.headers
                break
        assert statuses[-1] == 503
        g.outside.away = False
        accepted = statuses.count(200)
        assert len(await g.records(accepted)) == accepted


async def test_a_paused_model_says_so(world: World, home) -> None:
    world.deployments["chat"] = msgspec.structs.replace(world.deployments["chat"], active=False)
    async with gateway(world, home, NO_REDIS) as g:
        response = await g.post()
        assert (response.status_code, error_of(response.content)["code"]) == (503, "model_paused")


async def test_more_than_the_process_can_hold_is_refused_as_our_lack_of_capacity(world: World, home) -> None:
    async with gateway(world, home, NO_REDIS, max_running=1) as g:
        gate = g.replicas[0].script = Gate()
        first = asyncio.ensure_future(g.post())
        await g.replicas[0].until_called(1)
        response = await g.post()
        assert (response.status_code, error_of(response.content)["code"]) == (503, "overloaded")
        gate.opened.set()
        assert (await first).status_code == 200
