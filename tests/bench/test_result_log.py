"""What was measured is kept, whatever ends the run."""

from pathlib import Path

import pytest
from result_log import Key, ResultLog

KEYS = [Key("abc", "B", number, "pagoda-fp32") for number in range(3)]


def written(path: Path) -> ResultLog:
    log = ResultLog(path)
    for number, key in enumerate(KEYS[:2]):
        log.append(key, {"output_tokens_per_s": float(number)})
    return log


def test_a_second_run_knows_what_the_first_has_measured(tmp_path: Path) -> None:
    written(tmp_path / "rows.jsonl")
    again = ResultLog(tmp_path / "rows.jsonl")
    assert [key in again for key in KEYS] == [True, True, False]
    assert Key("def", "B", 0, "pagoda-fp32") not in again  # other code
    assert [row.figures for row in again.rows] == [{"output_tokens_per_s": 0.0}, {"output_tokens_per_s": 1.0}]


@pytest.mark.parametrize("cut_bytes", [1, 20])
def test_a_row_that_a_kill_cut_short_is_measured_again(cut_bytes: int, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    written(path)
    path.write_bytes(path.read_bytes()[:-cut_bytes])
    log = ResultLog(path)
    assert [key in log for key in KEYS] == [True, False, False]
    log.append(KEYS[1], {"output_tokens_per_s": 7.0})
    assert [row.figures["output_tokens_per_s"] for row in ResultLog(path).rows] == [0.0, 7.0]


def test_a_fresh_run_begins_with_nothing(tmp_path: Path) -> None:
    written(tmp_path / "rows.jsonl")
    assert ResultLog(tmp_path / "rows.jsonl", fresh=True).rows == []
    assert ResultLog(tmp_path / "rows.jsonl").rows == []
