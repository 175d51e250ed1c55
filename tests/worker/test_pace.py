"""Paced answers on a clock that moves only when nobody has anything left to do."""

import asyncio
import heapq
import itertools
import json
import time
from collections.abc import AsyncIterator
from contextlib import aclosing

import httpx
import pytest
from worker_process import WorkerProcess

from dataplane.contracts import headers
from dataplane.worker.pace import paced

pytestmark = pytest.mark.anyio
_TURNS = 20
"""Of the loop, after which whoever can go on has done so."""


class VirtualTime:
    def __init__(self) -> None:
        self.now_s = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Event]] = []
        self._order = itertools.count()
        self._moving = asyncio.create_task(self._move())

    def clock(self) -> float:
        return self.now_s

    async def sleep(self, duration_s: float) -> None:
        woken = asyncio.Event()
        heapq.heappush(self._sleepers, (self.now_s + duration_s, next(self._order), woken))
        await woken.wait()

    async def _move(self) -> None:
        while True:
            for _ in range(_TURNS):
                await asyncio.sleep(0)
            if self._sleepers:
                at_s, _, woken = heapq.heappop(self._sleepers)
                self.now_s = max(self.now_s, at_s)
                woken.set()

    def end(self) -> None:
        self._moving.cancel()


class Batch:
    """Tokens that come at given times, and may end with an error."""

    def __init__(self, time: VirtualTime, times_s: list[float], error: Exception | None = None) -> None:
        self.ended = False
        self._time = time
        self._times_s = times_s
        self._error = error

    async def tokens(self) -> AsyncIterator[int]:
        try:
            for number, at_s in enumerate(self._times_s):
                if at_s > self._time.now_s:
                    await self._time.sleep(at_s - self._time.now_s)
                yield number
            if self._error is not None:
                raise self._error
        finally:
            self.ended = True


async def told(
    times_s: list[float], *, pace_s: float = 1.0, width: int = 1, error: Exception | None = None
) -> tuple[list[tuple[int, float]], Exception | None]:
    """What comes out when, to a tenth of a tick, and what it ends with."""
    time, out, raised = VirtualTime(), [], None
    stream = paced(
        Batch(time, times_s, error).tokens(), pace_s, width=width, clock=time.clock, sleep=time.sleep
    )  # fmt: skip
    try:
        async for token in stream:
            out.append((token, round(time.now_s / pace_s, 1)))
    except RuntimeError as caught:
        raised = caught
    time.end()
    return out, raised


async def test_tokens_of_a_fast_and_of_a_slowed_batch_come_at_the_same_times() -> None:
    alone = await told([0.1 * token for token in range(8)])
    beside = await told([0.1 + 0.25 * token for token in range(8)])
    assert alone == beside == ([(token, token + 1.0) for token in range(8)], None)


async def test_nothing_is_lost_when_the_engine_ends_long_before_the_last_tick() -> None:
    out, raised = await told([0.0] * 50, pace_s=0.02)
    assert [token for token, _ in out] == list(range(50))
    assert out[-1] == (49, 50.0)
    assert raised is None


async def test_a_token_that_comes_late_waits_for_the_next_tick_and_no_longer() -> None:
    out, _ = await told([0.5, 7.25, 7.5, 20.0])
    assert out == [(0, 1.0), (1, 8.0), (2, 9.0), (3, 21.0)]


async def test_the_choices_of_a_request_share_a_tick() -> None:
    out, _ = await told([0.1, 0.1, 0.2, 0.2, 0.3], width=2)
    assert out == [(0, 1.0), (1, 1.0), (2, 2.0), (3, 2.0), (4, 3.0)]


async def test_an_error_does_not_wait_for_the_pace() -> None:
    out, raised = await told([0.0] * 5, error=RuntimeError("the replica is gone"))
    assert out == [(token, 1.0) for token in range(5)]
    assert str(raised) == "the replica is gone"


async def test_without_tokens_there_is_nothing_to_wait_for() -> None:
    assert await told([]) == ([], None)


async def test_who_leaves_takes_the_stream_with_it() -> None:
    time = VirtualTime()
    batch = Batch(time, [0.0, 0.0, 1000.0])
    async with aclosing(paced(batch.tokens(), 1.0, clock=time.clock, sleep=time.sleep)) as stream:
        assert await anext(stream) == 0
        assert not batch.ended
    assert batch.ended
    time.end()


async def test_who_is_cancelled_while_it_waits_for_a_tick_takes_the_stream_with_it() -> None:
    time = VirtualTime()
    batch = Batch(time, [0.0, 2000.0])
    stream = paced(batch.tokens(), 1000.0, clock=time.clock, sleep=asyncio.sleep)
    reading = asyncio.create_task(anext(stream))
    for _ in range(_TURNS):
        await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert batch.ended
    time.end()


@pytest.mark.parametrize("stream", [True, False])
def test_a_paced_answer_is_the_same_and_takes_its_ticks_whole_or_streamed(worker: WorkerProcess, stream: bool) -> None:
    body = {"model": "tiny", "prompt": "Once upon", "max_tokens": 6, "temperature": 0, "ignore_eos": True, "n": 2}

    def told(client: httpx.Client, pace_ms: int) -> tuple[list[str], float]:
        began_s = time.monotonic()
        fields = {headers.TENANT: "ten_a", headers.PACE_MS: str(pace_ms)}
        answer = client.post("/v1/completions", json=body | {"stream": stream}, headers=fields)
        took_s = time.monotonic() - began_s
        if not stream:
            return [choice["text"] for choice in answer.json()["choices"]], took_s
        events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
        assert events.pop() == "[DONE]"
        choices = [choice for event in events for choice in json.loads(event)["choices"]]
        return ["".join(choice["text"] for choice in choices if choice["index"] == index) for index in (0, 1)], took_s

    with worker.trusted_client() as client:
        plain, _ = told(client, 0)
        paced_texts, took_s = told(client, 50)
    assert paced_texts == plain
    assert took_s > 6 * 0.05 - 0.01
