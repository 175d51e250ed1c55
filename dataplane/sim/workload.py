"""Who calls when, with how long a prompt, for how many tokens: drawn by a seed, or read from a recorded trace."""

import csv
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path

import msgspec

PROMPT_TOKENS = (32, 512)
OUTPUT_TOKENS = (16, 256)
_HASHED_TOKENS = 512
"""Tokens behind one of the hash ids of a trace that has them."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request.

    Attributes:
        number: its own.
        arrival_s: from the beginning.
        prompt_tokens, output_tokens: lengths; it generates exactly so many.
        prefixes: ids of the prompt's leading parts of equal length; where two calls have the same, so do the prompts.
    """

    number: int
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    prefixes: tuple[int, ...] = ()

    def token_ids(self, part_tokens: int) -> list[int]:
        """Return a prompt that is equal to another call's as far as their prefixes are, ``part_tokens`` for each."""
        ids = [prefix for prefix in self.prefixes for _ in range(part_tokens)][: self.prompt_tokens]
        return ids + [1_000_000_000 + self.number] * (self.prompt_tokens - len(ids))


def mixed(count: int, seed: int, calls_per_s: float | None = None) -> list[Call]:
    """Draw chats of mixed lengths, 32-512 tokens in and 16-256 out, all there at once or by a Poisson process."""
    draw = random.Random(seed)  # noqa: S311 - to be repeatable is the point
    now_s, calls = 0.0, []
    for number in range(count):
        if calls_per_s is not None:
            now_s += draw.expovariate(calls_per_s)
        calls.append(Call(number, now_s, draw.randint(*PROMPT_TOKENS), draw.randint(*OUTPUT_TOKENS)))
    return calls


def at_rate(calls: Sequence[Call], calls_per_s: float | None) -> list[Call]:
    """Return the calls at another mean rate, with their burstiness; None: all at once."""
    if calls_per_s is None:
        factor = 0.0
    else:
        span_s = calls[-1].arrival_s
        factor = len(calls) / calls_per_s / span_s if span_s else 0.0
    return [
        Call(call.number, call.arrival_s * factor, call.prompt_tokens, call.output_tokens, call.prefixes)
        for call in calls
    ]


def read_trace(path: Path, count: int, context_tokens: int) -> tuple[list[Call], float]:
    """Read the first ``count`` calls of a recorded trace, with all lengths scaled so that the longest fits the context.

    Known are the CSV of AzurePublicDataset (``TIMESTAMP,ContextTokens,GeneratedTokens``) and the JSON lines of Mooncake
    (``timestamp`` in milliseconds, ``input_length``, ``output_length``, ``hash_ids``).

    Returns:
        The calls from the first one's time on, and the factor of their lengths: at most 1.

    Raises:
        ValueError: another format, or an empty file.
    """
    readers = {".csv": _read_csv, ".jsonl": _read_json_lines}
    if path.suffix not in readers:
        raise ValueError(f"{path}: a trace is a .csv of AzurePublicDataset or a .jsonl of Mooncake")
    try:
        rows = list(islice(readers[path.suffix](path), count))
    except (KeyError, TypeError, ValueError, msgspec.DecodeError) as error:
        raise ValueError(f"{path}: not the trace that its ending promises: {error}") from error
    if not rows:
        raise ValueError(f"{path}: no calls")
    factor = min(1.0, (context_tokens - 2) / max(row.prompt_tokens + row.output_tokens for row in rows))
    began_s = rows[0].arrival_s
    calls = [
        Call(
            number,
            row.arrival_s - began_s,
            max(1, int(row.prompt_tokens * factor)),
            max(1, int(row.output_tokens * factor)),
            row.prefixes,
        )
        for number, row in enumerate(rows)
    ]
    return calls, factor


class _JsonRow(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]


def _read_csv(path: Path) -> Iterator[Call]:
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            # Seven digits of a second: more than a datetime holds.
            arrival_s = datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp()
            yield Call(0, arrival_s, int(row["ContextTokens"]), int(row["GeneratedTokens"]))


def _read_json_lines(path: Path) -> Iterator[Call]:
    decoder = msgspec.json.Decoder(_JsonRow)
    with path.open("rb") as file:
        for line in file:
            row = decoder.decode(line)
            yield Call(0, row.timestamp / 1000, row.input_length, row.output_length, row.hash_ids)


def part_tokens(factor: float) -> int:
    """Return the tokens of one prefix part of a trace that was scaled by ``factor``."""
    return max(1, int(_HASHED_TOKENS * factor))
