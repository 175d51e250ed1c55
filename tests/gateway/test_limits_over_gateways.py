"""One limit, several gateway processes, callers that always ask: never more than it, and within 1 % of it."""

import asyncio
import json
import os
import random
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from limit_counts import counted

from dataplane.gateway.windows import BUCKET_MS, WINDOW_MS, Kind, Window

pytestmark = pytest.mark.anyio

_PROCESS = str(Path(__file__).with_name("limiter_process.py"))
LARGEST_TOKENS = 90
LEAVES_MS = WINDOW_MS + BUCKET_MS
"""When what was counted at the beginning of a bucket counts no more."""


class Gateways:
    """Limiter processes that do what they are told all at once, and the callers spread over them."""

    def __init__(self, children: list[asyncio.subprocess.Process], callers: int, tenant_id: str) -> None:
        self.children = children
        self.running = [0] * len(children)
        self.tenant_id = tenant_id
        self._callers = [callers // len(children) + (n < callers % len(children)) for n in range(len(children))]
        self._random = random.Random(7)

    async def ask(self, now_ms: int, most_calls: int = 1) -> tuple[list[int], int]:
        """Have every caller ask until it is refused or has asked ``most_calls`` times.

        Returns:
            The tokens of each call that passed, and how many callers were refused.
        """
        orders = [
            {"do": "ask", "now_ms": now_ms, "callers": [self._amounts(most_calls) for _ in range(callers)]}
            for callers in self._callers
        ]
        answers = await self._tell(orders)
        for number, answer in enumerate(answers):
            self.running[number] += len(answer["passed"])
        passed = [tokens for answer in answers for tokens in answer["passed"]]
        return passed, sum(answer["refused"] for answer in answers)

    async def settle(self, now_ms: int, *, unused: bool = False) -> list[tuple[int, int]]:
        """End everything; return each bucket with what its tokens are to be corrected by."""
        used = [[0 if unused else self._random.randint(0, 9) for _ in range(count)] for count in self.running]
        answers = await self._tell([{"do": "settle", "now_ms": now_ms, "used": each} for each in used])
        self.running = [0] * len(self.children)
        return [
            (bucket, tokens - reserved)
            for answer, each in zip(answers, used, strict=True)
            for (bucket, reserved), tokens in zip(answer["settled"], each, strict=True)
        ]

    def _amounts(self, count: int) -> list[int]:
        return [self._random.randint(10, LARGEST_TOKENS) for _ in range(count)]

    async def _tell(self, orders: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for child, order in zip(self.children, orders, strict=True):
            assert child.stdin is not None
            child.stdin.write(json.dumps(order).encode() + b"\n")
        async with asyncio.timeout(90):
            return [await self._answer(child) for child in self.children]

    @staticmethod
    async def _answer(child: asyncio.subprocess.Process) -> dict[str, Any]:
        assert child.stdout is not None
        line = await child.stdout.readline()
        assert line, "a limiter ended"
        return json.loads(line)


@asynccontextmanager
async def gateways(redis_url: str, count: int, callers: int, **limits_: int) -> AsyncIterator[Gateways]:
    tenant_id = f"ten_{secrets.token_hex(8)}"
    children = []
    for number in range(count):
        config = {"redis_url": redis_url, "gateway_id": f"g{number}", "tenant_id": tenant_id, "limits": limits_}
        children.append(
            await asyncio.create_subprocess_exec(
                sys.executable, _PROCESS, json.dumps(config), stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}, limit=2**22,
            )
        )  # fmt: skip
    try:
        yield Gateways(children, callers, tenant_id)
    finally:
        for child in children:
            child.kill()
        for child in children:
            await child.wait()


SMALL = pytest.param(2, 6, 60, 5_500, id="2 gateways")
LARGE = pytest.param(8, 50, 600, 500, id="8 gateways", marks=pytest.mark.slow)


@pytest.mark.parametrize(("count", "callers", "limit", "tick_ms"), [SMALL, LARGE])
async def test_accepted_requests_are_within_one_percent_of_the_limit(
    clean_redis: str, count: int, callers: int, limit: int, tick_ms: int
) -> None:
    windows = 3
    async with gateways(clean_redis, count, callers, requests_per_minute=limit) as made:
        mirror, accepted = Window(), 0
        for now_ms in range(0, windows * LEAVES_MS, tick_ms):
            passed, refused = await made.ask(now_ms)
            for _ in passed:
                mirror.add(now_ms, 1)
            assert mirror.used(now_ms) <= limit
            if refused:
                assert mirror.used(now_ms) == limit, "some were refused what was free"
            accepted += len(passed)
            await made.settle(now_ms)
        assert accepted == limit * windows
        assert accepted >= 0.99 * limit * windows * LEAVES_MS / 60_000


@pytest.mark.parametrize(("count", "callers", "limit", "tick_ms"), [SMALL, LARGE])
async def test_accepted_tokens_are_within_one_reservation_of_the_limit_also_as_settlements_give_back(
    clean_redis: str, count: int, callers: int, limit: int, tick_ms: int
) -> None:
    limit *= 20
    async with gateways(clean_redis, count, callers, tokens_per_minute=limit) as made:
        mirror = Window()
        for now_ms in range(0, LEAVES_MS, 2 * tick_ms):
            passed, refused = await made.ask(now_ms, most_calls=-(-limit // callers // 10))
            for tokens in passed:
                mirror.add(now_ms, tokens)
            assert refused == callers
            assert limit - LARGEST_TOKENS < mirror.used(now_ms) <= limit
            for bucket, change in await made.settle(now_ms + tick_ms):
                mirror.correct(now_ms + tick_ms, bucket, change)
            assert counted(clean_redis, made.tenant_id)[Kind.TOKENS] == mirror.used(now_ms + tick_ms)


@pytest.mark.slow
async def test_of_twenty_calls_at_once_exactly_the_ten_allowed_pass_and_once_cancelled_every_counter_is_zero(
    clean_redis: str,
) -> None:
    async with gateways(clean_redis, 8, 20, tokens_per_minute=10**6, concurrent_requests=10) as made:
        for now_ms in (0, 100, 200):
            passed, refused = await made.ask(now_ms)
            assert (len(passed), refused) == (10, 10)
            assert counted(clean_redis, made.tenant_id)[Kind.CONCURRENT] == 10
            assert await made.ask(now_ms) == ([], 20)
            await made.settle(now_ms, unused=True)
            assert counted(clean_redis, made.tenant_id) == dict.fromkeys(Kind, 0)
