"""A closed-loop streaming client for OpenAI-compatible servers, and the figures of one run.

TTFT, TPOT = (E2E - TTFT) / (n - 1) and ITL are defined as the serving benchmarks of the field define them, and measured
at the client.
"""

import asyncio
import json
import resource
import statistics
import time
from dataclasses import asdict, dataclass

import httpx
from workloads import Request, Workload


@dataclass(frozen=True)
class Timing:
    """One request, in seconds."""

    ttft_s: float
    e2e_s: float
    output_tokens: int

    @property
    def tpot_s(self) -> float:
        """Time per output token after the first."""
        return (self.e2e_s - self.ttft_s) / max(self.output_tokens - 1, 1)


@dataclass(frozen=True)
class Figures:
    """One run of one workload against one server."""

    output_tokens_per_s: float
    ttft_p50_ms: float
    ttft_p95_ms: float
    tpot_p50_ms: float
    tpot_p95_ms: float
    wall_s: float
    client_cpu_share: float

    def as_dict(self) -> dict[str, float]:
        """Rounded, for JSON."""
        return {name: round(value, 3) for name, value in asdict(self).items()}


async def _call(client: httpx.AsyncClient, model: str, request: Request) -> Timing:
    body = {
        "model": model,
        "prompt": request.prompt,
        "max_tokens": request.output_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    began_s = time.perf_counter()
    first_s, tokens, done = 0.0, 0, False
    async with client.stream("POST", "/v1/completions", json=body) as response:
        if response.status_code != httpx.codes.OK:
            raise RuntimeError(f"{response.status_code}: {(await response.aread()).decode()}")
        async for line in response.aiter_lines():
            if not line.startswith("data: "):
                continue
            if line == "data: [DONE]":
                done = True
                break
            event = json.loads(line[6:])
            if event.get("choices") and not first_s:
                first_s = time.perf_counter()
            if event.get("usage"):
                tokens = event["usage"]["completion_tokens"]
    if not done or tokens != request.output_tokens:
        raise RuntimeError(f"a stream ended with {tokens} of {request.output_tokens} tokens, done={done}")
    return Timing(first_s - began_s, time.perf_counter() - began_s, tokens)


async def _run(base_url: str, model: str, workload: Workload) -> Figures:
    queue = list(reversed(workload.requests))
    timings: list[Timing] = []
    limits = httpx.Limits(max_connections=workload.concurrency)
    async with httpx.AsyncClient(base_url=base_url, timeout=300, limits=limits) as client:

        async def caller() -> None:
            while queue:
                timings.append(await _call(client, model, queue.pop()))

        cpu_before_s = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
        began_s = time.perf_counter()
        await asyncio.gather(*(caller() for _ in range(workload.concurrency)))
        wall_s = time.perf_counter() - began_s
        cpu_s = sum(resource.getrusage(resource.RUSAGE_SELF)[:2]) - cpu_before_s
    ttft_ms = sorted(timing.ttft_s * 1000 for timing in timings)
    tpot_ms = sorted(timing.tpot_s * 1000 for timing in timings)
    return Figures(
        output_tokens_per_s=sum(timing.output_tokens for timing in timings) / wall_s,
        ttft_p50_ms=statistics.median(ttft_ms),
        ttft_p95_ms=_quantile(ttft_ms, 0.95),
        tpot_p50_ms=statistics.median(tpot_ms),
        tpot_p95_ms=_quantile(tpot_ms, 0.95),
        wall_s=wall_s,
        client_cpu_share=cpu_s / wall_s,
    )


def _quantile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def run(base_url: str, model: str, workload: Workload) -> Figures:
    """Drive ``workload`` against the server at ``base_url``.

    Raises:
        RuntimeError: a call was refused, or a stream ended early: such a run has no figures.
    """
    return asyncio.run(_run(base_url, model, workload))
