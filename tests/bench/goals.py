"""The ratios to reach, and whether what was measured reaches them. Pure.

A ratio is the median over rounds of two figures of the same round, since the machine's speed drifts from one to the
next. Nothing is concluded from rounds that only one side has.
"""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from result_log import Row

TOKENS, TTFT = "output_tokens_per_s", "ttft_p50_ms"
QUALITY = "quality"
"""The workload of rows that say what a precision costs: ``to_fp32``, the change of perplexity."""
MOST_LOSS = 0.01
"""Of perplexity, for a precision that stands for the model itself."""
CONTROL_WANTED = 1.3
_SHARED = "pagoda-int8-tenants"


class Verdict(StrEnum):
    """What became of a goal."""

    MET = "met"
    MISSED = "missed"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class Spread:
    """Median, range and number of some values."""

    median: float
    least: float
    most: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread | None":
        """Return that of ``values``, None of none."""
        return cls(statistics.median(values), min(values), max(values), len(values)) if values else None


@dataclass(frozen=True)
class Side:
    """A figure of a server under a workload."""

    workload: str
    server: str
    figure: str = TOKENS


@dataclass(frozen=True)
class Goal:
    """Something to reach: the ratio of two figures, or one figure where ``under`` is None."""

    what: str
    wanted: float
    over: Side
    under: Side | None = None
    at_most: bool = False


@dataclass(frozen=True)
class Finding:
    """A goal and what was measured."""

    goal: Goal
    spread: Spread | None

    @property
    def verdict(self) -> Verdict:
        """Say whether the median reaches what is wanted."""
        if self.spread is None:
            return Verdict.NOT_MEASURED
        goal, median = self.goal, self.spread.median
        reached = median <= goal.wanted if goal.at_most else median >= goal.wanted
        return Verdict.MET if reached else Verdict.MISSED


