"""Benchmark our worker beside a peer in one run, interleaved: ``make bench``.

Each round drives the same prompts against every server in turn. The report gives medians and ranges, and ratios to the
peer of the same round, since the machine's speed drifts. The control is a run of the same server against itself: its
ratio shows what the noise alone does.
"""

import argparse
import json
import os
import statistics
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import machine
import measure
import servers
from workloads import workload


def main() -> int:
    """Run and write the report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workloads", default="A,B")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtypes", default="fp32")
    parser.add_argument("--peer", choices=["vllm", "none"], default="vllm")
    parser.add_argument("--out", type=Path, default=servers.REPOSITORY / "var" / "bench" / "serving.json")
    default_model = servers.REPOSITORY / "var" / "models" / "smollm2-135m-instruct"
    parser.add_argument("--model", type=Path, default=Path(os.environ.get("PAGODA_MODEL_DIR", default_model)))
    arguments = parser.parse_args()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)

    report: dict[str, Any] = {
        "machine": {"read_gb_per_s": machine.read_gb_per_s(), "gemm_gflop_per_s": machine.gemm_gflop_per_s()},
        "cpus": os.cpu_count(),
        "rounds": arguments.rounds,
        "runs": [],
    }
    with ExitStack() as stack:
        started = [
            stack.enter_context(servers.pagoda(arguments.model, arguments.out.parent, dtype))
            for dtype in arguments.dtypes.split(",")
        ]
        if arguments.peer == "vllm":
            started.append(stack.enter_context(servers.vllm(arguments.model, arguments.out.parent)))
        for name in arguments.workloads.split(","):
            for server in started:
                measure.run(server.base_url, server.model, workload(name, seed=99))
            for round_number in range(arguments.rounds):
                work = workload(name, seed=round_number)
                for server in [*started, started[0]]:
                    figures = measure.run(server.base_url, server.model, work).as_dict()
                    report["runs"].append({"workload": name, "round": round_number, "server": server.name, **figures})
                    print(f"{name} round {round_number} {server.name:14} {figures}", flush=True)
    report["summary"] = summarise(report["runs"])
    arguments.out.write_text(json.dumps(report, indent=2))
    print(json.dumps({"machine": report["machine"], "summary": report["summary"]}, indent=2))
    print(f"written to {arguments.out}")
    return 0


def summarise(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians and ranges by workload and server; ratios of output tokens/s to the last server of the same round.

    The second run of the first server in each round is the control.
    """
    summary: dict[str, Any] = {}
    for name in sorted({run["workload"] for run in runs}):
        by_round: dict[int, list[dict[str, Any]]] = {}
        for run in runs:
            if run["workload"] == name:
                by_round.setdefault(run["round"], []).append(run)
        rows: dict[str, Any] = {}
        for position, first in enumerate(by_round[0]):
            label = "control" if position == len(by_round[0]) - 1 else first["server"]
            mine = [by_round[number][position] for number in by_round]
            rates = [run["output_tokens_per_s"] for run in mine]
            peers = [by_round[number][-2]["output_tokens_per_s"] for number in by_round]
            against = [by_round[number][0]["output_tokens_per_s"] for number in by_round]
            ratios = [a / b for a, b in zip(rates, against if label == "control" else peers, strict=True)]
            rows[label] = {
                "output_tokens_per_s": _spread(rates),
                "ttft_p50_ms": _spread([run["ttft_p50_ms"] for run in mine]),
                "tpot_p50_ms": _spread([run["tpot_p50_ms"] for run in mine]),
                "ratio": _spread(ratios),
                "client_cpu_share": _spread([run["client_cpu_share"] for run in mine]),
            }
        summary[name] = rows
    return summary


def _spread(values: list[float]) -> dict[str, float]:
    return {"median": round(statistics.median(values), 3), "min": round(min(values), 3), "max": round(max(values), 3)}


if __name__ == "__main__":
    sys.exit(main())
