"""What the simulator is told: measured steps and recorded calls."""

from itertools import pairwise
from pathlib import Path

import pytest

from dataplane.sim import workload
from dataplane.sim.__main__ import main
from dataplane.sim.costs import TWO_CORES, StepCosts
from dataplane.sim.study import Study

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,3096,109
2023-11-16 18:15:52.0000000,10,0
"""
MOONCAKE = """{"timestamp": 1000, "input_length": 1500, "output_length": 500, "hash_ids": [0, 1, 2]}
{"timestamp": 4000, "input_length": 1200, "output_length": 20, "hash_ids": [0, 1, 5]}
"""


def test_a_step_costs_what_was_measured_and_straight_lines_between() -> None:
    assert [TWO_CORES.ms(tokens) for tokens in (1, 8, 32, 256)] == pytest.approx([35.7, 59.7, 180.8, 540.0])
    assert TWO_CORES.ms(20) == pytest.approx((59.7 + 180.8) / 2)
    assert TWO_CORES.ms(480) == pytest.approx(540 + (540 - 180.8))
    assert all(TWO_CORES.ms(more) > TWO_CORES.ms(few) for few, more in pairwise(range(1, 600)))


def test_a_step_of_less_than_was_measured_costs_as_much() -> None:
    assert StepCosts(((8, 10.0), (16, 100.0))).ms(1) == 10


def test_measured_steps_are_read(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    path.write_text('{"step_ms": {"32": 40, "1": 5.5}}')
    assert StepCosts.read(path).points == ((1, 5.5), (32, 40.0))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[]", "expected"),
        ('{"ms": {"1": 2}}', "expected"),
        ('{"step_ms": {"one": 2}}', "expected"),
        ('{"step_ms": {"1": 2}}', "at least two"),
        ('{"step_ms": {"1": 9, "2": 9}}', "more tokens must take longer"),
        ('{"step_ms": {"1": 0, "2": 9}}', "more tokens must take longer"),
    ],
)
def test_measured_steps_that_make_no_sense_are_refused(
    text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "costs.json"
    path.write_text(text)
    with pytest.raises(SystemExit):
        main(["sweep", "--costs", str(path), "--out", str(tmp_path)])
    assert words in capsys.readouterr().err


def test_drawn_calls_have_the_lengths_and_the_rate_that_they_should() -> None:
    calls = workload.mixed(2_000, seed=1, calls_per_s=4.0)
    prompts, answers = ({getattr(call, name) for call in calls} for name in ("prompt_tokens", "output_tokens"))
    assert (min(prompts), max(prompts), min(answers), max(answers)) == (32, 512, 16, 256)
    assert calls[-1].arrival_s == pytest.approx(500, rel=0.1)


def test_a_csv_trace_is_read_and_scaled_to_the_context(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text(AZURE)
    calls, factor = workload.read_trace(path, 10, 1024)
    assert factor == pytest.approx(1022 / 3205)
    assert [call.arrival_s for call in calls] == pytest.approx([0, 4.314579, 5.31941], abs=1e-5)
    assert [(call.prompt_tokens, call.output_tokens) for call in calls] == [(119, 14), (987, 34), (3, 1)]


def test_a_trace_keeps_its_bursts_at_another_rate(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text(AZURE)
    study = Study.of(seed=1, count=3, trace=path)
    faster = study.at_rate(30.0)
    assert faster[-1].arrival_s == pytest.approx(0.1)
    assert faster[1].arrival_s / faster[2].arrival_s == pytest.approx(4.314579 / 5.31941, rel=1e-5)
    assert [call.arrival_s for call in study.at_rate(None)] == [0, 0, 0]


def test_calls_of_a_trace_share_prefixes_where_its_hashes_are_equal(tmp_path: Path) -> None:
    path = tmp_path / "mooncake.jsonl"
    path.write_text(MOONCAKE)
    study = Study.of(seed=1, count=2, trace=path, context_tokens=4096)
    outcome = study.serve(study.config(slots=1))
    assert outcome.cached_tokens == 1024
    assert outcome.recomputed == pytest.approx(0)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.txt", AZURE, "AzurePublicDataset"),
        ("a.csv", "TIMESTAMP,Tokens\n2023-11-16 18:15:46,4\n", "not the trace"),
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n", "no calls"),
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,2\n", "not the trace"),
        ("a.jsonl", '{"timestamp": 1}\n', "not the trace"),
    ],
)
def test_a_file_that_is_no_trace_is_refused(name: str, text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=words):
        workload.read_trace(tmp_path / name, 10, 1024)
