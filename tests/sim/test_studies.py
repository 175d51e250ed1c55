"""The studies give what is known of such systems, and the same again from the same seed."""

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from dataplane.sim import frag, hol, sweep
from dataplane.sim.__main__ import main
from dataplane.sim.study import SLOTS, Study

KV_WASTE = 0.04
"""Allocated and not written, at most: what the engine promises."""


@pytest.fixture(scope="module")
def study() -> Study:
    return Study.of(seed=3, count=64)


@pytest.fixture(scope="module")
def blocking(study: Study) -> dict[str, Any]:
    return hol.run(study, loads=(0.1, 0.5, 1.1))


@pytest.fixture(scope="module")
def memory(study: Study) -> dict[str, Any]:
    return frag.run(study, pool_shares=(1.0, 0.3))


def test_continuous_batching_beats_static_batching_at_every_load(blocking: dict[str, Any]) -> None:
    assert blocking["continuous_over_static"] > 1.3
    for row in blocking["loads"]:
        continuous, *static = (row["policies"][policy] for policy in hol.POLICIES)
        for other in static:
            assert continuous["ttft_p95_s"] < other["ttft_p95_s"]
            assert continuous["e2e_p95_s"] < other["e2e_p95_s"]
            assert continuous["output_tokens_per_s"] >= other["output_tokens_per_s"]


def test_waiting_to_fill_costs_most_where_callers_are_few(blocking: dict[str, Any]) -> None:
    filled = [row["policies"]["static, filled"]["fill_mean_s"] for row in blocking["loads"]]
    assert filled == sorted(filled, reverse=True)
    assert filled[0] > 10 * filled[-1]
    for row in blocking["loads"]:
        assert row["policies"]["continuous"]["fill_mean_s"] == 0
        assert row["policies"]["static, as they come"]["fill_mean_s"] == pytest.approx(0, abs=1e-9)


def test_a_static_batch_is_hostage_to_its_longest(blocking: dict[str, Any]) -> None:
    for row in blocking["loads"]:
        assert row["policies"]["continuous"]["padded_rows_share"] == 0
        assert row["policies"]["static, filled"]["padded_rows_share"] > 0.3


def test_blocks_waste_less_than_the_promise_and_each_reservation_more(memory: dict[str, Any]) -> None:
    for row in memory["pools"]:
        waste = {name: figures["waste"] for name, figures in row["policies"].items()}
        assert max(waste[name] for name in frag.WATERMARKS) <= KV_WASTE
        assert waste[frag.CONTEXT] > waste[frag.ANSWER] > waste[frag.EXACT] > 0.15


def test_blocks_run_more_at_once_than_any_reservation_where_memory_is_short(memory: dict[str, Any]) -> None:
    _, tight = memory["pools"]
    rows = {name: figures["rows_mean"] for name, figures in tight["policies"].items()}
    assert min(rows[name] for name in frag.WATERMARKS) > rows[frag.EXACT] > rows[frag.ANSWER] > rows[frag.CONTEXT]


def test_admission_by_the_prompt_overcommits_and_a_watermark_bounds_what_that_costs(memory: dict[str, Any]) -> None:
    plenty, tight = memory["pools"]
    assert all(plenty["policies"][name]["preemptions"] == 0 for name in frag.POLICIES)
    recomputed = [tight["policies"][name]["recomputed"] for name in frag.WATERMARKS]
    assert recomputed == sorted(recomputed, reverse=True)
    assert recomputed[0] > 0.1
    assert recomputed[-1] < 0.05
    output = [tight["policies"][name]["output_tokens_per_s"] for name in frag.WATERMARKS]
    assert output == sorted(output)


def test_a_larger_block_wastes_more_and_the_engine_little_beside_it(memory: dict[str, Any]) -> None:
    sizes = memory["block_sizes"]
    tail = [sizes["tail_waste"][str(size)] for size in frag.TAIL_BLOCK_SIZES]
    assert tail == sorted(tail)
    assert tail[0] == 0
    for size, waste in sizes["waste"].items():
        assert 0 <= waste - sizes["tail_waste"][size] < 0.01


def test_a_larger_batch_gives_more_in_all_and_to_each_more_slowly(study: Study) -> None:
    rows = sweep.run(study)["batches"]
    assert [row["batch"] for row in rows] == list(sweep.BATCHES)
    output = [row["output_tokens_per_s"] for row in rows if row["batch"] <= SLOTS]  # the calls are too few for more
    waits = [row["tpot_p50_ms"] for row in rows]
    assert output == sorted(output)
    assert waits == sorted(waits)


@pytest.mark.parametrize("name", ["hol", "frag", "sweep", "fairness"])
def test_the_command_writes_figures_and_charts_of_them(name: str, tmp_path: Path) -> None:
    assert main([name, "--calls", "4", "--seed", "5", "--out", str(tmp_path)]) == 0
    assert json.loads((tmp_path / f"{name}.json").read_text())["seed"] == 5
    charts = list(tmp_path.glob(f"{name}-*.svg"))
    assert charts
    for chart in charts:
        picture = ElementTree.parse(chart).getroot()
        assert picture.findall(".//{*}polyline")
        assert not re.search(r"\bnan\b", chart.read_text())
        assert "prefers-color-scheme:dark" in chart.read_text()


def test_the_same_seed_gives_the_same_figures_and_another_others(tmp_path: Path) -> None:
    reports = []
    for number, seed in enumerate(("5", "5", "6")):
        main(["sweep", "--calls", "8", "--seed", seed, "--out", str(tmp_path / str(number))])
        reports.append(json.loads((tmp_path / str(number) / "sweep.json").read_text()))
    first, again, other = reports
    assert first == again
    assert first["batches"] != other["batches"]
