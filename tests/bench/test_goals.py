"""Whether what was measured reaches what was wanted."""

from typing import Any

import goals
import pytest
from goals import Finding, Goal, Side, Table, Verdict
from result_log import Key, Row


def rows(workload: str, server: str, *values: float, figure: str = goals.TOKENS, first: int = 0) -> list[Row]:
    return [Row(Key("abc", workload, number, server), {figure: value}) for number, value in enumerate(values, first)]


def finding(table: Table, words: str) -> Finding:
    (found,) = [one for goal in goals.goals(table) if words in (one := table.find(goal)).goal.what]
    return found


def test_a_ratio_is_the_median_over_pairs_of_the_same_round() -> None:
    """The machine is twice as fast in the second round: medians of each side would say 1.5."""
    table = Table([*rows("B", "pagoda-fp32", 180, 400, 200), *rows("B", "vllm-fp32", 100, 200, 100)])
    found = finding(table, "B: fp32 against vLLM")
    assert found.spread is not None
    assert (found.spread.median, found.spread.least, found.spread.most, found.spread.count) == (2.0, 1.8, 2.0, 3)
    assert found.verdict is Verdict.MET


def test_a_round_that_only_one_side_has_says_nothing() -> None:
    table = Table(
        [*rows("B", "pagoda-fp32", 100, 900), *rows("B", "vllm-fp32", 100), *rows("B", "vllm-fp32", 1, first=7)]
    )
    found = finding(table, "B: fp32 against vLLM")
    assert (found.spread and found.spread.count, found.verdict) == (1, Verdict.MISSED)


def test_nothing_measured_is_neither_met_nor_missed() -> None:
    table = Table([])
    assert {table.find(goal).verdict for goal in goals.goals(table)} == {Verdict.NOT_MEASURED}


@pytest.mark.parametrize(("share", "verdict"), [(0.05, Verdict.MET), (0.06, Verdict.MISSED)])
def test_some_figures_are_to_be_small(share: float, verdict: Verdict) -> None:
    table = Table(rows("decode-32", "pagoda-fp32", share, figure="outside_share"))
    assert finding(table, "step of 32: part outside the model's forward pass, fp32").verdict is verdict


def test_only_a_precision_that_keeps_the_model_as_it_is_stands_for_us() -> None:
    measured: list[Row] = [
        *rows("A", "pagoda-fp32", 30), *rows("A", "pagoda-int8", 70), *rows("A", "pagoda-int4", 90),
        *rows("A", "vllm-fp32", 20), *rows("A", "llama-f16", 50),
    ]  # fmt: skip
    loss: Any = {"figure": "to_fp32"}
    unknown = Table(measured)
    known = Table(
        [*measured, *rows("quality", "pagoda-int8", -0.003, **loss), *rows("quality", "pagoda-int4", 0.05, **loss)]
    )
    assert finding(unknown, "A: our best").goal.over == Side("A", "pagoda-fp32")
    assert finding(known, "A: our best").goal.over == Side("A", "pagoda-int8")
    assert finding(known, "A: our best").goal.under == Side("A", "llama-f16")


def test_our_server_against_itself_misses_the_check() -> None:
    table = Table([*rows("B", "pagoda-int8", 100, 110, 90), *rows("B", "pagoda-int8-again", 101, 105, 95)])
    assert table.find(goals.control("B")).verdict is Verdict.MISSED


def test_a_check_that_anything_passes_is_seen_by_its_control() -> None:
    table = Table([*rows("B", "pagoda-int8", 100), *rows("B", "pagoda-int8-again", 131)])
    assert table.find(goals.control("B")).verdict is Verdict.MET


def test_a_figure_of_one_side_may_be_the_goal() -> None:
    table = Table(rows("decode-1", "pagoda-fp32", 0.8, 0.6, 0.75, figure="roofline"))
    goal = Goal("roofline", 0.7, Side("decode-1", "pagoda-fp32", "roofline"))
    assert table.find(goal).verdict is Verdict.MET
