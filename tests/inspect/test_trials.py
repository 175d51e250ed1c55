"""The trials of tokenizer and template, in children of a real inspector."""

import faulthandler
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dataplane import sandbox
from dataplane.contracts import verdict as contract
from dataplane.contracts.verdict import Check, CheckState, Progress, Verdict
from dataplane.inspect import judging
from dataplane.inspect.judging import NoVerdict, judge
from dataplane.text import trial
from tests.hostile.case import change, write
from tests.hostile.good_models import SMALL
from tests.hostile.tokenizer_cases import splitting
from tests.tiny_models import make_tiny_llama

LIMITS = sandbox.Limits(memory_bytes=1 << 36, cpu_s=10, open_files=4096)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_tiny_llama(tmp_path / "model", **SMALL)


def check_of(verdict: Verdict, name: str) -> Check:
    return next(check for check in verdict.checks if check.name == name)


def judged(model: Path) -> tuple[Verdict, list[Progress]]:
    news: list[bytes] = []
    verdict = judge(str(model), LIMITS, news.append)
    return verdict, [contract.decode_progress(line) for line in news]


def test_a_good_model_passes_both_and_news_of_every_check_is_relayed(model: Path) -> None:
    verdict, news = judged(model)
    assert verdict.refusals == ()
    assert len(verdict.files) == 6
    assert {check.state for check in verdict.checks} == {CheckState.PASSED}
    ended = tuple(progress.ended for progress in news if progress.ended is not None)
    assert ended == verdict.checks


def test_a_panic_of_the_library_refuses_the_tokenizer_and_the_template_is_tried_all_the_same(model: Path) -> None:
    splitting("([")(model)
    verdict, _ = judged(model)
    assert [refusal.file for refusal in verdict.refusals] == ["tokenizer.json"]
    assert verdict.files == ()
    assert check_of(verdict, "tokenizer_trial").state is CheckState.FAILED
    assert check_of(verdict, "tokenizer_trial").mend
    assert check_of(verdict, "template_trial").state is CheckState.PASSED


def test_a_library_that_aborts_costs_its_child_only(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def abort(_folder: Path, _vocab_size: int) -> None:
        faulthandler.disable()  # pytest's would print where
        os.abort()

    monkeypatch.setattr(trial, "try_tokenizer", abort)
    verdict, _ = judged(model)
    assert check_of(verdict, "tokenizer_trial").reason == "tokenizer.json: trying it ends its process (SIGABRT)"
    assert check_of(verdict, "template_trial").state is CheckState.PASSED


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ raise_exception('no\x00thing') }}", "refuses these messages: no\ufffdthing"),
        ("{% if messages | length > 1 %}{{ messages.pop() }}{% endif %}x", "chat template"),
        ("{{ 'x' * 300000 }}", "300000 characters"),
        ("{% if false %}x{% endif %}", "to 0 characters"),
        ("{{ '\\ud800' }}", "half a character"),
    ],
)
def test_a_template_that_renders_no_prompt_is_refused_with_a_printable_reason(
    model: Path, source: str, reason: str
) -> None:
    write("chat_template.jinja", source)(model)
    verdict, _ = judged(model)
    assert [refusal.file for refusal in verdict.refusals] == ["chat_template.jinja"]
    assert reason in check_of(verdict, "template_trial").reason
    assert check_of(verdict, "tokenizer_trial").state is CheckState.PASSED


def test_a_template_in_the_settings_is_named_by_their_file(model: Path) -> None:
    (model / "chat_template.jinja").unlink()
    change("tokenizer_config.json", chat_template="{{ 1 // 0 }}")(model)
    verdict, _ = judged(model)
    assert [refusal.file for refusal in verdict.refusals] == ["tokenizer_config.json"]


def test_a_folder_that_is_refused_is_not_tried(model: Path) -> None:
    (model / "evil.py").write_text("x")
    verdict, news = judged(model)
    assert check_of(verdict, "tokenizer_trial").state is CheckState.NOT_RUN
    assert "tokenizer_trial" not in {progress.check for progress in news}


def test_a_child_that_meets_its_limit_refuses_the_folder_and_says_in_which_check(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hungry(_path: str, tell: object) -> Verdict:
        tell(Progress("files"))  # type: ignore[operator]
        tell(Progress("files", ended=Check("files", CheckState.PASSED)))  # type: ignore[operator]
        tell(Progress("weights"))  # type: ignore[operator]
        raise MemoryError

    monkeypatch.setattr(judging, "inspect", hungry)
    verdict, _ = judged(model)
    assert check_of(verdict, "files").state is CheckState.PASSED
    assert check_of(verdict, "weights").state is CheckState.FAILED
    assert check_of(verdict, "tensors").state is CheckState.NOT_RUN
    assert "65536 MiB" in verdict.refusals[0].reason


def test_a_fault_of_ours_is_no_verdict(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_path: str, _tell: object) -> Verdict:
        raise ValueError("ours")

    monkeypatch.setattr(judging, "inspect", broken)
    with pytest.raises(NoVerdict, match="exit code 70"):
        judged(model)


def test_a_child_that_is_no_longer_itself_gives_no_verdict(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "inspect", lambda _path, tell: tell({"check": "evil", "run": "rm"}))
    with pytest.raises(NoVerdict, match="none says"):
        judged(model)


def test_the_program_writes_its_news_to_the_descriptor_it_is_given(model: Path) -> None:
    reading, writing = os.pipe()
    command = [sys.executable, "-I", "-m", "dataplane.inspect", str(model), "--progress-fd", str(writing)]
    with subprocess.Popen(command, env={}, cwd="/", pass_fds=[writing], stdout=subprocess.PIPE) as child:
        os.close(writing)
        with os.fdopen(reading, "rb") as lines:
            news = [contract.decode_progress(line) for line in lines]
        output = child.communicate()[0]
    verdict = contract.decode(output)
    assert tuple(progress.ended for progress in news if progress.ended) == verdict.checks


def test_a_reader_that_has_gone_does_not_stop_the_inspection(model: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-I", "-m", "dataplane.inspect", str(model), "--progress-fd", str(writing)]
    done = subprocess.run(command, env={}, cwd="/", pass_fds=[writing], capture_output=True, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout)["refusals"] == []
