"""Applications that call a model by a name, one or many at once; what each heard is remembered."""

import asyncio
import json
import time
from dataclasses import dataclass

import httpx

_TIMEOUT = httpx.Timeout(300.0)
_TOKENS = 8


@dataclass
class Heard:
    """What one caller heard. ``whole``: a stream that ended as it should."""

    status: int
    request_id: str
    error_code: str = ""
    retry_after: str = ""
    first_token_ms: int = 0
    whole: bool = False


class Applications:
    """Calls the gateway with a key."""

    def __init__(self, gateway_url: str, key: str) -> None:
        self._url, self._key = gateway_url, key
        self.heard: list[Heard] = []

    def models(self) -> list[str]:
        """Return what the key may call."""
        answer = httpx.get(f"{self._url}/models", headers=self._headers, timeout=_TIMEOUT, trust_env=False)
        answer.raise_for_status()
        return [model["id"] for model in answer.json()["data"]]

    def call(self, name: str) -> Heard:
        """Make one call."""
        (heard,) = self.call_at_once(name, 1)
        return heard

    def call_at_once(self, name: str, callers: int) -> list[Heard]:
        """Make calls that all begin now."""
        heard = asyncio.run(self._all(name, callers))
        self.heard += heard
        return heard

    @property
    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._key}"}

    async def _all(self, name: str, callers: int) -> list[Heard]:
        limits = httpx.Limits(max_connections=callers)
        async with httpx.AsyncClient(headers=self._headers, timeout=_TIMEOUT, limits=limits, trust_env=False) as client:
            return await asyncio.gather(*(self._one(client, name, number) for number in range(callers)))

    async def _one(self, client: httpx.AsyncClient, name: str, number: int) -> Heard:
        body = {
            "model": name, "prompt": f"Caller {number} says hello.", "max_tokens": _TOKENS, "ignore_eos": True,
            "stream": True,
        }  # fmt: skip
        began_s = time.monotonic()
        async with client.stream("POST", f"{self._url}/completions", json=body) as answer:
            heard = Heard(answer.status_code, answer.headers["x-request-id"])
            if answer.status_code != httpx.codes.OK:
                heard.error_code = json.loads(await answer.aread())["error"]["code"]
                heard.retry_after = answer.headers.get("retry-after", "")
                return heard
            async for line in answer.aiter_lines():
                if not line.startswith("data: "):
                    continue
                heard.first_token_ms = heard.first_token_ms or round((time.monotonic() - began_s) * 1000)
                heard.whole = line == "data: [DONE]"
        return heard
