"""Callers that keep coming while something changes; each is somebody else, so the weights divide them."""

import asyncio
import json
import threading
from collections import Counter
from types import TracebackType

import httpx

_TIMEOUT = httpx.Timeout(120.0)


class Crowd:
    """So many at a time call a model until the block ends; ``heard`` counts what they got, ``whole`` or a code."""

    def __init__(self, gateway_url: str, key: str, name: str, callers: int, *, max_tokens: int = 64) -> None:
        self._url, self._name, self._callers, self._max_tokens = gateway_url, name, callers, max_tokens
        self._headers = {"Authorization": f"Bearer {key}"}
        self._over = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._call_on()), name="crowd")
        self.heard: Counter[str] = Counter()

    def __enter__(self) -> "Crowd":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()

    async def _call_on(self) -> None:
        async with httpx.AsyncClient(headers=self._headers, timeout=_TIMEOUT, trust_env=False) as client:
            await asyncio.gather(*(self._caller(client, number) for number in range(self._callers)))

    async def _caller(self, client: httpx.AsyncClient, number: int) -> None:
        turn = 0
        while not self._over.is_set():
            turn += 1
            self.heard[await self._one(client, f"caller {number}, turn {turn}")] += 1

    async def _one(self, client: httpx.AsyncClient, who: str) -> str:
        body = {
            "model": self._name, "messages": [{"role": "user", "content": f"{who} says hello."}],
            "max_tokens": self._max_tokens, "stream": True,
        }  # fmt: skip
        session = {"x-pagoda-session": who}
        async with client.stream("POST", f"{self._url}/chat/completions", json=body, headers=session) as answer:
            if answer.status_code != httpx.codes.OK:
                return str(json.loads(await answer.aread())["error"]["code"])
            last = ""
            async for line in answer.aiter_lines():
                last = line or last
        if last == "data: [DONE]":
            return "whole"
        return str(json.loads(last.removeprefix("data: "))["error"]["code"])
