"""The limiter on a real Redis: caps that parallel callers cannot pass, settlement, flushes and outages."""

import asyncio
import os
import secrets
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import redis
from gateway_world import World
from ports import free_port

from dataplane.contracts.catalog import Limits
from dataplane.contracts.errors import ApiError
from dataplane.gateway.limits import Limiter, LimitExceeded, Reservation, request_tokens, scopes_of
from dataplane.gateway.windows import Kind, Scope
from stack.redis import Redis

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def limiters(url: str, count: int = 1, **changes: object) -> AsyncIterator[list[Limiter]]:
    made = [
        Limiter(url, f"gateway-{n}", **({"lease_ms": 10_000, "renewal_s": 2.0, "timeout_s": 30.0} | changes))
        for n in range(count)
    ]
    try:
        yield made
    finally:
        for limiter in made:
            await limiter.close()


@pytest.fixture
def own_redis(short_dir):
    with Redis(free_port(), short_dir / "redis.log") as server:
        yield server


def scopes(tenant: Limits, key: Limits | None = None) -> tuple[Scope, ...]:
    run = secrets.token_hex(8)
    both = (Scope("tenant", f"ten_{run}", run, tenant), Scope("key", f"key_{run}", run, key or Limits()))
    return tuple(scope for scope in both if scope.limited)


async def burst(made: list[Limiter], scopes_: tuple[Scope, ...], calls: int, tokens: int = 1) -> list[Reservation]:
    """Reserve ``calls`` times at once, spread over the gateways; return what passed."""
    run = secrets.token_hex(4)
    answers = await asyncio.gather(
        *(made[n % len(made)].reserve(f"{run}-{n}", scopes_, tokens) for n in range(calls)), return_exceptions=True
    )
    for answer in answers:
        assert isinstance(answer, Reservation | LimitExceeded), answer
    return [answer for answer in answers if isinstance(answer, Reservation)]


@pytest.mark.parametrize("kind", ["requests_per_minute", "concurrent_requests"])
@pytest.mark.parametrize("gateways", [1, 8])
async def test_of_twenty_parallel_calls_exactly_the_ten_allowed_pass(clean_redis, kind: str, gateways: int) -> None:
    async with limiters(clean_redis, gateways) as made:
        assert len(await burst(made, scopes(Limits(**{kind: 10})), 20)) == 10


async def test_parallel_calls_never_reserve_more_tokens_than_a_minute_allows(clean_redis) -> None:
    async with limiters(clean_redis, 2) as made:
        passed = await burst(made, scopes(Limits(tokens_per_minute=100)), 40, tokens=7)
        assert len(passed) == 100 // 7


async def test_the_tighter_of_tenant_and_key_decides_and_is_named(clean_redis) -> None:
    both = scopes(Limits(requests_per_minute=100), Limits(requests_per_minute=2))
    async with limiters(clean_redis) as [limiter]:
        for n in range(2):
            await limiter.reserve(f"r{n}", both, 1)
        with pytest.raises(LimitExceeded) as refusal:
            await limiter.reserve("r2", both, 1)
        assert (refusal.value.refused.scope, refusal.value.refused.kind) == ("key", Kind.REQUESTS)
        assert "key's limit of 2 requests per minute" in refusal.value.message
        assert 55 < refusal.value.retry_after_s <= 60.5 * 1.25
        tenant = refusal.value.gauges[0]
        assert tenant.used == 2, "the refused request was counted against the tenant"


async def test_a_slot_is_free_again_once_its_request_is_settled(clean_redis) -> None:
    one = scopes(Limits(concurrent_requests=1))
    async with limiters(clean_redis, 2) as [here, there]:
        held = await here.reserve("r1", one, 1)
        assert not await burst([here, there], one, 2)
        await here.settle(held, 1)
        assert len(await burst([there], one, 1)) == 1


