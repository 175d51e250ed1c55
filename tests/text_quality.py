"""What a precision costs in quality: perplexity of a text, and how often the likeliest tokens are those of fp32.

The text is this repository's ARCHITECTURE.md: no model was trained on it, and both sides of a comparison read it as it
is now. It is cut into windows of :data:`WINDOW_TOKENS`, each computed alone, and every token but a window's first is
scored. The layers of the bundled model were 4 bits with a scale and a minimum for each 32 weights before, which int4 is
too: on it, int4 rounds nothing but the table of embeddings, to int8. Of a model in full precision it takes more.
"""

import math
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import torch
from tokenizers import Tokenizer

from dataplane.contracts.catalog import EngineSettings
from dataplane.contracts.generation import TokenScore
from dataplane.contracts.sampling import SamplingParams
from dataplane.engine.runner import Row, Scored
from dataplane.model.loader import load

TEXT = Path(__file__).resolve().parents[1] / "ARCHITECTURE.md"
WINDOW_TOKENS = 256
NEAR = 5
"""A token is close to another model's where it is among its so many likeliest."""
_BLOCK_SIZE = 8


@dataclass(frozen=True)
class Quality:
    """What a model says of a text: for each token its log probability, and the likeliest tokens at its place."""

    scores: list[TokenScore]

    @property
    def perplexity(self) -> float:
        return math.exp(-sum(score.logprob for score in self.scores) / len(self.scores))

    def agreement(self, other: "Quality") -> tuple[float, float]:
        """Return at which part of the places the likeliest token is the same, and at which it is close on both sides.

        Close is the rule by which other precisions are judged: each one's likeliest is among the other's likeliest few.
        """
        ours, theirs = ([[token for token, _ in score.top] for score in one.scores] for one in (self, other))
        pairs = list(zip(ours, theirs, strict=True))
        same = sum(one[0] == another[0] for one, another in pairs)
        close = sum(one[0] in another and another[0] in one for one, another in pairs)
        return same / len(pairs), close / len(pairs)


def windows(model_dir: Path, count: int) -> list[list[int]]:
    """Return the first ``count`` windows of the text in the model's tokens, fewer where it has no more."""
    token_ids = Tokenizer.from_file(str(model_dir / "tokenizer.json")).encode(TEXT.read_text()).ids
    starts = range(0, len(token_ids) - WINDOW_TOKENS + 1, WINDOW_TOKENS)
    return [token_ids[start : start + WINDOW_TOKENS] for start in starts[:count]]


def measured(model_dir: Path, runtime_dir: Path, text: list[list[int]], dtype: str, kv_dtype: str) -> Quality:
    """Run a model over windows as a replica of that precision does."""
    settings = EngineSettings(dtype=dtype, kv_dtype=kv_dtype)
    model = load(model_dir, runtime_dir, settings, lambda *_: None)
    torch.set_num_threads(1)
    runner = model.make_runner(WINDOW_TOKENS // _BLOCK_SIZE, _BLOCK_SIZE, WINDOW_TOKENS, 1)
    return Quality(list(chain.from_iterable(_scores(runner.execute([_row(window)])[0]) for window in text)))


def _row(window: list[int]) -> Row:
    return Row(
        "text", window, 0, range(WINDOW_TOKENS // _BLOCK_SIZE), False, SamplingParams(max_tokens=1, logprobs=NEAR), 0,
        (), score_token_ids=window[1:],
    )  # fmt: skip


def _scores(result: object) -> list[TokenScore]:
    assert isinstance(result, Scored), result
    return result.scores
