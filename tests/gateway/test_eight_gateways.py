"""Eight whole gateways on one Redis: a tenant's limits hold over all of them together. ``make soak``."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx
import pytest
from fake_replica import FakeReplica, Gate
from gateway_harness import BODY, Harness
from gateway_process import process
from gateway_world import World
from limit_counts import counted

from dataplane.gateway.windows import Kind

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

GATEWAYS, CALLERS = 8, 50
TENANT = "ten_acme"


class Gateways:
    """Their clients; callers are spread over them."""

    def __init__(self, clients: list[httpx.AsyncClient], key: str) -> None:
        self._clients = clients
        self._headers = {"authorization": f"Bearer {key}"}

    async def call(self, caller: int, **changes: object) -> httpx.Response:
        client = self._clients[caller % len(self._clients)]
        return await client.post("/v1/chat/completions", json=BODY | changes, headers=self._headers)


@asynccontextmanager
async def gateways(world: World, home: Path, redis_url: str) -> AsyncIterator[tuple[Gateways, FakeReplica]]:
    async with AsyncExitStack() as stack:
        g = await stack.enter_async_context(Harness(world, home, redis_url))
        replica = await g.add_replica()
        clients = []
        for number in range(GATEWAYS):
            own = home / str(number)
            own.mkdir()
            _, client = await stack.enter_async_context(process(g, own / "log", home=own))
            clients.append(client)
        yield Gateways(clients, world.acme_key.text), replica


async def test_callers_that_always_ask_are_given_as_many_requests_as_the_limit(
    world: World, home: Path, clean_redis: str
) -> None:
    limit = 500
    world.limit("acme", requests_per_minute=limit)
    async with gateways(world, home, clean_redis) as (made, _):

        async def ask(caller: int) -> int:
            accepted = 0
            while (answer := await made.call(caller)).status_code == httpx.codes.OK:
                accepted += 1
            assert answer.status_code == httpx.codes.TOO_MANY_REQUESTS
            return accepted

        async with asyncio.timeout(50):  # of the minute that the limit is for
            accepted = sum(await asyncio.gather(*map(ask, range(CALLERS))))
    assert 0.99 * limit <= accepted <= limit


async def test_tokens_that_are_reserved_are_within_one_reservation_of_the_limit(
    world: World, home: Path, clean_redis: str
) -> None:
    limit, most_tokens = 20_000, 1_000
    world.limit("acme", tokens_per_minute=limit)
    async with gateways(world, home, clean_redis) as (made, replica):
        replica.script = Gate()
        calls = [asyncio.create_task(made.call(caller, max_tokens=most_tokens)) for caller in range(CALLERS)]
        passed = limit // (most_tokens + 100)
        await replica.until_called(passed)
        async with asyncio.timeout(90):
            while sum(call.done() for call in calls) + len(replica.calls) < CALLERS:
                await asyncio.sleep(0.02)
        assert Counter(call.result().status_code for call in calls if call.done()).keys() == {429}
        used = counted(clean_redis, TENANT)[Kind.TOKENS]
        assert limit - used < used / len(replica.calls)
        assert used <= limit
        for call in calls:
            call.cancel()


async def test_of_twenty_calls_at_once_exactly_the_ten_allowed_pass_and_give_back_what_they_did_not_take(
    world: World, home: Path, clean_redis: str
) -> None:
    allowed, most_tokens = 10, 1_000
    world.limit("acme", concurrent_requests=allowed, tokens_per_minute=1_000_000)
    async with gateways(world, home, clean_redis) as (made, replica):
        replica.script = Gate()
        calls = [asyncio.create_task(made.call(caller, stream=True, max_tokens=most_tokens)) for caller in range(20)]
        async with asyncio.timeout(90):
            while sum(call.done() for call in calls) + len(replica.calls) < len(calls):
                await asyncio.sleep(0.02)
        assert [call.result().status_code for call in calls if call.done()] == [429] * allowed
        assert len(replica.calls) == allowed
        held = counted(clean_redis, TENANT)
        assert held[Kind.CONCURRENT] == allowed
        prompts = held[Kind.TOKENS] - allowed * most_tokens
        assert 0 < prompts < allowed * most_tokens
        for call in calls:
            call.cancel()
        # Their prompts were computed. The rest must be back long before the window of a minute would end.
        async with asyncio.timeout(20):
            while (left := counted(clean_redis, TENANT))[Kind.CONCURRENT] or left[Kind.TOKENS] > prompts:
                await asyncio.sleep(0.05)
        assert left[Kind.TOKENS] == prompts
