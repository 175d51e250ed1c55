"""The real model: greedy tokens in fp32 are those of transformers."""

from pathlib import Path

from model_harness import generate, load_model, poisoned_runner, reference_choices, reference_model
from tokenizers import Tokenizer

OUTPUT_TOKENS = 32
TIE = 1e-3
PROMPTS = [
    "The capital of France is",
    "Once upon a time there was a",
    "def fibonacci(n):\n    ",
    "1, 2, 3, 4, 5,",
    "In 1492, Columbus",
    "The three laws of robotics are",
    "Water boils at",
    "Dear Sir or Madam,\n\n",
    "SELECT name FROM users WHERE",
    "Il était une fois",
    "The quick brown fox",
    "E = mc^2 means that",
    "To be, or not to be,",
    "<html>\n<head>\n",
    "My favourite recipe needs two eggs,",
    "🙂 means",
    "The opposite of hot is",
    "A haiku about autumn:\n",
    "<|im_start|>user\nWhat is 12 times 12?<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nWrite a short story about a dragon who learns to read.<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>system\nYou are terse.<|im_end|>\n<|im_start|>user\nName a prime.<|im_end|>\n<|im_start|>assistant\n",
]


def test_greedy_tokens_are_those_of_transformers(bundled_dir: Path, bundled_runtime_dir: Path) -> None:
    tokenizer = Tokenizer.from_file(str(bundled_dir / "tokenizer.json"))
    prompts = [tokenizer.encode(prompt).ids for prompt in PROMPTS]
    runner = poisoned_runner(load_model(bundled_dir, bundled_runtime_dir), 512)
    drawn = generate(runner, prompts, OUTPUT_TOKENS, num_blocks=512, chunk=16)
    reference = reference_model(bundled_dir)
    ties = 0
    for text, prompt, ours in zip(PROMPTS, prompts, drawn, strict=True):
        theirs, leads = reference_choices(reference, prompt, ours)
        for index in range(OUTPUT_TOKENS):
            if ours[index] != theirs[index]:
                assert leads[index] <= TIE, f"{text!r}: token {index} is {ours[index]}, not {theirs[index]}"
                ties += 1
    print(f"{len(PROMPTS)} prompts of {OUTPUT_TOKENS} tokens; {ties} differ where the top two logits tie within {TIE}")
