"""The workloads of the serving benchmark: which prompts, how many at once or when. Pure and seeded.

Prompts are token ids, so every server gets the same ones whatever its tokenizer would have made of a text.

A    one caller, 64 tokens in, 128 out
B    8 callers, 64 in, 128 out
C    32 callers, 32-512 in, 16-256 out
D    a recorded hour of chats, a slice of it, slowed down and shortened by the factors below: calls come when they come
E    4 tenants, 64 tokens in, 32 out: three call at 0.8 of their share of what the server can do (``E-peak``: more
     than that comes), ``E-alone`` or, in ``E-flood``, beside a fourth that calls at 10 times its share; ``E-first`` is
     the same with all calls in one tenant, so that who comes first is served first; in ``E-dedicated`` the four have a
     replica each, with a fourth of the processors. Calls come by Poisson processes. Only the three are counted.
     ``E-short`` are one tenant's calls of 64 tokens in, 16-96 out; in ``E-essays`` one call in twenty besides asks for
     400-800, which together is 0.8 of the output that the server can do. Only the short ones are counted
F    prompts of 1,024 tokens and a few more: ``F-hit`` all with the same beginning, ``F-miss`` each with its own, one
     caller; ``F-shared`` and ``F-distinct`` are the same for 8 callers, where nine tokens in ten are shared
start  one call of 64 tokens in, 4 out, to a server that is started for it; of ``start-weights`` and ``start-attach``
     one token to what has all but the weights, in a process of libraries or a worker that the fleet keeps warm
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path

from dataplane.sim.workload import Call, read_trace

CLOSED = {"A": (1, 4), "B": (8, 16), "C": (32, 64)}
"""Callers, and calls in all."""
PREFIXED = {"F-hit": (1, 8), "F-miss": (1, 8), "F-shared": (8, 16), "F-distinct": (8, 16)}
PREFIX_TOKENS = 1024
TENANTS = ("E-peak", "E-alone", "E-flood", "E-first", "E-dedicated", "E-short", "E-essays")
_TENANTS, _OF_SHARE, _FLOOD_OF_SHARE, _FLOOD_S = 4, 0.8, 10.0, 30.0
"""So long that a 95th percentile is of more than two hundred calls."""
_PEAK_CALLS, _PEAK_ARRIVALS_PER_S = 240, 40.0
"""More than the server can do, but not all at once: calls of one length that begin together stay together, prompts with
prompts, which takes less than what comes as it comes."""
_PEAK_TOKENS, _SHORT_TOKENS, _ESSAY_TOKENS = 32, (16, 96), (400, 800)
_SHORTS_PER_ESSAY, _ESSAYS_S = 19, 60.0
"""So long that a 99th percentile is of more than a hundred calls."""
STARTS = ("start", "start-weights", "start-attach")
NAMES = (*CLOSED, "D", *TENANTS, *PREFIXED, *STARTS)

SWEEP_BATCHES = (1, 2, 4, 8, 16, 32, 64)
SWEEP_CONTEXT_TOKENS, SWEEP_PROMPT_TOKENS = 256, 512
"""Of the model-only sweep: what decoding rows have before them, and what a prompt has."""

TRACE_SOURCE = (
    "AzureLLMInferenceTrace_conv.csv of github.com/Azure/AzurePublicDataset (CC-BY-4.0; Splitwise, ISCA 2024)"
)
SLOWDOWN = 4.0
"""Times longer between two calls of the trace, so that two cores can follow."""
SHRINK = 8.0
"""Times shorter prompts and answers, for a small model's context."""
REPLAY_S = 60.0
LONGEST_PROMPT_TOKENS, LONGEST_OUTPUT_TOKENS = 768, 192

_FIRST_PLAIN_TOKEN, _LAST_PLAIN_TOKEN = 1_000, 40_000
_WARM_UP = (32, 8)
_TINY_TOKENS, _TINY_REPLAY_S = 8, 24.0


@dataclass(frozen=True)
class Request:
    """One call: ``prompt`` token ids, how many tokens to generate whatever they are, when it comes, who makes it."""

    prompt: list[int]
    output_tokens: int
    at_s: float = 0.0
    tenant: str = ""


