"""``python -m dataplane.sim hol|frag|sweep|fairness``: run a study, write its figures as JSON and its charts as SVG."""

import argparse
import json
import sys
from pathlib import Path

from dataplane.sim import fairness, frag, hol, sweep
from dataplane.sim.study import Study

_STUDIES = {"hol": hol, "frag": frag, "sweep": sweep, "fairness": fairness}


def main(argv: list[str] | None = None) -> int:
    """Run one study."""
    parser = argparse.ArgumentParser(
        prog="python -m dataplane.sim",
        description="The real engine on a model whose steps take as long as a table says.",
        epilog="hol: static against continuous batching; frag: how KV memory is shared; sweep: throughput against "
        "latency by batch; fairness: between tenants, by several rules. The same seed gives the same figures.",
    )
    parser.add_argument("study", choices=_STUDIES)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--calls", type=int, default=256, help="how many to serve, or how long fairness goes on (256)")
    parser.add_argument("--costs", type=Path, help='measured steps: {"step_ms": {"1": 35.7, "8": 59.7}}, ms by tokens')
    parser.add_argument("--trace", type=Path, help="calls of an AzurePublicDataset .csv or a Mooncake .jsonl")
    parser.add_argument("--context", type=int, default=1024, help="tokens that a trace's lengths are scaled to (1024)")
    parser.add_argument("--out", type=Path, default=Path("var/sim"), help="folder of the report (var/sim)")
    arguments = parser.parse_args(argv)
    module = _STUDIES[arguments.study]
    try:
        study = Study.of(
            seed=arguments.seed,
            count=arguments.calls,
            costs=arguments.costs,
            trace=arguments.trace,
            context_tokens=arguments.context,
        )
        report = module.run(study)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / f"{arguments.study}.json"
    path.write_text(json.dumps(report, indent=2) + "\n")
    for name, chart in module.charts(report).items():
        path.with_name(f"{arguments.study}-{name}.svg").write_text(chart.svg())
    print(path.read_text(), end="")
    print(f"written to {arguments.out}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
