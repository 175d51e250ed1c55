"""The workloads of the serving benchmarks: which prompts, how many at once. Pure and seeded.

Prompts are token ids, so every server gets the same ones whatever its tokenizer would have made of a text.
"""

import random
from dataclasses import dataclass

_FIRST_PLAIN_TOKEN, _LAST_PLAIN_TOKEN = 1_000, 40_000


@dataclass(frozen=True)
class Request:
    """One call: ``prompt`` token ids, and how many tokens to generate whatever they are."""

    prompt: list[int]
    output_tokens: int


@dataclass(frozen=True)
class Workload:
    """``concurrency`` callers in a closed loop over ``requests``."""

    name: str
    concurrency: int
    requests: list[Request]


def _fixed(name: str, concurrency: int, count: int, prompt_tokens: int, output_tokens: int, seed: int) -> Workload:
    draw = random.Random(seed)
    return Workload(
        name,
        concurrency,
        [
            Request([draw.randint(_FIRST_PLAIN_TOKEN, _LAST_PLAIN_TOKEN) for _ in range(prompt_tokens)], output_tokens)
            for _ in range(count)
        ],
    )


def workload(name: str, seed: int) -> Workload:
    """Return workload ``A`` (1 stream, 64 in, 128 out), ``B`` (8 streams) or ``C`` (32 streams, mixed lengths).

    Raises:
        ValueError: no such workload.
    """
    if name == "A":
        return _fixed("A", 1, 2, 64, 128, seed)
    if name == "B":
        return _fixed("B", 8, 16, 64, 128, seed)
    if name == "C":
        draw = random.Random(seed)
        requests = [
            Request(
                [draw.randint(_FIRST_PLAIN_TOKEN, _LAST_PLAIN_TOKEN) for _ in range(draw.randint(32, 512))],
                draw.randint(16, 256),
            )
            for _ in range(64)
        ]
        return Workload("C", 32, requests)
    raise ValueError(f"no workload {name!r}; there are A, B and C")
