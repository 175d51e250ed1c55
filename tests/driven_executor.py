"""Drive any executor through the steps of some sequences: for comparing executors with each other."""

import random
from array import array
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from tiny_models import CONFIGS, make_tiny, make_tiny_llama
from torch import Tensor

from dataplane.contracts.catalog import EngineSettings
from dataplane.contracts.parallel import Place
from dataplane.contracts.sampling import SamplingParams
from dataplane.engine.runner import Row
from dataplane.model import loader
from dataplane.model import step as steps
from dataplane.model.executor import Executor
from dataplane.model.kv_pool import KvPool
from dataplane.model.loader import LoadedModel
from dataplane.model.program import Program
from dataplane.model.step import Step

BLOCK_SIZE, NUM_BLOCKS, CONTEXT = 8, 128, 600
GREEDY = SamplingParams(max_tokens=1 << 20, temperature=0.0)
FAMILIES = ("llama", *CONFIGS)
Chunks = dict[str, Sequence[int]]
"""The next tokens of some sequences, by name: a step."""


def uneven_model(
    family: str,
    folder: Path,
    precision: str = "fp32",
    place: Place = Place(),  # noqa: B008 - it is frozen
    **fields: int,
) -> LoadedModel:
    """A tiny random model of ``family`` whose widths fill up neither lanes, nor groups, nor powers of two."""
    odd = {"intermediate_size": 50, "head_dim": 24, **fields}
    if family == "llama":
        made = make_tiny_llama(folder / "model", attention_bias=True, mlp_bias=True, tied_embeddings=True, **odd)
    elif family == "gpt2":
        made = make_tiny(folder / "model", family, n_embd=72, n_inner=50, n_head=3)
    else:
        made = make_tiny(folder / "model", family, num_attention_heads=6, **odd)
    return loader.load(made, folder / "runtime", EngineSettings(dtype=precision), lambda *figures: None, place=place)


def random_tokens(count: int, seed: int, vocab: int = 320) -> list[int]:
    return random.Random(seed).choices(range(vocab), k=count)


STEPS: list[Chunks] = [
    {"a": random_tokens(29, 1), "b": random_tokens(1, 2), "c": random_tokens(8, 3)},
    {"c": random_tokens(7, 4), "a": random_tokens(1, 5)},
    {"b": random_tokens(18, 6)},
    {"a": random_tokens(1, 7), "b": random_tokens(1, 8), "c": random_tokens(1, 9)},
]
"""Ragged prompts beyond the windows of tiny models and over the borders of blocks, in chunks, and a decode step."""


def apart(found: Tensor, expected: Tensor) -> float:
    """How far ``found`` is from ``expected``, as a part of how far the values of that are from each other."""
    return float((found - expected).norm() / (expected - expected.mean()).norm())


class Drive:
    """Feeds sequences to an executor chunk by chunk, each on blocks of its own.

    Blocks are scattered, and hold NaN until they are written; int8 has scales of NaN instead.
    """

    def __init__(self, executor: Executor, program: Program, kv_dtype: str, device: str = "cpu") -> None:
        self.executor = executor
        self.pool = KvPool(program, NUM_BLOCKS, BLOCK_SIZE, kv_dtype, device)
        self._vocab = program.widths["logits"]
        if kv_dtype != "int8":
            self.pool.data.fill_(torch.nan)
        self.pool.scales.fill_(torch.nan)
        self._free = list(range(NUM_BLOCKS))
        random.Random(1).shuffle(self._free)
        self.tables: dict[str, array[int]] = {}
        self._done: dict[str, int] = {}

    def logits(self, steps: Sequence[Chunks]) -> Tensor:
        """Compute ``steps``; return the logits of all of their tokens, row after row, on the CPU."""
        return torch.cat([rows for chunks in steps for rows in self.run(chunks).values()]).cpu()

    def run(self, chunks: Chunks) -> dict[str, Tensor]:
        """Compute the next tokens of some sequences in one step; return the logits of all of them by name."""
        step = self.step(chunks)
        self.executor.run(step, self.pool)
        logits = self.executor.logits(np.arange(len(step.token_ids), dtype=np.int32))
        sizes = [len(token_ids) for token_ids in chunks.values()]
        return dict(zip(chunks, logits.values.clone().split(sizes), strict=True))

    def step(self, chunks: Chunks) -> Step:
        """Lay out that step, with blocks for it."""
        rows: list[Row] = []
        for name, token_ids in chunks.items():
            table, done = self.tables.setdefault(name, array("i")), self._done.get(name, 0)
            self._done[name] = done + len(token_ids)
            while len(table) * BLOCK_SIZE < self._done[name]:
                table.append(self._free.pop())
            rows.append(Row(name, list(token_ids), done, table, True, GREEDY, 0, ()))
        return steps.build(rows, steps.Bounds(BLOCK_SIZE, NUM_BLOCKS, self._vocab, CONTEXT))

    def forget(self, name: str) -> None:
        """Take the blocks of a sequence back; its name may be used again."""
        self._free += self.tables.pop(name)
        self._done.pop(name)
