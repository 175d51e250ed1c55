"""Memory: what reserving for the longest costs against blocks, what a block's size wastes, what overcommitting costs.

Blocks are given for the prompt only, and one by one from there: more is admitted than can grow to its end, and what
cannot is preempted and computed again. The watermark is what an admission must leave free.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from dataplane.engine.config import BLOCK_SIZES_TOKENS
from dataplane.sim.gates import Reservation
from dataplane.sim.plots import Chart, Line
from dataplane.sim.serving import Outcome
from dataplane.sim.study import SLOTS, Study
from dataplane.sim.workload import Call

TAIL_BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64)
POOL_SHARES = (1.0, 0.6, 0.4, 0.3, 0.2)
"""Sizes of the pool, as parts of what all slots would take at their longest."""
CONTEXT, ANSWER, EXACT = "reserve the context", "reserve the longest answer", "reserve what it will need"
WATERMARKS = {"blocks, watermark 0 %": 0.0, "blocks, 3 %": 0.03, "blocks, 10 %": 0.1}
POLICIES = (CONTEXT, ANSWER, EXACT, *WATERMARKS)


def run(study: Study, pool_shares: Sequence[float] = POOL_SHARES) -> dict[str, Any]:
    """Serve the calls, all at once, with each way to share the memory."""
    pools = _pools(study, pool_shares)
    return {**study.describe(), "slots": SLOTS, "pools": pools, "block_sizes": _block_sizes(study)}


def _pools(study: Study, pool_shares: Sequence[float]) -> list[dict[str, Any]]:
    """Compare blocks with one reserved piece a call, in pools of the same size."""
    rows = []
    for share in pool_shares:
        pool_tokens = int(SLOTS * study.context_tokens * share)
        policies = {}
        for name, tokens_for in _reservations(study).items():
            gate = Reservation(pool_tokens, SLOTS, tokens_for)
            # The engine gets more than enough blocks: the gate alone says what fits.
            outcome = study.serve(study.config(pool_tokens=2 * pool_tokens), gate)
            policies[name] = _figures(outcome) | {"kept_out_by_fragments": gate.fragmented}
        for name, watermark in WATERMARKS.items():
            config = study.config(pool_tokens=pool_tokens, watermark_fraction=watermark)
            policies[name] = _figures(study.serve(config))
        rows.append({"pool_share": share, "pool_tokens": pool_tokens, "policies": policies})
    return rows


def _reservations(study: Study) -> dict[str, Callable[[Call], int]]:
    longest_answer = max(call.output_tokens for call in study.calls)
    return {
        CONTEXT: lambda call: study.context_tokens,
        ANSWER: lambda call: min(study.context_tokens, call.prompt_tokens + longest_answer),
        EXACT: lambda call: call.prompt_tokens + call.output_tokens,  # which nobody knows beforehand
    }


def _figures(outcome: Outcome) -> dict[str, float]:
    return {
        "output_tokens_per_s": round(outcome.output_tokens_per_s, 2),
        "waste": round(outcome.waste, 4),
        "rows_mean": round(outcome.rows_mean, 2),
        "preemptions": outcome.preemptions,
        "recomputed": round(outcome.recomputed, 4),
    }


def _block_sizes(study: Study) -> dict[str, Any]:
    """Tell the memory behind the ends of sequences by block size, and all of the waste for the engine's own sizes."""
    outcomes = {size: study.serve(study.config(block_size=size)) for size in BLOCK_SIZES_TOKENS}
    tail = outcomes[BLOCK_SIZES_TOKENS[0]]
    return {
        "tail_waste": {str(size): round(tail.tail_waste(size), 4) for size in TAIL_BLOCK_SIZES},
        "waste": {str(size): round(outcome.waste, 4) for size, outcome in outcomes.items()},
    }


def charts(report: dict[str, Any]) -> dict[str, Chart]:
    """Draw the report."""
    sizes, pools = report["block_sizes"], report["pools"]

    def lines(figure: str, policies: Iterable[str]) -> list[Line]:
        return [Line(name, [(row["pool_share"], row["policies"][name][figure]) for row in pools]) for name in policies]

    def by_size(name: str, parts: dict[str, float]) -> Line:
        return Line(name, [(int(size), part) for size, part in parts.items()])

    pool = "KV pool, as a part of all slots at their longest"
    return {
        "output": Chart("Output by size of the pool", pool, "tokens/s", lines("output_tokens_per_s", POLICIES)),
        "waste": Chart("KV memory held and not written", pool, "part of what is held", lines("waste", POLICIES)),
        "recompute": Chart(
            "Computed again after preemption", pool, "part of what is computed", lines("recomputed", WATERMARKS)
        ),
        "block-size": Chart(
            "KV memory held and not written, by size of a block",
            "tokens in a block",
            "part of what is held",
            [
                by_size("behind the ends of sequences", sizes["tail_waste"]),
                by_size("all, in the engine", sizes["waste"]),
            ],
            log_x=True,
        ),
    }