@pytest.mark.parametrize(("really", "left"), [(0, 100), (30, 70), (80, 20), (95, 5), (130, 0)])
async def test_settling_gives_back_what_was_not_used_and_charges_what_was_used_beyond(
    clean_redis, really: int, left: int
) -> None:
    limited = scopes(Limits(tokens_per_minute=100))
    async with limiters(clean_redis, 2) as [here, there]:
        await here.settle(await here.reserve("r1", limited, 80), really)
        assert not await burst([there], limited, 1, tokens=left + 1)
        if left:
            [passed] = await burst([there], limited, 1, tokens=left)
            assert passed.gauges[0].remaining == 0


async def test_without_limits_redis_is_not_asked() -> None:
    async with limiters("redis://127.0.0.1:9/0") as [limiter]:
        held = await limiter.reserve("r1", (), 10**9)
        await limiter.settle(held, 5)
        assert not limiter.redis_away


async def test_a_gateway_that_dies_gives_its_slots_back_after_a_lease(clean_redis) -> None:
    now_ms = 1_000_000
    one = scopes(Limits(concurrent_requests=1))
    async with limiters(clean_redis, 2, clock_ms=lambda: now_ms) as [dies, lives]:
        await dies.reserve("r1", one, 1)
        now_ms += 9_999
        assert not await burst([lives], one, 1)
        now_ms += 1
        assert len(await burst([lives], one, 1)) == 1


async def test_a_stream_that_runs_for_long_keeps_its_slot(clean_redis) -> None:
    now_ms = 1_000_000
    one = scopes(Limits(concurrent_requests=1))
    async with limiters(clean_redis, 2, clock_ms=lambda: now_ms) as [here, there]:
        held = await here.reserve("r1", one, 1)
        for _ in range(5):
            now_ms += 6_000
            await here.renew()
            assert not await burst([there], one, 1)
        await here.settle(held, 1)
        await here.renew()
        assert len(await burst([there], one, 1)) == 1


async def test_after_a_flush_running_requests_hold_their_slots(own_redis: Redis) -> None:
    three = scopes(Limits(concurrent_requests=3))
    async with limiters(own_redis.url, 2) as [here, there]:
        for n in range(3):
            await here.reserve(f"r{n}", three, 1)
        with redis.Redis.from_url(own_redis.url) as client:
            client.flushall()
            client.script_flush()
        assert not await burst([here], three, 5), "this gateway knows without being told"
        await here.renew()
        assert not await burst([there], three, 5), "the other learns it with the next renewal"


async def test_a_flush_does_not_give_a_second_minute(own_redis: Redis) -> None:
    limited = scopes(Limits(requests_per_minute=10, tokens_per_minute=100))
    async with limiters(own_redis.url) as [limiter]:
        assert len(await burst([limiter], limited, 20)) == 10
        with redis.Redis.from_url(own_redis.url) as client:
            client.flushall()
        assert not await burst([limiter], limited, 20)


async def test_without_redis_each_gateway_keeps_its_share_and_still_counts_it_after(own_redis: Redis) -> None:
    limited = scopes(Limits(requests_per_minute=20))
    async with limiters(own_redis.url, 2) as made:
        for limiter in made:
            await limiter.renew()
        await made[0].renew()
        own_redis.kill()
        assert len(await burst(made, limited, 60)) == 20
        assert all(limiter.redis_away for limiter in made)
        own_redis.start()
        for limiter in made:
            await limiter.renew()
        assert not any(limiter.redis_away for limiter in made)
        for limiter in made:
            passed = [len(await burst([limiter], limited, 1)) for _ in range(30)]
            assert sum(passed) <= 10, "what it let through while alone still counts"


async def test_a_call_that_waited_long_for_redis_counts_what_passed_meanwhile() -> None:
    now_ms, gave_up = 0, asyncio.Event()
    limited = scopes(Limits(requests_per_minute=10))

    async def hangs(*_: object) -> tuple[None, None]:
        await gave_up.wait()
        return None, None

    async with limiters("redis://127.0.0.1:9/0", clock_ms=lambda: now_ms) as [limiter]:
        limiter._reserve_in_redis = hangs
        late = asyncio.ensure_future(limiter.reserve("late", limited, 1))
        await asyncio.sleep(0)
        now_ms += 2_000
        limiter._away = True
        assert len(await burst([limiter], limited, 20)) == 10
        gave_up.set()
        with pytest.raises(LimitExceeded):
            await late
        assert not await burst([limiter], limited, 20)