@dataclass(frozen=True)
class Workload:
    """Calls to measure.

    Attributes:
        name: one of :data:`NAMES`.
        callers: each makes a call when its last has ended; None: every call comes at its own time.
        requests: what is measured.
        warm_up: what is called before, all at once, and not measured.
        flood: what comes at its own time beside the requests, may be refused, and ends with them.
    """

    name: str
    callers: int | None
    requests: list[Request]
    warm_up: list[Request]
    flood: list[Request] = field(default_factory=list)


def workload(
    name: str, seed: int, trace: Sequence[Call] = (), *, peak_per_s: float = 1.0, tiny: bool = False
) -> Workload:
    """Draw a workload.

    Args:
        name: one of :data:`NAMES`.
        seed: the same one gives the same calls; D takes another slice of the trace for each.
        trace: for D, from :func:`read_calls`.
        peak_per_s: for E, the calls that the server can answer.
        tiny: a few calls of a few tokens, to try the benchmark itself.

    Raises:
        ValueError: no such workload, or D without a trace.
    """
    draw = random.Random(seed)
    if name in CLOSED:
        made = _closed(name, draw)
    elif name in PREFIXED:
        made = _prefixed(name, draw)
    elif name in ("E-short", "E-essays"):
        made = _essays(name, draw, peak_per_s)
    elif name in TENANTS:
        made = _tenants(name, draw, peak_per_s)
    elif name in STARTS:
        made = Workload(name, 1, [Request(_tokens(draw, 64), 4 if name == "start" else 1)], [])
    elif name == "D":
        made = _replayed(draw, trace, seed, _TINY_REPLAY_S if tiny else REPLAY_S)
    else:
        raise ValueError(f"no workload {name!r}; there are {', '.join(NAMES)}")
    return _tiny(made) if tiny else made


def expanded(names: str) -> list[str]:
    """Read a list of names with commas; E, F and start are all of their parts.

    Raises:
        ValueError: a name that is none.
    """
    parts = {"E": TENANTS, "F": tuple(PREFIXED), "start": STARTS}
    found = [part for name in names.split(",") for part in parts.get(name, (name,))]
    if unknown := [name for name in found if name not in NAMES]:
        raise ValueError(f"no workload {', '.join(unknown)}; there are {', '.join(NAMES)}, E and F")
    return found


def read_calls(path: Path) -> list[Call]:
    """Read a whole trace with its own lengths.

    Raises:
        ValueError: not a trace that :func:`dataplane.sim.workload.read_trace` knows.
    """
    calls, _ = read_trace(path, count=1 << 40, context_tokens=1 << 40)
    return calls


