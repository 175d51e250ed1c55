"""Real ranks: however a request is scheduled, its tokens are those of one process; a lost rank is noticed at once."""

import os
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch
from model_harness import generate, ignore_progress, load_model, make_row, poisoned_runner
from ranks_harness import NUM_BLOCKS, TIMEOUT_S, Spread, spread
from tiny_models import make_tiny_llama

from dataplane.contracts.catalog import EngineSettings
from dataplane.contracts.generation import LoadModel
from dataplane.contracts.parallel import Parallel
from dataplane.contracts.sampling import SamplingParams
from dataplane.model.loader import LoadedModel
from dataplane.model.parallel.group import RankLost
from dataplane.model.parallel.ranks import RankFailed, Ranks

MAX_TOKENS = 12
TWO = [Parallel(2), Parallel(1, 2)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("ranks") / "model", num_layers=3, num_kv_heads=4, seed=4)


@pytest.fixture(scope="module")
def one(folder: Path) -> LoadedModel:
    return load_model(folder, folder.parent / "runtime")


@pytest.fixture(scope="module", params=TWO, ids=["tensor", "pipeline"])
def two(request: pytest.FixtureRequest, folder: Path) -> Iterator[Spread]:
    with spread(folder, request.param) as made:
        yield made


def sampling(index: int) -> SamplingParams:
    """Greedy for even requests, drawn with a seed for odd ones."""
    temperature = 0.9 if index % 2 else 0.0
    return SamplingParams(max_tokens=MAX_TOKENS, temperature=temperature, top_p=0.95, seed=index, ignore_eos=True)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    draw = random.Random(3)
    return [draw.choices(range(3, 320), k=length) for length in (70, 9, 33, 2, 50, 17)]


@pytest.fixture(scope="module")
def expected(one: LoadedModel, prompts: list[list[int]]) -> list[list[int]]:
    """One process, each prompt whole and alone."""
    runner = poisoned_runner(one, NUM_BLOCKS)
    return generate(runner, prompts, MAX_TOKENS, num_blocks=NUM_BLOCKS, chunk=512, batched=False, sampling=sampling)


def check_invariance(made: Spread, prompts: list[list[int]], expected: list[list[int]]) -> None:
    for chunk, batched in ((512, True), (7, True), (64, False)):
        drawn = generate(
            made.runner, prompts, MAX_TOKENS, num_blocks=NUM_BLOCKS, chunk=chunk, batched=batched, sampling=sampling
        )
        assert drawn == expected


def test_logits_are_those_of_one_process(one: LoadedModel, two: Spread, prompts: list[list[int]]) -> None:
    found = []
    for runner in (poisoned_runner(one, NUM_BLOCKS), two.runner):
        params = SamplingParams(max_tokens=1, temperature=0.0, logprobs=5)
        row = make_row("a", prompts[0], 0, list(range(10)), sampling=params)
        row.score_token_ids = prompts[0][1:]
        (scored,) = runner.execute([row])
        found.append(torch.tensor([score.logprob for score in scored.scores]))  # type: ignore[union-attr]
    torch.testing.assert_close(found[1], found[0], atol=1e-4, rtol=1e-4)


def test_every_part_of_the_pool_is_given_back_and_taken_again(
    two: Spread, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    two.pool.release()
    assert two.runner.pool.data.numel() == 0
    two.pool.restore()
    drawn = generate(two.runner, prompts[:2], MAX_TOKENS, num_blocks=NUM_BLOCKS, sampling=sampling)
    assert drawn == expected[:2]


def test_a_killed_rank_is_lost_whether_a_step_waits_for_it_or_nobody_does(two: Spread) -> None:
    """Stopped first, so that the step is surely in the middle when the rank dies."""
    (pid,) = two.ranks.pids
    os.kill(pid, signal.SIGSTOP)
    killer = threading.Timer(0.2, os.kill, (pid, signal.SIGKILL))
    killer.start()
    with pytest.raises(RankLost):
        generate(two.runner, [[5, 6, 7]], 4, num_blocks=NUM_BLOCKS)
    killer.join()
    assert two.lost.wait(TIMEOUT_S)
    with pytest.raises(RankLost):
        two.runner.execute([make_row("a", [5], 0, [0])])


def test_what_a_rank_cannot_load_is_said_by_it_and_no_child_is_left(folder: Path, tmp_path: Path) -> None:
    request = LoadModel(str(tmp_path), str(tmp_path), "", EngineSettings(), {}, b"salt")
    with Ranks(Parallel(2), "cpu") as ranks:
        ranks.begin_load(request)
        with pytest.raises(RankFailed, match=r"rank 1: .*cannot be loaded"):
            ranks.end_load(ignore_progress)
        (pid,) = ranks.pids
    assert not psutil.pid_exists(pid)


@pytest.mark.slow
@pytest.mark.parametrize("parallel", [Parallel(4), Parallel(1, 3), Parallel(2, 3)])
def test_more_ranks_than_two(
    folder: Path, parallel: Parallel, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    with spread(folder, parallel) as made:
        check_invariance(made, prompts, expected)
    assert not any(psutil.pid_exists(pid) for pid in made.ranks.pids)
    assert not made.lost.is_set()


@pytest.mark.slow
@pytest.mark.parametrize("parallel", TWO, ids=["tensor", "pipeline"])
def test_a_rank_that_hangs_is_lost_too(folder: Path, parallel: Parallel) -> None:
    with spread(folder, parallel, patience_s=10) as made:
        os.kill(made.ranks.pids[0], signal.SIGSTOP)
        with pytest.raises(RankLost):
            made.pool.release()
        with pytest.raises(RankLost):
            made.runner.execute([make_row("a", [5], 0, [0])])
