"""Processes killed, servers flushed and stopped, callers that leave: what the product promises holds."""

import asyncio
import os
import random
import signal
import time
from collections.abc import Callable

import pytest
import redis
from books import Books
from callers import Call, Callers
from running_stack import RunningStack, wait_for


def test_a_killed_gateway_frees_blocks_and_bills_what_it_delivered(product: RunningStack, books: Books) -> None:
    # The first: what a lost gateway has not told is settled after a minute, in which the other tests run.
    first = gateway_pid(product)

    async def scenario() -> list[Call]:
        callers = Callers(product.details)

        async def kill(call: Call) -> None:
            if len(call.texts) == 5:
                os.kill(first, signal.SIGKILL)

        call = await callers.stream(max_tokens=1000, on_text=kill)
        assert call.ended == "silence", call  # the connection broke: a TCP abort, never a clean end of file
        await callers.close()
        return callers.calls

    calls = asyncio.run(scenario())
    wait_for(lambda: gateway_pid(product) not in (first, 0), "a new gateway that serves")
    books.require_idle_pool()
    books.enter(calls)


def test_a_replica_killed_in_the_middle_of_a_stream_gives_an_error_event_and_comes_back(
    product: RunningStack, books: Books, record_property: Callable[[str, object], None]
) -> None:
    replica = product.serving_replica()
    killed_s = 0.0

    async def kill(call: Call) -> None:
        nonlocal killed_s
        if len(call.texts) == 5:
            killed_s = time.monotonic()
            os.kill(replica["pid"], signal.SIGKILL)

    async def scenario() -> list[Call]:
        callers = Callers(product.details)
        struck, beside = await asyncio.gather(
            callers.stream(max_tokens=1000, on_text=kill), callers.stream(max_tokens=1000)
        )
        record_property("seconds_to_error_event", round(time.monotonic() - killed_s, 2))
        for call in (struck, beside):
            assert (call.ended, call.error_code) == ("error", "replica_lost"), call
        product.serving_replica(other_than=replica["replica_id"])
        record_property("seconds_to_ready", round(time.monotonic() - killed_s, 2))
        after = await callers.stream(max_tokens=4)
        assert after.ended == "done", after
        await callers.close()
        return callers.calls

    calls = asyncio.run(scenario())
    books.enter(calls)
    books.require_idle_pool()


def test_a_flushed_redis_loses_nothing_and_known_keys_are_served(product: RunningStack, books: Books) -> None:
    async def scenario() -> list[Call]:
        callers = Callers(product.details)
        with redis.Redis.from_url(product.redis_url) as server:
            async with callers.load(4):
                for _ in range(5):
                    before = len(callers.calls)
                    while len(callers.calls) < before + 4:
                        await asyncio.sleep(0.05)
                    server.flushall()
        await callers.close()
        return callers.calls

    calls = asyncio.run(scenario())
    assert {call.ended for call in calls} == {"done"}, [call for call in calls if call.ended != "done"][:3]
    books.enter(calls)
    books.require_idle_pool()


@pytest.mark.parametrize("outage_s", [10, pytest.param(60, marks=pytest.mark.slow)])
def test_a_time_without_postgresql_fails_no_call_and_every_call_has_its_row_afterwards(
    product: RunningStack, books: Books, record_property: Callable[[str, object], None], outage_s: int
) -> None:
    async def scenario() -> list[Call]:
        callers = Callers(product.details)
        async with callers.load(4):
            stopped = await asyncio.to_thread(product.command, "stop", "postgres")
            assert stopped.returncode == 0, stopped.stderr
            await asyncio.sleep(outage_s)  # the fault itself lasts so long
            during = len(callers.calls)
            started = await asyncio.to_thread(product.command, "start", "postgres")
            assert started.returncode == 0, started.stderr
        record_property("calls_during_outage", during)
        await callers.close()
        return callers.calls

    calls = asyncio.run(scenario())
    assert {call.ended for call in calls} == {"done"}, [call for call in calls if call.ended != "done"][:3]
    books.enter(calls)
    books.require_idle_pool()


@pytest.mark.parametrize("num_callers", [200, pytest.param(1000, marks=pytest.mark.slow)])
def test_any_number_of_callers_that_leave_at_random_leave_no_block_behind(
    product: RunningStack, books: Books, num_callers: int
) -> None:
    draw = random.Random(7)

    async def scenario() -> list[Call]:
        callers = Callers(product.details)
        gate = asyncio.Semaphore(32)

        async def one(leave_after: int, give_up_s: float) -> None:
            async with gate:
                try:
                    await asyncio.wait_for(callers.stream(max_tokens=64, leave_after=leave_after), give_up_s)
                except TimeoutError:
                    callers.calls[-1].ended = "left"

        await asyncio.gather(*(one(draw.randint(0, 6), draw.uniform(0.01, 2.0)) for _ in range(num_callers)))
        await callers.close()
        return callers.calls

    calls = asyncio.run(scenario())
    assert sum(call.ended == "refused" for call in calls) == 0, [call for call in calls if call.ended == "refused"][:3]
    books.require_idle_pool()
    books.enter(calls)


def gateway_pid(product: RunningStack) -> int:
    """Return the gateway's process id, 0 while none serves."""
    line = next(line for line in product.command("status").stdout.splitlines() if line.startswith("gateway"))
    return int(line.split("pid ")[1].split()[0]) if " ready " in line else 0
