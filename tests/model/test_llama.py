"""The forward pass agrees with transformers on tiny random Llamas, however the work is cut and batched."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from model_harness import (
    BLOCK_SIZE,
    generate,
    load_model,
    make_row,
    poisoned_runner,
    reference_greedy,
    reference_model,
    reference_runner,
)
from tiny_models import make_tiny_llama

from dataplane.engine.runner import Row, RowFailure
from dataplane.kernels.panels import DTYPES
from dataplane.model import step as steps
from dataplane.model.loader import LoadedModel
from dataplane.model.model_runner import ModelRunner
from dataplane.model.native import NativeExecutor

SHAPES = {
    "grouped_queries": {},
    "one_kv_head": {"num_kv_heads": 1},
    "all_heads": {"num_kv_heads": 4},
    "tied_head": {"tied_embeddings": True},
    "attention_bias": {"attention_bias": True},
    "mlp_bias": {"mlp_bias": True, "attention_bias": True},
    "wide_heads": {"head_dim": 24, "num_heads": 8, "num_kv_heads": 2, "rope_theta": 100_000.0},
    "odd_widths": {"intermediate_size": 100, "vocab_size": 333},
}
NUM_BLOCKS = 64


def prompts(count: int, vocab_size: int = 320, seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 80, (count,), generator=generator).tolist()
    return [torch.randint(3, vocab_size, (length,), generator=generator).tolist() for length in lengths]


@torch.inference_mode()
def prompt_logits(runner: ModelRunner, token_ids: list[int], blocks: list[int]) -> torch.Tensor:
    """The logits of every position of a prompt computed in one chunk."""
    row, executor = make_row("r", token_ids, 0, blocks), runner._executor
    step = steps.build([row], runner._bounds)
    executor.run(step, runner.pool)
    chunks = np.array_split(np.arange(len(token_ids), dtype=np.int32), -(-len(token_ids) // 64))
    return torch.cat([executor.logits(chunk).values.clone() for chunk in chunks])


@pytest.fixture(params=["native", "reference"])
def make_runner(request: pytest.FixtureRequest) -> Callable[[LoadedModel, int], ModelRunner]:
    return poisoned_runner if request.param == "native" else reference_runner


def test_the_kernels_are_what_computes_here(tiny: LoadedModel) -> None:
    assert isinstance(poisoned_runner(tiny, 4)._executor, NativeExecutor)


@pytest.mark.parametrize("shape", SHAPES)
def test_logits_are_those_of_transformers_within_1e_4(
    shape: str, make_runner: Callable[[LoadedModel, int], ModelRunner], tmp_path: Path
) -> None:
    folder = make_tiny_llama(tmp_path / "model", seed=1, **SHAPES[shape])
    runner = make_runner(load_model(folder, tmp_path / "runtime"), NUM_BLOCKS)
    (prompt,) = prompts(1, seed=3)
    expected = reference_model(folder)(torch.tensor([prompt])).logits[0].detach()
    blocks = torch.randperm(NUM_BLOCKS)[: len(prompt) // BLOCK_SIZE + 1].tolist()
    torch.testing.assert_close(prompt_logits(runner, prompt, blocks), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("shape", SHAPES)
def test_greedy_tokens_are_those_of_transformers(shape: str, tmp_path: Path) -> None:
    folder = make_tiny_llama(tmp_path / "model", seed=2, **SHAPES[shape])
    runner = poisoned_runner(load_model(folder, tmp_path / "runtime"), NUM_BLOCKS)
    given = prompts(4)
    reference = reference_model(folder)
    expected = [reference_greedy(reference, prompt, 24) for prompt in given]
    assert generate(runner, given, 24, num_blocks=NUM_BLOCKS) == expected


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tmp_path_factory.mktemp("tiny")
    return load_model(make_tiny_llama(folder / "model", seed=4), folder / "runtime")


@pytest.fixture(scope="module")
def expected(tiny: LoadedModel) -> list[list[int]]:
    """What the prompts of these tests give, each alone and prefilled whole."""
    return generate(poisoned_runner(tiny, NUM_BLOCKS), prompts(6), 20, num_blocks=NUM_BLOCKS, chunk=512, batched=False)


@pytest.mark.parametrize("batched", [True, False], ids=["batched", "alone"])
@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_chunks_and_neighbours_do_not_change_the_tokens(
    tiny: LoadedModel, expected: list[list[int]], chunk: int, batched: bool
) -> None:
    runner = poisoned_runner(tiny, NUM_BLOCKS * 2)
    drawn = generate(runner, prompts(6), 20, num_blocks=NUM_BLOCKS * 2, chunk=chunk, batched=batched, seed=chunk)
    assert drawn == expected


@pytest.mark.parametrize("block_size", [16, 32])
def test_block_size_does_not_change_the_tokens(tiny: LoadedModel, expected: list[list[int]], block_size: int) -> None:
    runner = poisoned_runner(tiny, NUM_BLOCKS, block_size)
    assert generate(runner, prompts(6), 20, num_blocks=NUM_BLOCKS, block_size=block_size) == expected


def test_blocks_freed_full_of_nan_do_not_reach_their_next_owner(tiny: LoadedModel, expected: list[list[int]]) -> None:
    runner = poisoned_runner(tiny, NUM_BLOCKS)
    for _ in range(3):
        assert generate(runner, prompts(6), 20, num_blocks=NUM_BLOCKS, batched=False) == expected
        runner.pool.data.fill_(torch.nan)


def test_a_row_with_nan_in_its_own_past_fails_alone(tiny: LoadedModel) -> None:
    runner = poisoned_runner(tiny, NUM_BLOCKS)
    healthy, sick = [5, 6, 7], list(range(10, 22))
    runner.execute([make_row("a", healthy, 0, [3]), make_row("b", sick, 0, [7, 1])])
    (alone,) = runner.execute([make_row("a", [8], 3, [3])])
    runner.pool.data[:, 7, 2] = torch.nan
    together = runner.execute([make_row("b", [8], 12, [7, 1]), make_row("a", [8], 3, [3])])
    assert together[1] == alone
    assert isinstance(together[0], RowFailure)
    assert "not finite" in together[0].message


def test_running_rows_again_gives_the_same_tokens(tiny: LoadedModel) -> None:
    runner = poisoned_runner(tiny, NUM_BLOCKS)
    rows = [make_row("a", [5, 6, 7], 0, [3]), make_row("b", list(range(10, 30)), 0, [7, 1, 9])]
    assert runner.execute(rows) == runner.execute(rows)


def test_results_keep_the_order_of_the_rows_and_are_none_where_nothing_is_drawn(tiny: LoadedModel) -> None:
    runner = poisoned_runner(tiny, NUM_BLOCKS)
    chunks = {"a": [5, 6, 7], "b": list(range(10, 40)), "c": [9], "d": [60, 61, 62]}
    tables = {"a": [3], "b": [7, 1, 9, 2], "c": [30], "d": [31]}
    alone = [runner.execute([make_row(name, chunks[name], 0, tables[name])])[0] for name in chunks]
    rows = [make_row(name, chunks[name], 0, tables[name], sample=name != "b") for name in chunks]
    assert runner.execute(rows) == [alone[0], None, alone[2], alone[3]]
    assert runner.execute([]) == []


@pytest.mark.parametrize(
    ("row", "wrong"),
    [
        (make_row("req_1", [5], 512, list(range(65))), "512"),
        (make_row("req_1", [], 0, [1]), "positions"),
        (make_row("req_1", [320], 0, [1]), "vocabulary"),
        (make_row("req_1", [-1], 0, [1]), "vocabulary"),
        (make_row("req_1", [5] * 9, 0, [1]), "do not hold 9 tokens"),
        (make_row("req_1", [5], 0, [NUM_BLOCKS]), "block id"),
        (make_row("req_1", [5], 0, [-1]), "block id"),
    ],
)
def test_a_row_that_does_not_fit_is_refused_by_name(tiny: LoadedModel, row: Row, wrong: str) -> None:
    with pytest.raises(ValueError, match=f"req_1.*{wrong}"):
        poisoned_runner(tiny, NUM_BLOCKS).execute([row])


@pytest.mark.parametrize(("dtype", "tolerance"), [("fp16", 0.01), ("bf16", 0.1)])
def test_narrow_weights_give_the_logits_of_rounded_weights(dtype: str, tolerance: float, tmp_path: Path) -> None:
    folder = make_tiny_llama(tmp_path / "model", seed=5, attention_bias=True)
    runner = poisoned_runner(load_model(folder, tmp_path / "runtime", dtype), NUM_BLOCKS)
    reference = reference_model(folder)
    for parameter in reference.parameters():
        if parameter.dim() == 2:
            parameter.data = parameter.data.to(DTYPES[dtype]).float()
    (prompt,) = prompts(1, seed=3)
    expected = reference(torch.tensor([prompt])).logits[0].detach()
    blocks = list(range(NUM_BLOCKS))
    torch.testing.assert_close(prompt_logits(runner, prompt, blocks), expected, atol=tolerance, rtol=0)
