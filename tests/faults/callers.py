"""Applications under load: each call is remembered with its request id, how it ended, and what it got."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import httpx

_TIMEOUT = httpx.Timeout(120.0)


@dataclass
class Call:
    """One call. ``ended`` is ``done``, ``error``, ``silence``, ``refused`` or ``left``."""

    request_id: str = ""
    status: int = 0
    ended: str = "silence"
    error_code: str = ""
    texts: list[str] = field(default_factory=list)


class Callers:
    """Makes calls to one model with one key."""

    def __init__(self, details: dict[str, str]) -> None:
        self._model = details["model"]
        self._client = httpx.AsyncClient(
            base_url=details["gateway_url"],
            headers={"Authorization": f"Bearer {details['api_key']}"},
            timeout=_TIMEOUT,
            limits=httpx.Limits(max_connections=64),
        )
        self.calls: list[Call] = []

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def stream(
        self,
        *,
        max_tokens: int,
        leave_after: int | None = None,
        on_text: Callable[[Call], Awaitable[None]] | None = None,
    ) -> Call:
        """Stream a completion to its end, or leave after some events."""
        call = Call()
        self.calls.append(call)
        body = {
            "model": self._model, "prompt": f"Number {random.random()}: once upon a time", "max_tokens": max_tokens,
            "stream": True, "ignore_eos": True,
        }  # fmt: skip
        with suppress(httpx.RemoteProtocolError, httpx.ReadError):
            async with self._client.stream("POST", "/completions", json=body) as response:
                call.status = response.status_code
                call.request_id = response.headers.get("x-request-id", "")
                if response.status_code != httpx.codes.OK:
                    call.ended = "refused"
                    call.error_code = json.loads(await response.aread())["error"]["code"]
                    return call
                if leave_after == 0:
                    call.ended = "left"
                    return call
                async for line in response.aiter_lines():
                    if not line.startswith("data: "):
                        continue
                    if not await self._event(call, line[6:], on_text):
                        break
                    if leave_after is not None and len(call.texts) >= leave_after:
                        call.ended = "left"
                        break
        return call

    @staticmethod
    async def _event(call: Call, data: str, on_text: Callable[[Call], Awaitable[None]] | None) -> bool:
        if data == "[DONE]":
            call.ended = "done"
            return False
        event = json.loads(data)
        if "error" in event:
            call.ended, call.error_code = "error", event["error"]["code"]
            return False
        call.texts.append(event["choices"][0]["text"])
        if on_text is not None:
            await on_text(call)
        return True

    @asynccontextmanager
    async def load(self, count: int) -> AsyncIterator[None]:
        """Keep ``count`` callers calling, one short request after another."""
        stopping = asyncio.Event()

        async def caller() -> None:
            while not stopping.is_set():
                await self.stream(max_tokens=8)

        callers = [asyncio.create_task(caller()) for _ in range(count)]
        try:
            yield
        finally:
            stopping.set()
            await asyncio.gather(*callers)
