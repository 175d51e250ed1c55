"""One trial of a probe (:mod:`dataplane.contracts.probes`): a few requests of made-up tenants to a replica, and a time.

Both sides of a comparison do the same work in the same order but for what is compared, so neither finds the replica
warmer. A prompt is always sent after another request; that one had the same prompt or another of the same length.
"""

import random
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgspec

from dataplane.contracts import headers, probes
from dataplane.contracts.probes import ProbeKind

PROMPT_TOKENS = 48
"""Long enough that one sees whether it was computed, short enough that thousands take minutes."""
PACE_MS = 100
"""Of PACED: slower than a small model decodes on a CPU."""
_STREAM_TOKENS = 8
_NEIGHBOUR_TOKENS = 64
"""More than the observer's stream takes, however late it begins."""
_ALPHABET = 256
"""Every vocabulary has at least these ids; no prompt of them comes twice."""
_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""A Unix socket has none. Left to itself, each client reads all certificates of the machine, for 50 ms."""
_CONNECT_TIMEOUT_S = 5.0
_SILENCE_S = 60.0
_DATA, _DONE = "data: ", "data: [DONE]"


class GivenUp(Exception):
    """The trial has no result: the replica has real work, or is gone."""


class Unfit(Exception):
    """This replica cannot be probed; the sentence says why."""


class Target(NamedTuple):
    """A replica to probe. Without a deployment the name of the model decides, as for a worker that stands alone."""

    replica_id: str
    socket: Path
    served_name: str
    deployment_id: str = ""
    version_id: str = ""


class Card(NamedTuple):
    """What a trial does. ``slow``: that which takes longer if anything leaks."""

    kind: ProbeKind
    slow: bool


class Finding(NamedTuple):
    """The time that the observer saw, and how much of a prompt that had been sent before came from the cache."""

    seconds: float
    prompt_tokens: int = 0
    cached_tokens: int = 0


class _CachedTokens(msgspec.Struct):
    cached_tokens: int


class _Usage(msgspec.Struct):
    prompt_tokens: int
    prompt_tokens_details: _CachedTokens


class _Completion(msgspec.Struct):
    usage: _Usage


async def run(target: Target, card: Card, draw: random.Random, pace_ms: int = PACE_MS) -> Finding:
    """Run one trial.

    Raises:
        GivenUp: there is no result this time.
        Unfit: there never will be.
    """
    transport = httpx.AsyncHTTPTransport(uds=str(target.socket), verify=_NO_TLS)
    timeout = httpx.Timeout(_SILENCE_S, connect=_CONNECT_TIMEOUT_S)
    async with httpx.AsyncClient(transport=transport, base_url="http://replica", timeout=timeout) as client:
        door = _Door(client, target)
        try:
            match card.kind:
                case ProbeKind.WITHIN:
                    return await _look_at_cache(door, probes.PRIMER, card.slow, draw)
                case ProbeKind.ACROSS:
                    return await _look_at_cache(door, probes.STRANGER, card.slow, draw)
                case ProbeKind.BATCH:
                    return await _look_at_batch(door, card.slow, draw, pace_ms=0)
                case ProbeKind.PACED:
                    return await _look_at_batch(door, card.slow, draw, pace_ms)
        except httpx.HTTPError as error:
            raise GivenUp(str(error) or type(error).__name__) from error
        except msgspec.DecodeError as error:
            raise Unfit(f"its answer is not a completion: {error}") from error


async def _look_at_cache(door: "_Door", observer: str, slow: bool, draw: random.Random) -> Finding:
    prompt, other = _prompt(draw), _prompt(draw)
    await door.complete(probes.PRIMER, other if slow else prompt)
    finding = await door.complete(observer, prompt)
    return Finding(finding.seconds) if slow else finding


async def _look_at_batch(door: "_Door", slow: bool, draw: random.Random, pace_ms: int) -> Finding:
    prompt, other = _prompt(draw), _prompt(draw)
    if not slow:
        return Finding(await door.mean_gap_s(probes.STRANGER, prompt, pace_ms))
    async with door.running(probes.PRIMER, other):
        return Finding(await door.mean_gap_s(probes.STRANGER, prompt, pace_ms))


def _prompt(draw: random.Random) -> list[int]:
    return [draw.randrange(_ALPHABET) for _ in range(PROMPT_TOKENS)]


class _Door:
    """The trusted door of one replica, for one trial; what follows on each other goes through one connection."""

    def __init__(self, client: httpx.AsyncClient, target: Target) -> None:
        self._client = client
        self._target = target

    async def complete(self, tenant_id: str, prompt: list[int]) -> Finding:
        """Have one token generated; return how long that took and what was cached."""
        asked_s = time.monotonic()
        answer = await self._client.post("/v1/completions", **self._request(tenant_id, prompt, max_tokens=1))
        took_s = time.monotonic() - asked_s
        _check(answer.status_code, answer.text)
        usage = msgspec.json.decode(answer.content, type=_Completion).usage
        return Finding(took_s, usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens)

    async def mean_gap_s(self, tenant_id: str, prompt: list[int], pace_ms: int) -> float:
        """Stream a few tokens; return the mean time between two. Those within a character have no event of their own.

        Raises:
            GivenUp: the stream ended otherwise than whole.
        """
        times_s: list[float] = []
        line = ""
        async with self._streaming(tenant_id, prompt, _STREAM_TOKENS, pace_ms) as lines:
            async for line in lines:
                if line.startswith(_DATA) and line != _DONE:
                    times_s.append(time.monotonic())
                if line == _DONE:
                    break
        if line != _DONE:
            raise GivenUp("its stream was cut")
        return (times_s[-1] - times_s[0]) / (_STREAM_TOKENS - 1)

    @asynccontextmanager
    async def running(self, tenant_id: str, prompt: list[int]) -> AsyncIterator[None]:
        """Have a stream run meanwhile, from its first token on."""
        async with self._streaming(tenant_id, prompt, _NEIGHBOUR_TOKENS, pace_ms=0) as lines:
            async for _ in lines:
                break
            yield

    @asynccontextmanager
    async def _streaming(
        self, tenant_id: str, prompt: list[int], tokens: int, pace_ms: int
    ) -> AsyncIterator[AsyncIterator[str]]:
        request = self._request(tenant_id, prompt, max_tokens=tokens, stream=True)
        request["headers"][headers.PACE_MS] = str(pace_ms)
        async with self._client.stream("POST", "/v1/completions", **request) as answer:
            if answer.status_code != httpx.codes.OK:
                await answer.aread()
                _check(answer.status_code, answer.text)
            yield answer.aiter_lines()

    def _request(self, tenant_id: str, prompt: list[int], **fields: Any) -> dict[str, Any]:
        told = {headers.TENANT: tenant_id, headers.PROBE: "1"}
        if self._target.deployment_id:
            told |= {headers.DEPLOYMENT: self._target.deployment_id, headers.VERSION: self._target.version_id}
        body = {"model": self._target.served_name, "prompt": prompt, "temperature": 0, "ignore_eos": True, **fields}
        return {"json": body, "headers": told}


def _check(status: int, text: str) -> None:
    if httpx.codes.is_client_error(status) and status != httpx.codes.TOO_MANY_REQUESTS:
        raise Unfit(f"status {status}: {text[:500]}")
    if status != httpx.codes.OK:
        raise GivenUp(f"status {status}: {text[:500]}")
