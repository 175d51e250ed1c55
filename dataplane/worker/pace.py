"""Paced emission: an answer goes out on a fixed tick, however fast the batch lets its tokens come.

What one stream's tokens tell of others in the batch is when they come. On a tick that is slower than the engine they
come evenly, whoever else runs. The price is speed: n pieces take n ticks; no piece waits but for its turn among them.
Where the engine is slower than the tick, a tick passes in silence, and tells.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import TypeVar

_Item = TypeVar("_Item")


async def paced(
    items: AsyncIterator[_Item],
    pace_s: float,
    *,
    width: int = 1,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> AsyncGenerator[_Item, None]:
    """Yield ``items`` in order, at each tick at most ``width``; the first ``pace_s`` after it is asked for one.

    ``items`` are taken as they come, so whoever makes them is never held up. When they end with an error, those that
    are there go out at the next tick with the error behind them: it is no secret, and its reader should not wait.

    Raises:
        Exception: what ``items`` raised.
    """
    arrived: deque[_Item] = deque()
    news = asyncio.Event()

    async def take() -> None:
        async for item in items:
            arrived.append(item)
            news.set()

    started_s, tick = clock(), 0
    taking = asyncio.create_task(take())
    taking.add_done_callback(lambda _: news.set())
    try:
        while arrived or not taking.done():
            if not arrived:
                news.clear()
                await news.wait()
                continue
            # A sleep may end a little early, by the clock's grain; that must not make two ticks of one.
            tick = max(tick, math.floor((clock() - started_s) / pace_s)) + 1
            await sleep(started_s + tick * pace_s - clock())
            failed = taking.done() and taking.exception() is not None
            for _ in range(len(arrived) if failed else min(len(arrived), width)):
                yield arrived.popleft()
        taking.result()
    finally:
        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)
