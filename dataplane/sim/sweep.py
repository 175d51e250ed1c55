"""The trade that batching makes: what all get together against what each waits for a token."""

from typing import Any

from dataplane.sim.plots import Chart, Line
from dataplane.sim.study import Study

BATCHES = (1, 2, 4, 8, 16, 32, 64)
_CALLS_PER_ROW = 4


def run(study: Study) -> dict[str, Any]:
    """Serve the calls with so many callers, one call after another, for each batch."""
    rows = []
    for batch in BATCHES:
        count = min(len(study.calls), max(2 * _CALLS_PER_ROW, _CALLS_PER_ROW * batch))
        outcome = study.serve(study.config(slots=batch), callers=batch, count=count)
        busy = round(outcome.busy_s / outcome.span_s, 4)
        rows.append({"batch": batch, "calls": count, "busy": busy} | outcome.figures())
    return {**study.describe(), "batches": rows}


def charts(report: dict[str, Any]) -> dict[str, Chart]:
    """Draw the report."""
    rows = report["batches"]
    trade = [(row["tpot_p50_ms"], row["output_tokens_per_s"]) for row in rows]
    labels = [str(row["batch"]) for row in rows]
    return {
        "trade": Chart(
            "Throughput against latency, by batch",
            "time per output token, median, ms",
            "output tokens/s",
            [Line("batch", trade, labels)],
        ),
        "first-token": Chart(
            "Time to first token",
            "batch",
            "seconds",
            [Line(name, [(row["batch"], row[f"ttft_{name}_s"]) for row in rows]) for name in ("p50", "p95")],
            log_x=True,
        ),
    }