def sliced(calls: Sequence[Call], number: int, replay_s: float) -> list[Call]:
    """Return the calls of a slice that takes ``replay_s`` to replay, scaled; after the last slice the first follows."""
    span_s = replay_s / SLOWDOWN
    slices = max(1, int(calls[-1].arrival_s // span_s))
    return [
        replace(
            call,
            arrival_s=call.arrival_s % span_s * SLOWDOWN,
            prompt_tokens=_shrunk(call.prompt_tokens, LONGEST_PROMPT_TOKENS),
            output_tokens=_shrunk(call.output_tokens, LONGEST_OUTPUT_TOKENS),
        )
        for call in calls
        if call.arrival_s // span_s == number % slices
    ]


def _shrunk(tokens: int, longest: int) -> int:
    return min(longest, max(2, round(tokens / SHRINK)))


def _tokens(draw: random.Random, count: int) -> list[int]:
    return [draw.randint(_FIRST_PLAIN_TOKEN, _LAST_PLAIN_TOKEN) for _ in range(count)]


def _warm_up(draw: random.Random, callers: int) -> list[Request]:
    prompt_tokens, output_tokens = _WARM_UP
    return [Request(_tokens(draw, prompt_tokens), output_tokens) for _ in range(callers)]


def _closed(name: str, draw: random.Random) -> Workload:
    callers, count = CLOSED[name]
    mixed = name == "C"
    requests = [
        Request(_tokens(draw, draw.randint(32, 512) if mixed else 64), draw.randint(16, 256) if mixed else 128)
        for _ in range(count)
    ]
    return Workload(name, callers, requests, _warm_up(draw, callers))


def _prefixed(name: str, draw: random.Random) -> Workload:
    callers, count = PREFIXED[name]
    shared = name in ("F-hit", "F-shared")
    own_tokens, output_tokens = (16, 16) if callers == 1 else (PREFIX_TOKENS // 9, 16)
    common = _tokens(draw, PREFIX_TOKENS)
    requests = [
        Request((common if shared else _tokens(draw, PREFIX_TOKENS)) + _tokens(draw, own_tokens), output_tokens)
        for _ in range(count)
    ]
    first = [Request(common + _tokens(draw, own_tokens), 2)] if shared else []
    return Workload(name, callers, requests, [*_warm_up(draw, callers), *first])


def _replayed(draw: random.Random, trace: Sequence[Call], number: int, replay_s: float) -> Workload:
    if not trace:
        raise ValueError(f"workload D replays a trace: give its path with --trace ({TRACE_SOURCE})")
    requests = [
        Request(_tokens(draw, call.prompt_tokens), call.output_tokens, call.arrival_s)
        for call in sliced(trace, number, replay_s)
    ]
    return Workload("D", None, requests, _warm_up(draw, 8))


def _tenants(name: str, draw: random.Random, peak_per_s: float) -> Workload:
    share_per_s = peak_per_s / _TENANTS

    def calls(tenant: str, calls_per_s: float) -> list[Request]:
        named = "all" if name == "E-first" else tenant
        times_s = accumulate(draw.expovariate(calls_per_s) for _ in range(max(1, round(calls_per_s * _FLOOD_S))))
        return [Request(_tokens(draw, 64), _PEAK_TOKENS, at_s, named) for at_s in times_s]

    if name == "E-peak":
        times_s = accumulate(draw.expovariate(_PEAK_ARRIVALS_PER_S) for _ in range(_PEAK_CALLS))
        peak = [Request(_tokens(draw, 64), _PEAK_TOKENS, at_s, "all") for at_s in times_s]
        return Workload(name, None, peak, _warm_up(draw, 32))
    counted = [one for tenant in range(1, _TENANTS) for one in calls(f"tenant-{tenant}", _OF_SHARE * share_per_s)]
    flood = [] if name == "E-alone" else calls("flooding", _FLOOD_OF_SHARE * share_per_s)
    warm_up = [
        replace(one, tenant=f"tenant-{place % (_TENANTS - 1) + 1}") for place, one in enumerate(_warm_up(draw, 32))
    ]
    return Workload(name, None, counted, warm_up, flood)


def _essays(name: str, draw: random.Random, peak_per_s: float) -> Workload:
    def calls(calls_per_s: float, output_tokens: tuple[int, int]) -> list[Request]:
        times_s = accumulate(draw.expovariate(calls_per_s) for _ in range(max(1, round(calls_per_s * _ESSAYS_S))))
        return [Request(_tokens(draw, 64), draw.randint(*output_tokens), at_s, "writer") for at_s in times_s]

    tokens_per_short = (sum(_SHORT_TOKENS) + sum(_ESSAY_TOKENS) / _SHORTS_PER_ESSAY) / 2
    shorts_per_s = _OF_SHARE * peak_per_s * _PEAK_TOKENS / tokens_per_short
    counted = calls(shorts_per_s, _SHORT_TOKENS)
    essays = calls(shorts_per_s / _SHORTS_PER_ESSAY, _ESSAY_TOKENS) if name == "E-essays" else []
    warm_up = [replace(one, tenant="writer") for one in _warm_up(draw, 8)]
    return Workload(name, None, counted, warm_up, essays)


def _tiny(made: Workload) -> Workload:
    count = min(len(made.requests), 2 if made.name in PREFIXED else 4)
    return replace(
        made,
        requests=[replace(one, output_tokens=min(one.output_tokens, _TINY_TOKENS)) for one in made.requests[:count]],
        warm_up=[replace(one, output_tokens=2) for one in made.warm_up[-2:]],
        flood=made.flood[:4],
    )