async def test_slots_taken_while_redis_was_away_are_asserted_when_it_is_back(own_redis: Redis) -> None:
    four = scopes(Limits(concurrent_requests=4))
    async with limiters(own_redis.url, 2) as [here, there]:
        for _ in range(2):
            for limiter in (here, there):
                await limiter.renew()
        own_redis.kill()
        assert len(await burst([here], four, 9)) == 2
        own_redis.start()
        await here.renew()
        await there.renew()
        assert len(await burst([there], four, 9)) == 2


async def test_a_redis_that_hangs_costs_one_timeout_not_one_for_each_request(own_redis: Redis) -> None:
    limited = scopes(Limits(requests_per_minute=1000))
    async with limiters(own_redis.url, timeout_s=0.2) as [limiter]:
        assert len(await burst([limiter], limited, 1)) == 1
        os.kill(own_redis.pid, signal.SIGSTOP)
        try:
            assert len(await burst([limiter], limited, 1)) == 1
            assert limiter.redis_away

            async def asked(*_: object) -> None:
                raise AssertionError("Redis was asked again")

            limiter._call = asked
            assert len(await burst([limiter], limited, 200)) == 200
        finally:
            os.kill(own_redis.pid, signal.SIGCONT)


@pytest.mark.parametrize(
    ("limits", "prompt", "max_tokens", "expected"),
    [
        (Limits(), 10, 20, 30),
        (Limits(), 10, None, 100),
        (Limits(max_request_tokens=30), 10, 20, 30),
        (Limits(max_request_tokens=29), 10, 20, "limit of 29 tokens a request"),
        (Limits(max_request_tokens=50), 10, None, "limit of 50 tokens a request"),
        (Limits(tokens_per_minute=30), 10, 20, 30),
        (Limits(tokens_per_minute=29), 10, 20, "limit of 29 tokens per minute"),
        (Limits(tokens_per_minute=50), 10, None, 50),
        (Limits(tokens_per_minute=50), 50, None, "limit of 50 tokens per minute"),
        (Limits(), 500, None, 501),
    ],
)
def test_what_is_reserved_is_the_most_a_request_can_take_or_a_refusal_that_names_the_numbers(
    limits: Limits, prompt: int, max_tokens: int | None, expected: int | str
) -> None:
    world = World()
    world.limit(world.acme_key.lookup, **{name: getattr(limits, name) for name in limits.__struct_fields__})
    tenant, key = world.tenants["acme"], world.keys[world.acme_key.lookup]
    if isinstance(expected, int):
        assert request_tokens(tenant, key, prompt, max_tokens, 100) == expected
        return
    with pytest.raises(ApiError) as refusal:
        request_tokens(tenant, key, prompt, max_tokens, 100)
    assert refusal.value.code.code == "max_request_tokens"
    assert expected in refusal.value.message
    assert f"About {prompt} prompt tokens" in refusal.value.message


def test_every_choice_is_reserved_for_and_the_prompt_once() -> None:
    world = World()
    world.limit(world.acme_key.lookup, max_request_tokens=300)
    tenant, key = world.tenants["acme"], world.keys[world.acme_key.lookup]
    assert request_tokens(tenant, key, 10, 20, 100, n=4) == 10 + 4 * 20
    assert request_tokens(tenant, key, 10, None, 100, n=3) == 10 + 3 * 90
    with pytest.raises(ApiError, match="'max_tokens' of 80 for each of 4 choices"):
        request_tokens(tenant, key, 10, 80, 100, n=4)


def test_only_limited_scopes_are_asked_about() -> None:
    world = World()
    tenant, key = world.tenants["acme"], world.keys[world.acme_key.lookup]
    assert scopes_of(tenant, key) == ()
    world.limit("acme", concurrent_requests=1)
    assert [scope.name for scope in scopes_of(world.tenants["acme"], key)] == ["tenant"]
