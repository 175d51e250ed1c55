"""Write the report and its charts from what was measured so far, be it half of it: ``make bench``, ``make report``.

Reads the rows of ``run.py`` and ``batch_sweep.py`` and the figures of ``quality.py``. Fails where the control passed:
then the check tells nothing.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import figures
import goals
import workloads
from goals import Finding, Side, Spread, Table, Verdict
from result_log import Key, ResultLog, Row
from workloads import SWEEP_BATCHES as BATCHES
from workloads import SWEEP_CONTEXT_TOKENS as CONTEXT_TOKENS
from workloads import SWEEP_PROMPT_TOKENS as PROMPT_TOKENS

from dataplane.sim.plots import Chart, Line

_BENCH = Path(__file__).resolve().parents[2] / "var" / "bench"
_QUALITY = "quality.json"
_SWEEP = "sweep"
_NOTES = Path(__file__).with_name("missed.md")
"""What bounds the goals that are missed, written by hand."""
_STREAMS = {"A": 1, "B": 8, "C": 32}
_SHOWN = ("pagoda-int8", "pagoda-int4", "pagoda-fp32", "vllm-fp32", "llama-f16", "llama-q8_0")
_DTYPES = ("fp32", "fp16", "int8", "int4")
_PRECISIONS = tuple(f"pagoda-{dtype}" for dtype in _DTYPES)
_COLUMNS = {
    "output tok/s": ("output_tokens_per_s", 1),
    "TTFT p50 ms": ("ttft_p50_ms", 0),
    "TTFT p95 ms": ("ttft_p95_ms", 0),
    "TPOT p50 ms": ("tpot_p50_ms", 1),
    "ITL p50 ms": ("itl_p50_ms", 1),
    "ITL p99 ms": ("itl_p99_ms", 0),
    "goodput calls/s": ("goodput_per_s", 2),
    "within limits": ("good_share", 2),
    "client's CPU": ("client_cpu_share", 3),
    "start s": ("start_s", 1),
}
"""Heading, figure, and decimals."""
_WHAT = {
    "A": "1 caller, 64 tokens in, 128 out",
    "B": "8 callers, 64 in, 128 out",
    "C": "32 callers, 32-512 in, 16-256 out",
    "D": f"{workloads.TRACE_SOURCE}: slices of {workloads.REPLAY_S:.0f} s, calls {workloads.SLOWDOWN:.0f} times "
    f"further apart, prompts and answers {workloads.SHRINK:.0f} times shorter (at most "
    f"{workloads.LONGEST_PROMPT_TOKENS} and {workloads.LONGEST_OUTPUT_TOKENS} tokens)",
    "E-peak": "4 tenants' calls, 64 tokens in, 32 out, more than it can serve: what the server can do",
    "E-alone": "three tenants at 0.8 of their share of that",
    "E-flood": "the same beside a fourth at 10 times its share; figures are of the three",
    "E-first": "the same with all calls in one tenant: who comes first is served first",
    "E-dedicated": "the same with a replica for each of the four, of one thread, two on each of two processors",
    "E-short": "one tenant, 64 in, 16-96 out, calls as they come",
    "E-essays": "the same beside one call in twenty for 400-800 tokens, all of it 0.8 of what the server can put out; "
    "figures are of the short ones",
    "F-hit": "1 caller, 1,024 tokens that all calls share and 16 of its own in, 16 out",
    "F-miss": "the same with nothing shared",
    "F-shared": "8 callers, 1,024 shared tokens and 113 of its own in, 16 out",
    "F-distinct": "the same with nothing shared",
    "start": "1 call of 64 tokens in, 4 out, to a server that is started for it; weights were packed before",
    "start-weights": "64 tokens in, 1 out, from weights on disk, where the libraries are imported",
    "start-attach": "64 tokens in, 1 out, from a worker that waits warm and is given the model",
}


def read(folder: Path) -> tuple[dict[str, str], list[Row]]:
    """Return which commit was measured last by each family of workloads, and their rows, those of ``quality.py`` too.

    What is compared with each other is of one family: E's workloads, F's, the sweep's, or a workload alone.

    Raises:
        ValueError: nothing was measured yet.
    """
    rows = [row for path in sorted(folder.glob("*.jsonl"), key=_written_s) for row in ResultLog(path).rows]
    if not rows:
        raise ValueError(f"nothing was measured yet: no rows in {folder}")
    commits = {_family(row.key): row.key.commit for row in rows}
    path = folder / _QUALITY
    quality = json.loads(path.read_text()) if path.exists() else []
    return dict(sorted(commits.items())), [
        *(row for row in rows if row.key.commit == commits[_family(row.key)]),
        *(
            Row(Key("", goals.QUALITY, 0, f"pagoda-{one['dtype']}"), {"to_fp32": one["to_fp32"]})
            for one in quality
            if one["kv_dtype"] == "fp16" and one["dtype"] != "fp32"
        ),
    ]


def publish(folder: Path, commits: dict[str, str], into: Path) -> None:
    """Copy the rows of a report to ``into``: it can be checked, and a run on another machine can go on from them."""
    for path in folder.glob("*.jsonl"):
        published = ResultLog(into / path.name, fresh=True)
        for row in ResultLog(path).rows:
            if row.key.commit == commits[_family(row.key)]:
                published.append(row.key, row.figures)
    quality = folder / _QUALITY
    if quality.exists():
        (into / _QUALITY).write_bytes(quality.read_bytes())


def _family(key: Key) -> str:
    return key.workload.partition("-")[0] if key.workload in workloads.NAMES else _SWEEP


def _written_s(path: Path) -> float:
    return path.stat().st_mtime


def markdown(commits: dict[str, str], table: Table, charts: Sequence[str], images: str) -> str:
    """Return the report; ``charts`` are the names of the pictures that were drawn, in the folder ``images``."""
    of = " and ".join(
        f"`{commit}` ({', '.join(family for family, one in commits.items() if one == commit)})"
        for commit in dict.fromkeys(commits.values())
    )
    parts = [
        f"# Benchmarks\n\nWritten by `tests/bench/report.py` from what `make bench` measured of commit {of}.",
        _machine(table),
        *(f"![{name}]({images}{name}.svg)" for name in charts[:1]),
        "## Goals\n\n" + _goals(table),
        "## Control\n\n" + _control(table),
        "## At the client\n\n" + _HOW,
        *(_serving(table, name) for name in workloads.NAMES if table.servers(name)),
        "## A step of the model\n\n" + _sweep(table),
        *(f"![{name}]({images}{name}.svg)" for name in charts[1:]),
    ]
    if _NOTES.exists():
        parts.append("## What bounds those that are missed\n\n" + _NOTES.read_text().strip())
    return "\n\n".join(part for part in parts if part) + "\n"


_HOW = (
    "Every server gets the same calls, round after round, in turn; all others are stopped meanwhile. Greedy, streamed, "
    "exactly as many tokens as asked for. TTFT is the time to the first piece of text, TPOT = (E2E - TTFT) / (n - 1), "
    f"ITL all gaps between pieces, pooled. Within limits are calls with TTFT up to {figures.TTFT_LIMIT_S:.0f} s and "
    f"TPOT up to {figures.TPOT_LIMIT_S * 1000:.0f} ms; goodput counts those. Figures are medians of rounds, in "
    "brackets the range. `-again` is the control: the same server once more. `-cache` keeps prefixes, all others "
    "compute every prompt in full. transformers computes static batches in a process of its own, without HTTP: only "
    "tokens that were asked for count, and there are no times to first tokens."
)


def _machine(table: Table) -> str:
    words = []
    for figure, what, unit in (("read_gb_per_s", "read bandwidth", "GB/s"), ("gemm_gflop_per_s", "GEMM", "GFLOP/s")):
        spreads = [table.spread(Side(name, "machine", figure)) for name in workloads.NAMES]
        spreads += [table.spread(Side("crossover", server, figure)) for server in _PRECISIONS]
        found = [spread for spread in spreads if spread]
        if found:
            least, most = min(one.least for one in found), max(one.most for one in found)
            words.append(f"{what} {least:.0f}-{most:.0f} {unit} (fp32)")
    return f"The machine in this run, at the start of each round: {', '.join(words)}." if words else ""


def _goals(table: Table) -> str:
    rows = [_goal_cells(table.find(goal)) for goal in goals.goals(table)]
    judged = "" if table.servers(goals.QUALITY) else (
        "\n\n`tests/bench/quality.py` has not run: no precision but fp32 is taken to be within 1 %."
    )  # fmt: skip
    return _table(["what", "wanted", "measured", "rounds", ""], rows) + judged


def _goal_cells(finding: Finding) -> list[str]:
    goal, spread = finding.goal, finding.spread
    wanted = f"{'≤' if goal.at_most else '≥'} {goal.wanted:g}"
    verdict = f"**{finding.verdict}**" if finding.verdict is Verdict.MISSED else str(finding.verdict)
    return [goal.what, wanted, _words(spread, 3 if goal.at_most else 2), str(spread.count) if spread else "", verdict]


def _control(table: Table) -> str:
    rows = [_goal_cells(finding) for finding in controls(table)]
    words = "Checks of the goals on what cannot pass them. Ours against itself also shows what the noise does."
    return f"{words}\n\n" + _table(["what", "wanted", "measured", "rounds", "must be missed"], rows)


def controls(table: Table) -> list[Finding]:
    """Return what became of the checks that must be missed."""
    return [table.find(goal) for goal in goals.controls()]


def _serving(table: Table, name: str) -> str:
    servers = sorted(server for server in table.servers(name) if server != "machine")
    columns = [
        [head, *(_words(table.spread(Side(name, server, figure)), decimals) for server in servers)]
        for head, (figure, decimals) in _COLUMNS.items()
    ]
    heads, *rows = zip(["server", *servers], *(column for column in columns if any(column[1:])), strict=True)
    return f"### {name}\n\n{_WHAT[name]}.\n\n" + _table(heads, rows)


def _sweep(table: Table) -> str:
    lines = [
        f"The engine without server and client; decoding rows have a context of {CONTEXT_TOKENS} tokens, prompts have "
        f"{PROMPT_TOKENS}. Rates are operations and bytes that the program calls for in the time of a step; the "
        "roofline is the longer of both at the machine's fp32 GEMM rate and read bandwidth of the same round. The "
        "crossover is the batch from which on a step's arithmetic would take longer than reading the weights."
    ]
    for server in _PRECISIONS:
        rows = []
        for what in [*(f"decode-{batch}" for batch in BATCHES), "prefill"]:
            rate = "prompt_tokens_per_s" if what == "prefill" else "output_tokens_per_s"
            names = {"step_ms": 1, rate: 0, "gflop_per_s": 0, "gb_per_s": 1, "roofline": 2, "outside_share": 3}
            cells = [_words(table.spread(Side(what, server, name)), decimals) for name, decimals in names.items()]
            if any(cells):
                rows.append([what, *cells])
        if rows:
            heads = ["step", "TPOT ms", "tok/s", "GFLOP/s", "GB/s", "roofline", "outside forward"]
            crossover = _words(table.spread(Side("crossover", server, "batch")), 0)
            lines.append(
                f"### {server.removeprefix('pagoda-')}\n\nCrossover: {crossover} rows.\n\n" + _table(heads, rows)
            )
    return "\n\n".join(lines)


def charts(table: Table) -> Iterator[tuple[str, Chart]]:
    """Yield the pictures that there is something for, by name."""
    streams = Chart(
        "Output by callers at once (A, B, C)", "callers", "output tokens/s",
        _lines(table, _SHOWN, [(name, count, "output_tokens_per_s") for name, count in _STREAMS.items()]), log_x=True,
    )  # fmt: skip
    trade = Chart(
        "Throughput against time per token, by batch", "time per output token, ms", "output tokens/s",
        [line for server in _PRECISIONS if (line := _trade(table, server))],
    )  # fmt: skip
    steps = [(f"decode-{batch}", batch) for batch in BATCHES]
    flops = Chart(
        "Arithmetic of a decoding step, by batch", "batch", "GFLOP/s",
        _lines(table, _PRECISIONS, [(name, batch, "gflop_per_s") for name, batch in steps])
        + _peak(table, "GEMM rate, fp32", "gemm_gflop_per_s"), log_x=True,
    )  # fmt: skip
    reads = Chart(
        "Bytes of a decoding step, by batch", "batch", "GB/s",
        _lines(table, _PRECISIONS, [(name, batch, "gb_per_s") for name, batch in steps])
        + _peak(table, "read bandwidth", "read_gb_per_s"), log_x=True,
    )  # fmt: skip
    for name, chart in {"streams": streams, "trade": trade, "arithmetic": flops, "bytes": reads}.items():
        if chart.lines:
            yield f"bench-{name}", chart


def _lines(table: Table, servers: Sequence[str], steps: Sequence[tuple[str, int, str]]) -> list[Line]:
    lines = []
    for server in servers:
        spreads = [(x, table.spread(Side(workload, server, figure))) for workload, x, figure in steps]
        points = [(float(x), spread.median) for x, spread in spreads if spread]
        if points:
            lines.append(Line(server, points))
    return lines


def _trade(table: Table, server: str) -> Line | None:
    found = [
        (str(batch), step_ms.median, rate.median)
        for batch in BATCHES
        if (step_ms := table.spread(Side(f"decode-{batch}", server, "step_ms")))
        and (rate := table.spread(Side(f"decode-{batch}", server)))
    ]
    return Line(server, [(x, y) for _, x, y in found], [label for label, _, _ in found]) if found else None


def _peak(table: Table, name: str, figure: str) -> list[Line]:
    values = [spread.median for server in _PRECISIONS if (spread := table.spread(Side("crossover", server, figure)))]
    return [Line(name, [(float(batch), max(values)) for batch in BATCHES])] if values else []


def _words(spread: Spread | None, decimals: int) -> str:
    if spread is None:
        return ""
    median, least, most = (f"{value:.{decimals}f}" for value in (spread.median, spread.least, spread.most))
    return median if least == most else f"{median} ({least}-{most})"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def main() -> int:
    """Write the report; 1 where the control passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=_BENCH, help="where the rows are (var/bench)")
    parser.add_argument("--tiny", action="store_true", help="of the rows of tiny runs")
    parser.add_argument("--into", type=Path, help="folder of the report, such as docs (default: where the rows are)")
    arguments = parser.parse_args()
    try:
        out: Path = arguments.out / "tiny" if arguments.tiny else arguments.out
        commits, rows = read(out)
    except ValueError as error:
        parser.error(str(error))
    table = Table(rows)
    into: Path = arguments.into or out
    (into / "images").mkdir(parents=True, exist_ok=True)
    drawn = dict(charts(table))
    for name, chart in drawn.items():
        (into / "images" / f"{name}.svg").write_text(chart.svg())
    (into / "benchmarks.md").write_text(markdown(commits, table, list(drawn), "images/"))
    if arguments.into:
        publish(out, commits, into / "benchmarks")
    print(_goals(table))
    print(f"written to {into / 'benchmarks.md'}")
    passed = [finding.goal.what for finding in controls(table) if finding.verdict is Verdict.MET]
    if passed:
        print(f"The control passed, so the check tells nothing: {', '.join(passed)}", file=sys.stderr)
    return 1 if passed else 0


if __name__ == "__main__":
    sys.exit(main())
