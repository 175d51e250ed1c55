"""Made-up traffic of the two arms, seeded: what identical and what bad versions look like to the judge."""

import math
from dataclasses import dataclass, replace

import numpy as np

from controlplane.rollouts.samples import Sample


@dataclass(frozen=True)
class Version:
    """How a version behaves. Times are multiples of a good version's."""

    errors: float = 0.0
    ttft: float = 1.0
    tpot: float = 1.0
    length: float = 1.0
    limit_share: float = 0.05
    kv: float = 1.0
    preempted: float = 0.0
    error_code: str = "request_failed"

    def but(self, **changes: float) -> "Version":
        return replace(self, **changes)


def requests(
    rng: np.random.Generator,
    count: int,
    version: Version = Version(),
    *,
    tenants: int = 30,
    batch: float = 4.0,
    spread: float = 0.4,
) -> list[Sample]:
    """Requests over an hour, of tenants who differ in size, in what they ask, and in how long the answers are."""
    sizes = 1 / np.arange(1, tenants + 1)
    tenant = rng.choice(tenants, size=count, p=sizes / sizes.sum())
    habits = np.random.default_rng(7).normal(0, 0.5, size=(3, tenants))  # of prompts, answers, speed: the same always
    at_ms = np.sort(rng.integers(0, 3_600_000, size=count))
    prompt = np.exp(rng.normal(5, 0.7, size=count) + habits[0][tenant]).astype(int) + 1
    hit = rng.random(count) < 0.3
    rows = np.maximum(1.0, rng.gamma(3, batch / 3, size=count))
    output = np.exp(rng.normal(4, 0.7, size=count) + habits[1][tenant]) * version.length
    cut = rng.random(count) < version.limit_share
    load = rows**0.5 * np.exp(0.3 * habits[2][tenant])
    ttft = (20 + prompt * np.where(hit, 0.05, 0.3)) * load * np.exp(rng.normal(0, spread, size=count)) * version.ttft
    tpot = 10 * load * np.exp(rng.normal(0, spread / 2, size=count)) * version.tpot
    failed = rng.random(count) < version.errors
    preempted = rng.random(count) < version.preempted
    return [
        Sample(
            tenant_id=f"ten_{tenant[i]}",
            at_ms=int(at_ms[i]),
            error=bool(failed[i]),
            error_code=version.error_code if failed[i] else "",
            ttft_ms=None if failed[i] else round(float(ttft[i])),
            tpot_ms=None if failed[i] else float(tpot[i]),
            prompt_tokens=int(prompt[i]),
            cached_tokens=int(prompt[i] * 0.8) if hit[i] else 0,
            output_tokens=512 if cut[i] else min(512, max(1, int(output[i]))),
            hit_length_limit=bool(cut[i]),
            kv_blocks=math.ceil((prompt[i] + output[i]) / 16 * version.kv),
            preemptions=int(preempted[i]),
            batch_rows=float(rows[i]),
        )
        for i in range(count)
    ]
