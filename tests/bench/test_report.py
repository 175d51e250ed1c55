"""A report can be made of whatever there is."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
import report
from result_log import Key, ResultLog


def log_of(folder: Path, name: str, rows: list[tuple[str, int, str, dict[str, float]]], commit: str = "abc") -> None:
    log = ResultLog(folder / name)
    for workload, number, server, figures in rows:
        log.append(Key(commit, workload, number, server), figures)


def written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    monkeypatch.setattr("sys.argv", ["report", "--out", str(folder), "--into", str(folder / "docs")])
    return report.main(), (folder / "docs" / "benchmarks.md").read_text()


def test_one_row_makes_a_report_that_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log_of(tmp_path, "serving.jsonl", [("B", 0, "vllm-fp32", {"output_tokens_per_s": 112.0})])
    status, text = written(tmp_path, monkeypatch)
    assert status == 0
    assert "| vllm-fp32 | 112.0 |" in text
    assert text.count("not measured") > 20
    assert "quality.py` has not run" in text


def test_every_picture_of_a_report_is_there_and_none_is_drawn_of_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = {"step_ms": 9.0, "output_tokens_per_s": 110.0, "gflop_per_s": 30.0, "gb_per_s": 15.0, "roofline": 0.7}
    log_of(tmp_path, "sweep.jsonl", [("decode-1", 0, "pagoda-int8", step)])
    _, text = written(tmp_path, monkeypatch)
    pictures = sorted(path.name for path in (tmp_path / "docs" / "images").iterdir())
    assert pictures == ["bench-arithmetic.svg", "bench-bytes.svg", "bench-trade.svg"]
    assert all(f"images/{name}" in text for name in pictures)
    for name in pictures:
        ElementTree.parse(tmp_path / "docs" / "images" / name)


def test_only_what_was_measured_of_the_last_code_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log_of(tmp_path, "serving.jsonl", [("B", 0, "pagoda-fp32", {"output_tokens_per_s": 50.0})], "old")
    log_of(tmp_path, "serving.jsonl", [("B", 1, "pagoda-fp32", {"output_tokens_per_s": 140.0})], "new")
    _, text = written(tmp_path, monkeypatch)
    assert "| pagoda-fp32 | 140.0 |" in text
    assert "`new`" in text


def test_workloads_that_are_compared_are_of_one_commit_and_others_keep_theirs(tmp_path: Path) -> None:
    rates = {"output_tokens_per_s": 50.0}
    of_old = [("B", 0, "pagoda-fp32", rates), ("E-alone", 0, "pagoda-int8-tenants", rates)]
    log_of(tmp_path, "serving.jsonl", of_old, "old")
    log_of(tmp_path, "serving.jsonl", [("E-flood", 0, "pagoda-int8-tenants", rates)], "new")
    commits, rows = report.read(tmp_path)
    assert commits == {"B": "old", "E": "new"}
    assert [(row.key.commit, row.key.workload) for row in rows] == [("old", "B"), ("new", "E-flood")]


def test_rows_are_published_beside_the_report_and_a_run_can_go_on_from_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_of(tmp_path, "serving.jsonl", [("B", 0, "pagoda-fp32", {"output_tokens_per_s": 50.0})], "old")
    log_of(tmp_path, "serving.jsonl", [("B", 1, "pagoda-fp32", {"output_tokens_per_s": 140.0})], "new")
    (tmp_path / "quality.json").write_text("[]")
    for _ in range(2):
        written(tmp_path, monkeypatch)
    published = tmp_path / "docs" / "benchmarks"
    assert [row.key for row in ResultLog(published / "serving.jsonl").rows] == [Key("new", "B", 1, "pagoda-fp32")]
    assert report.read(published) == report.read(tmp_path)


def test_a_control_that_passes_fails_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        ("B", 0, name, {"output_tokens_per_s": rate})
        for name, rate in (("pagoda-int8", 9.0), ("pagoda-int8-again", 99.0))
    ]
    log_of(tmp_path, "serving.jsonl", rows)
    assert written(tmp_path, monkeypatch)[0] == 1
    assert "control passed" in capsys.readouterr().err


def test_perplexity_decides_which_precision_stands_for_us(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        ("A", 0, name, {"output_tokens_per_s": rate}) for name, rate in (("pagoda-int8", 70.0), ("llama-f16", 50.0))
    ]
    log_of(tmp_path, "serving.jsonl", rows)
    quality = [{"dtype": "int8", "kv_dtype": kv, "to_fp32": loss} for kv, loss in (("fp16", -0.003), ("int8", 0.5))]
    (tmp_path / "quality.json").write_text(json.dumps(quality))
    _, text = written(tmp_path, monkeypatch)
    assert "A: our best within 1 % (int8) against the best peer (llama-f16) | ≥ 1.3 | 1.40 | 1 | met" in text


def test_a_folder_without_rows_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["report", "--out", str(tmp_path)])
    with pytest.raises(SystemExit):
        report.main()
    assert "nothing was measured yet" in capsys.readouterr().err
