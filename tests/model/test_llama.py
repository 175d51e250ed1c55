"""The forward pass agrees with transformers on tiny random Llamas, however the work is cut and batched."""

from pathlib import Path

import pytest
import torch
from generation import (
    BLOCK_SIZE,
    generate,
    load_model,
    make_row,
    poisoned_runner,
    reference_greedy,
    reference_model,
)
from tiny_models import make_tiny_llama

from dataplane.model import batch
from dataplane.model.cpu_runner import CpuRunner

SHAPES = {
    "grouped_queries": {},
    "one_kv_head": {"num_kv_heads": 1},
    "all_heads": {"num_kv_heads": 4},
    "tied_head": {"tied_embeddings": True},
    "attention_bias": {"attention_bias": True},
    "mlp_bias": {"mlp_bias": True, "attention_bias": True},
    "wide_heads": {"head_dim": 24, "num_heads": 8, "num_kv_heads": 2, "rope_theta": 100_000.0},
}
NUM_BLOCKS = 64


def prompts(count: int, vocab_size: int = 320, seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 80, (count,), generator=generator).tolist()
    return [torch.randint(3, vocab_size, (length,), generator=generator).tolist() for length in lengths]


def prompt_logits(runner: CpuRunner, token_ids: list[int], blocks: list[int]) -> torch.Tensor:
    """The logits of every position of a prompt computed in one chunk."""
    row = make_row("r", token_ids, 0, blocks)
    config = runner.model.config
    with torch.inference_mode():
        step = batch.build([row], BLOCK_SIZE, NUM_BLOCKS, config.vocab_size, config.context_tokens)
        return runner.model.logits(runner.model.hidden(step, runner.pool))


@pytest.mark.parametrize("shape", SHAPES)
def test_logits_are_those_of_transformers_within_1e_4(shape: str, tmp_path: Path) -> None:
    folder = make_tiny_llama(tmp_path / "model", seed=1, **SHAPES[shape])
    runner = poisoned_runner(load_model(folder, tmp_path / "runtime"), NUM_BLOCKS)
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
    expected = [reference_greedy(reference, prompt, 24)[0] for prompt in given]
    assert generate(runner, given, 24, num_blocks=NUM_BLOCKS) == expected
