"""Every hostile folder through the real children under the limits of the promise, and good models that must pass.

Two processes judge the corpus side by side. The limits are those of each child: with more than 512 MiB of memory or 2 s
of processor time it ends.
"""

import pickle
import queue
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from dataplane.contracts import verdict as contract
from dataplane.contracts.verdict import CHECKS, MAX_CARD_BYTES, CheckState, Verdict
from tests.hostile import architecture_cases, folder_cases, template_cases, text_cases, tokenizer_cases, weights_cases
from tests.hostile.case import ACCEPTED, EITHER, Case
from tests.hostile.good_models import GOOD, LARGE, SMALL, large_vocabulary, make
from tests.text.tokenizer_files import BUNDLED
from tests.tiny_models import make_tiny_llama

MODULES = (weights_cases, architecture_cases, folder_cases, text_cases, tokenizer_cases, template_cases)
CASES = [case for module in MODULES for case in module.CASES]
CORPUS = {f"{case.family}: {case.name}"[:90]: case for case in CASES}
_SIDE_BY_SIDE = 2


class Judged(NamedTuple):
    """What came of one folder; ``beside`` is all that lies where the folder lay."""

    verdict: Verdict
    cpu_ms: int
    most_mib: int
    beside: list[str]


class Judge:
    """One process that judges folder after folder."""

    def __init__(self) -> None:
        script = Path(__file__).with_name("judging_process.py")
        self._process = subprocess.Popen(
            [sys.executable, "-I", str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, env={}, cwd="/",
        )  # fmt: skip

    def judge(self, folder: Path) -> Judged:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{folder}\n".encode())
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the judging process died"
        verdict, cpu_ms, most_mib = msgspec.json.decode(answer, type=tuple[Verdict, int, int])
        return Judged(verdict, cpu_ms, most_mib, sorted(path.name for path in folder.parent.iterdir()))

    def close(self) -> None:
        """End it and see that it has lived well: ended by itself, without a word of complaint."""
        _, errors = self._process.communicate(timeout=60)
        assert (self._process.returncode, errors) == (0, b"")


@pytest.fixture(scope="module")
def judged(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Judged]]:
    """Returns what came of a case. The chosen cases are begun ahead of their tests."""
    base = tmp_path_factory.mktemp("corpus")
    good = make_tiny_llama(base / "good", **SMALL)
    judges = [Judge() for _ in range(_SIDE_BY_SIDE)]
    idle: queue.SimpleQueue[Judge] = queue.SimpleQueue()

    def run(number: int, case: Case) -> Judged:
        folder = base / str(number) / "model"
        shutil.copytree(good, folder)
        judge = idle.get()
        try:
            case.break_it(folder)
            return judge.judge(folder)
        finally:
            idle.put(judge)
            shutil.rmtree(folder.parent)

    for judge in judges:
        idle.put(judge)
    chosen = [item.callspec.params.get("name") for item in request.session.items if hasattr(item, "callspec")]
    with ThreadPoolExecutor(_SIDE_BY_SIDE) as pool:
        futures: dict[str, Future[Judged]] = {
            name: pool.submit(run, number, CORPUS[name]) for number, name in enumerate(chosen) if name in CORPUS
        }
        yield lambda name: futures[name].result()
        pool.shutdown(cancel_futures=True)
    for judge in judges:
        judge.close()


def said(verdict: Verdict) -> str:
    return "\n".join(f"{refusal.file}: {refusal.reason}" for refusal in verdict.refusals)


def assert_fit_to_keep(verdict: Verdict) -> None:
    """Nothing of a stranger's can break a page, a log line or a row of PostgreSQL."""
    for refusal in verdict.refusals:
        assert refusal.mend
        assert refusal.reason.isprintable()
        assert len(refusal.reason) <= 500
        assert refusal.file.isascii()
        assert refusal.file.isprintable()
    card = verdict.card
    assert "\0" not in card.text
    assert len(card.text.encode()) <= MAX_CARD_BYTES
    for short in (card.license, *card.base_models, *card.languages, *card.tags):
        assert short.isprintable()
        assert not set("<>{}&\"'") & set(short)


@pytest.mark.parametrize("name", CORPUS)
def test_a_hostile_folder_is_refused_or_harmless(
    judged: Callable[[str], Judged], name: str, record_property: Callable[[str, object], None]
) -> None:
    verdict, cpu_ms, most_mib, beside = judged(name)
    record_property("cpu_ms", cpu_ms)
    assert beside == ["model"], "something of the folder ran"
    assert most_mib <= 512
    assert_fit_to_keep(verdict)
    family, _, _, expected = CORPUS[name]
    if expected == ACCEPTED:
        assert said(verdict) == ""
    elif expected is not EITHER:
        parts = [*expected.split("|"), *(["takes more than"] if "bomb" in family else [])]
        assert any(part in said(verdict) for part in parts), said(verdict)
    assert tuple(check.name for check in verdict.checks) == CHECKS
    assert (CheckState.FAILED in {check.state for check in verdict.checks}) == bool(verdict.refusals)
    assert bool(verdict.files) != bool(verdict.refusals)


def test_the_corpus_is_large_and_has_every_family() -> None:
    assert len(CORPUS) == sum(len(module.CASES) for module in MODULES) >= 300
    assert len({case.family for case in CORPUS.values()}) >= 15
    assert len(set(folder_cases.ODD_NAMES)) == len(folder_cases.ODD_NAMES) >= 60


def test_what_the_corpus_would_run_leaves_its_mark(tmp_path: Path) -> None:
    """The control: the same pickle, read by somebody who trusts it."""
    model = make_tiny_llama(tmp_path / "model", **SMALL)
    folder_cases.pickled("weights.pkl", 4)(model)
    pickle.loads((model / "weights.pkl").read_bytes())
    assert folder_cases.marker_of(model).exists()


def inspected(folder: Path, *options: str) -> tuple[int, Verdict]:
    command = [sys.executable, "-I", "-m", "dataplane.inspect", str(folder), *options]
    done = subprocess.run(command, capture_output=True, env={}, cwd="/", timeout=300, check=False)
    assert done.stderr == b""
    return done.returncode, contract.decode(done.stdout)


@pytest.mark.parametrize("name", GOOD)
def test_a_good_model_passes(tmp_path: Path, name: str) -> None:
    options, then = GOOD[name]
    code, verdict = inspected(make(tmp_path / "model", options, then), "--memory-mb", "512", "--cpu-seconds", "2")
    assert (code, said(verdict)) == (0, "")
    assert {check.state for check in verdict.checks} == {CheckState.PASSED}


def test_a_model_with_a_large_vocabulary_passes_in_the_memory_of_the_promise(tmp_path: Path) -> None:
    model = make(tmp_path / "model", {"tied_embeddings": True}, large_vocabulary)
    code, verdict = inspected(model, "--memory-mb", "512")
    assert (code, said(verdict)) == (0, "")
    assert verdict.config is not None
    assert verdict.config.vocab_size == LARGE


def test_the_bundled_model_passes() -> None:
    if (BUNDLED / "config.json").exists():
        code, verdict = inspected(BUNDLED.resolve())
        assert (code, said(verdict)) == (0, "")
        assert verdict.num_parameters == 134_515_008
        assert verdict.card.license == "apache-2.0"
