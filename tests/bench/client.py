"""A light streaming client for OpenAI-compatible servers.

It shares the processor with what it measures, so it does as little as can be for each piece of a stream: the parser is
in C, a time is noted, and only the chunk with the usage is decoded.
"""

import asyncio
import json
import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httptools
import uvloop
from workloads import Request, Workload

from dataplane.contracts import headers

_ALL_S = 1800.0
_OK = 200


@dataclass
class Timing:
    """One call: when it was sent, when each piece of text came, when it was over; in seconds of one clock."""

    began_s: float
    pieces_s: list[float] = field(default_factory=list)
    ended_s: float = 0.0
    output_tokens: int = 0


@dataclass(frozen=True)
class Measured:
    """All calls of a workload in the order in which they began, and the client's own time of a processor.

    Of a flood those that began are here too; some were refused, or had not ended when all others had.
    """

    timings: list[Timing]
    wall_s: float
    client_cpu_s: float
    flood: list[Timing] = field(default_factory=list)


class CallFailed(RuntimeError):
    """A call was refused, or its stream ended early: such a run has no figures."""


class _Stream(asyncio.Protocol):
    """One call on a connection of its own."""

    def __init__(self, timing: Timing, done: "asyncio.Future[None]") -> None:
        self._timing, self._done = timing, done
        self._parser = httptools.HttpResponseParser(self)
        self._rest = b""
        self._now_s = 0.0
        self._is_whole = False

    def data_received(self, data: bytes) -> None:
        """Note the time once for all that came together."""
        self._now_s = time.perf_counter()
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        """Take the events that are whole."""
        *events, self._rest = (self._rest + body).split(b"\n\n")
        for event in events:
            self._take(event)

    def _take(self, event: bytes) -> None:
        if b'"completion_tokens"' in event:
            self._timing.output_tokens = json.loads(event.partition(b"data: ")[2])["usage"]["completion_tokens"]
        if b'"text":"' in event and b'"text":""' not in event:
            self._timing.pieces_s.append(self._now_s)
        elif event == b"data: [DONE]":
            self._is_whole = True

    def on_message_complete(self) -> None:
        """The answer is over, in whatever way."""
        self._timing.ended_s = self._now_s
        status = self._parser.get_status_code()
        if status != _OK:
            self._fail(f"{status}: {self._rest.decode(errors='replace')}")
        elif not self._is_whole:
            self._fail("a stream ended without [DONE]")
        elif not self._done.done():
            self._done.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        """Nothing more will come."""
        self._fail(f"the connection was lost: {error}")

    def _fail(self, why: str) -> None:
        if not self._done.done():
            self._done.set_exception(CallFailed(why))


class Client:
    """Calls one server, or several that tenants have for themselves.

    Args:
        base_urls: of the servers, ``http://host:port``. Each tenant calls the next one, in the order in which they
            come, and no other.
        model: the name that they want to hear.
        extra: fields of the body that these servers want besides.
    """

    def __init__(self, base_urls: Sequence[str], model: str, extra: dict[str, Any]) -> None:
        self._addresses = [(address.hostname, address.port) for address in map(urlsplit, base_urls)]
        self._model, self._extra = model, extra
        self._tenants: dict[str, int] = {}

    def run(self, workload: Workload) -> Measured:
        """Drive ``workload``, its warm-up first.

        Raises:
            CallFailed: of any of its calls.
        """
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(asyncio.wait_for(self._run(workload), _ALL_S))

    async def _run(self, workload: Workload) -> Measured:
        await asyncio.gather(*(self._call(one, self._encoded(one), []) for one in workload.warm_up))
        # Before the clock runs: a body of a thousand token ids takes a while.
        calls = [(one, self._encoded(one)) for one in workload.requests]
        flood = [(one, self._encoded(one)) for one in workload.flood]
        timings: list[Timing] = []
        of_flood: list[Timing] = []
        cpu_before_s, began_s = _cpu_s(), time.perf_counter()
        flooding = [asyncio.create_task(self._arrival(*call, of_flood, began_s)) for call in flood]
        if workload.callers is None:
            await asyncio.gather(*(self._arrival(*call, timings, began_s) for call in calls))
        else:
            await self._closed_loop(calls, workload.callers, timings)
        wall_s, cpu_s = max(timing.ended_s for timing in timings) - began_s, _cpu_s() - cpu_before_s
        for task in flooding:
            task.cancel()
        await asyncio.gather(*flooding, return_exceptions=True)
        return Measured(timings, wall_s, cpu_s, of_flood)

    async def _closed_loop(self, calls: Sequence[tuple[Request, bytes]], callers: int, timings: list[Timing]) -> None:
        line = iter(calls)

        async def caller() -> None:
            for call in line:
                await self._call(*call, timings)

        await asyncio.gather(*(caller() for _ in range(callers)))

    async def _arrival(self, request: Request, body: bytes, timings: list[Timing], began_s: float) -> None:
        await asyncio.sleep(began_s + request.at_s - time.perf_counter())
        await self._call(request, body, timings)

    async def _call(self, request: Request, encoded: bytes, timings: list[Timing]) -> None:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        timing = Timing(time.perf_counter())
        timings.append(timing)
        host, port = self._address(request)
        transport, _ = await loop.create_connection(lambda: _Stream(timing, done), host, port)
        transport.write(encoded)
        try:
            await done
        finally:
            transport.close()
        if timing.output_tokens != request.output_tokens:
            raise CallFailed(f"a stream ended with {timing.output_tokens} of {request.output_tokens} tokens")

    def _address(self, request: Request) -> tuple[str | None, int | None]:
        place = self._tenants.setdefault(request.tenant, len(self._tenants))
        return self._addresses[place % len(self._addresses)]

    def _encoded(self, request: Request) -> bytes:
        host, port = self._address(request)
        body = json.dumps(
            {
                "model": self._model,
                "prompt": request.prompt,
                "max_tokens": request.output_tokens,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
                **self._extra,
            }
        ).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        )
        tenant = f"{headers.TENANT}: {request.tenant}\r\n" if request.tenant else ""
        return f"{head}{tenant}\r\n".encode() + body


def _cpu_s() -> float:
    return sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
