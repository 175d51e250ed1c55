"""Head-of-line blocking: what static batching costs against continuous batching, at the same load.

It costs twice. A batch waits until it is full, while the machine has nothing to do; and whoever has ended keeps a row
until the longest has, while others wait.
"""

from collections.abc import Sequence
from typing import Any

from dataplane.sim.gates import Gate, Open, StaticBatch
from dataplane.sim.plots import Chart, Line
from dataplane.sim.study import SLOTS, Study

LOADS = (0.1, 0.25, 0.5, 0.75, 0.9, 1.1)
"""Calls a second, as parts of what continuous batching can serve."""
POLICIES = ("continuous", "static, as they come", "static, filled")


def _gate(policy: str) -> Gate:
    return Open() if policy == "continuous" else StaticBatch(SLOTS, fill=policy == "static, filled")


def run(study: Study, loads: Sequence[float] = LOADS) -> dict[str, Any]:
    """Serve the calls by each policy, all at once and at each load."""
    config = study.config()
    saturated = {policy: study.serve(config, _gate(policy)) for policy in POLICIES}
    capacity = len(study.calls) / saturated["continuous"].span_s
    rates = {policy: outcome.output_tokens_per_s for policy, outcome in saturated.items()}
    return {
        **study.describe(),
        "rows": SLOTS,
        "all_at_once": {policy: outcome.figures() for policy, outcome in saturated.items()},
        "continuous_over_static": round(rates["continuous"] / rates["static, filled"], 3),
        "loads": [
            {
                "load": load,
                "calls_per_s": round(load * capacity, 4),
                "policies": {
                    policy: study.serve(config, _gate(policy), calls_per_s=load * capacity).figures()
                    for policy in POLICIES
                },
            }
            for load in loads
        ],
    }


def charts(report: dict[str, Any]) -> dict[str, Chart]:
    """Draw the report."""

    def lines(figure: str) -> list[Line]:
        return [
            Line(policy, [(row["load"], row["policies"][policy][figure]) for row in report["loads"]])
            for policy in POLICIES
        ]

    load = "load, as a part of what continuous batching can serve"
    return {
        "ttft": Chart("Time to first token, 95th percentile", load, "seconds", lines("ttft_p95_s"), log_y=True),
        "throughput": Chart("Output", load, "tokens/s", lines("output_tokens_per_s")),
        "fill": Chart("Waiting for a batch to fill, mean", load, "seconds", lines("fill_mean_s")),
        "padding": Chart("Rows whose sequence had ended", load, "part of all rows", lines("padded_rows_share")),
    }