class Table:
    """Rows of one commit."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._figures = {(row.key.workload, row.key.server, row.key.round): row.figures for row in rows}

    def by_round(self, side: Side) -> dict[int, float]:
        """Return a figure by round."""
        return {
            number: figures[side.figure]
            for (workload, server, number), figures in self._figures.items()
            if (workload, server) == (side.workload, side.server) and side.figure in figures
        }

    def spread(self, side: Side) -> Spread | None:
        """Return the spread of a figure over the rounds."""
        return Spread.of(list(self.by_round(side).values()))

    def servers(self, workload: str) -> list[str]:
        """Return who was measured by a workload, in the order in which they first were."""
        return list(dict.fromkeys(server for name, server, _ in self._figures if name == workload))

    def find(self, goal: Goal) -> Finding:
        """Hold a goal against the rows."""
        over = self.by_round(goal.over)
        if goal.under is None:
            return Finding(goal, Spread.of(list(over.values())))
        under = self.by_round(goal.under)
        return Finding(goal, Spread.of([over[number] / under[number] for number in over if number in under]))

    def best(self, workload: str, servers: Iterable[str]) -> str | None:
        """Return which of ``servers`` has the highest median rate, None where none was measured."""
        medians = {name: found.median for name in servers if (found := self.spread(Side(workload, name)))}
        return max(medians, key=medians.__getitem__, default=None)


def goals(table: Table) -> list[Goal]:
    """Return everything that is to be reached; who is the best depends on what was measured."""
    return [
        *_against_vllm(),
        *_against_llama(),
        *_best(table),
        *_STATIC,
        *_quantised(),
        *_model(),
        *_tenants(),
        *_PREFIX,
        *_STARTS,
    ]


def controls() -> list[Goal]:
    """Return checks on what cannot pass them; each must be missed."""
    return [
        *(control(name) for name in ("A", "B", "C", "D")),
        _victims("E-first", "first come, first served"),
        _victims("E-dedicated", "a replica each", "pagoda-int8-dedicated"),
    ]


def control(workload: str) -> Goal:
    """Return the check of :func:`_best` on a server that cannot pass it: ours against itself, in the same round."""
    name = "pagoda-int8"
    return Goal(
        f"{workload}: int8 against itself", CONTROL_WANTED, Side(workload, f"{name}-again"), Side(workload, name)
    )


def precise(table: Table) -> list[str]:
    """Return our servers whose precision costs no more than ``MOST_LOSS`` of perplexity, where that was measured."""
    losses = {server: table.spread(Side(QUALITY, server, "to_fp32")) for server in table.servers(QUALITY)}
    return ["pagoda-fp32", *(server for server, loss in losses.items() if loss and loss.median <= MOST_LOSS)]


def peers(table: Table, workload: str) -> list[str]:
    """Return whom else a workload was measured with."""
    return [name for name in table.servers(workload) if not name.startswith("pagoda-") and name != "machine"]


def _pair(workload: str, ours: str, theirs: str) -> tuple[Side, Side]:
    return Side(workload, f"pagoda-{ours}"), Side(workload, theirs)


def _against_vllm() -> list[Goal]:
    wanted = {"A": 1.0, "B": 1.8, "C": 1.5}
    return [
        Goal(f"{name}: fp32 against vLLM fp32", want, *_pair(name, "fp32", "vllm-fp32"))
        for name, want in wanted.items()
    ]


def _against_llama() -> list[Goal]:
    pairs = {"fp16": "f16", "int8": "q8_0", "int4": "q4_0"}
    return [
        Goal(f"{name}: {ours} against llama.cpp {theirs.upper()}", want, *_pair(name, ours, f"llama-{theirs}"))
        for ours, theirs in pairs.items()
        for name, want in {"A": 1.0, "B": 1.3, "C": 1.3}.items()
    ]


def _best(table: Table) -> list[Goal]:
    found = []
    for name in ("A", "B", "C"):
        ours = table.best(name, precise(table)) or "pagoda-fp32"
        theirs = table.best(name, peers(table, name)) or "any peer"
        what = f"{name}: our best within 1 % ({ours.removeprefix('pagoda-')}) against the best peer ({theirs})"
        found.append(Goal(what, CONTROL_WANTED, Side(name, ours), Side(name, theirs)))
    return found


_STATIC = [
    Goal(
        "C: fp32 against transformers in static batches of 32", 3.0, *_pair("C", "fp32", "transformers-fp32")
    )
]  # fmt: skip


def _quantised() -> list[Goal]:
    speed = {("int8", 1): 2.0, ("int8", 32): 1.3, ("int4", 1): 2.5}
    return [
        *(
            Goal(
                f"model step of {batch}: {dtype} against fp32", want,
                *_pair(f"decode-{batch}", dtype, "pagoda-fp32"),
            )
            for (dtype, batch), want in speed.items()
        ),
        Goal("perplexity of int8 against fp32, change", 0.01, Side(QUALITY, "pagoda-int8", "to_fp32"), at_most=True),
        Goal("perplexity of int4 against fp32, change", 0.08, Side(QUALITY, "pagoda-int4", "to_fp32"), at_most=True),
        Goal("sequences in equal memory: int8 with int8 KV against fp32", 1.8, Side("admission", "engine", "ratio")),
    ]  # fmt: skip


def _model() -> list[Goal]:
    roofline = {1: 0.70, 8: 0.60, 32: 0.60}
    outside = {1: 0.10, 32: 0.05}
    return [
        *(
            Goal(f"model step of {batch}: part of the roofline, fp32", want,
                 Side(f"decode-{batch}", "pagoda-fp32", "roofline"))
            for batch, want in roofline.items()
        ),
        *(
            Goal(f"step of {batch}: part outside the model's forward pass, {dtype}", want,
                 Side(f"decode-{batch}", f"pagoda-{dtype}", "outside_share"), at_most=True)
            for batch, want in outside.items()
            for dtype in ("fp32", "int8")
        ),
        Goal("99th percentile between tokens, prompts in chunks against whole", 0.33,
             Side("chunked", "pagoda-int8", "itl_p99_ms"), Side("whole", "pagoda-int8", "itl_p99_ms"), at_most=True),
        Goal("output of the same, prompts in chunks against whole", 0.95,
             Side("chunked", "pagoda-int8"), Side("whole", "pagoda-int8")),
        Goal("KV slots owned and empty, C's lengths, all rows busy", 0.04,
             Side("kv-waste", "engine", "waste_share"), at_most=True),
    ]  # fmt: skip


def _victims(workload: str, words: str, server: str = _SHARED) -> Goal:
    figure = "ttft_p95_ms"
    what = f"three tenants beside one at 10 times its share, 95th percentile to first token against alone: {words}"
    return Goal(what, 1.5, Side(workload, server, figure), Side("E-alone", _SHARED, figure), at_most=True)


def _tenants() -> list[Goal]:
    per_token, total = "tpot_p50_ms", "all_pieces_per_s"
    return [
        _victims("E-flood", "fair"),
        Goal("the three's time per token, fair against first come: as many rows on the same machine", 1.3,
             Side("E-flood", _SHARED, per_token), Side("E-first", _SHARED, per_token), at_most=True),
        Goal("all output of the four, fair against first come", 0.97,
             Side("E-flood", _SHARED, total), Side("E-first", _SHARED, total)),
        Goal("one tenant's short calls, 99th percentile to their end: one in twenty an essay, against none", 1.5,
             Side("E-essays", _SHARED, "e2e_p99_ms"), Side("E-short", _SHARED, "e2e_p99_ms"), at_most=True),
    ]  # fmt: skip


_PREFIX = [
    goal
    for dtype in ("fp32", "int8")
    for server in [f"pagoda-{dtype}-cache"]
    for goal in (
        Goal(f"prefix of 1,024 tokens, {dtype}: time to first token, miss against hit", 5.0,
             Side("F-miss", server, TTFT), Side("F-hit", server, TTFT)),
        Goal(f"90 % of the prompt shared, {dtype}: output against nothing shared", 2.0,
             Side("F-shared", server), Side("F-distinct", server)),
    )
]  # fmt: skip

_STARTS = [
    Goal("process started to first tokens, fp32: transformers' from_pretrained and generate against ours", 2.0,
         Side("start", "transformers-fp32", "start_s"), Side("start", "pagoda-fp32", "start_s")),
    Goal("the same, libraries imported: from_pretrained and a token against ours", 3.0,
         Side("start-weights", "transformers-weights", "start_s"), Side("start-weights", "pagoda-weights", "start_s")),
    Goal("transformers from its start to first tokens against a worker that waits warm", 20.0,
         Side("start", "transformers-fp32", "start_s"), Side("start-attach", "pagoda-attach", "start_s")),
]  # fmt: skip
