"""Drive a runner as the engine would: blocks from a shuffled pool, prompts in chunks, rows batched or alone."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import transformers

from dataplane.contracts.catalog import EngineSettings
from dataplane.contracts.sampling import SamplingParams
from dataplane.engine.runner import Row
from dataplane.model.kv_pool import KvPool
from dataplane.model.loader import LoadedModel, load
from dataplane.model.model_runner import ModelRunner
from dataplane.model.reference import ReferenceExecutor

# two OpenMP threads that wait for each other crawl on a machine where something else runs too
torch.set_num_threads(1)

BLOCK_SIZE = 8
MAX_TOKENS, MAX_ROWS = 2048, 64
GREEDY = SamplingParams(max_tokens=1 << 20, temperature=0.0)


def ignore_progress(phase: str, done_bytes: int, total_bytes: int) -> None:
    """For loads whose progress no test looks at."""


def load_model(model_dir: Path, runtime_dir: Path, dtype: str = "fp32") -> LoadedModel:
    return load(model_dir, runtime_dir, EngineSettings(dtype=dtype), ignore_progress)


def poison(pool: KvPool, blocks: int | slice | list[int] = slice(None)) -> None:
    """Fill blocks with what no number comes of."""
    pool.data[:, blocks] = torch.nan if pool.data.is_floating_point() else 111
    if pool.scales.numel():
        pool.scales[:, blocks] = torch.nan


def poisoned_runner(loaded: LoadedModel, num_blocks: int, block_size: int = BLOCK_SIZE) -> ModelRunner:
    """A runner whose blocks all hold NaN, as blocks freed by others may."""
    runner = loaded.make_runner(num_blocks, block_size, MAX_TOKENS, MAX_ROWS)
    poison(runner.pool)
    return runner


def reference_runner(loaded: LoadedModel, num_blocks: int, block_size: int = BLOCK_SIZE) -> ModelRunner:
    """A runner of plain torch, its blocks as poisoned."""
    pool = KvPool(loaded.program, num_blocks, block_size, loaded.kv_dtype)
    poison(pool)
    return ModelRunner(loaded.config, ReferenceExecutor(loaded.program, loaded.weights), pool, loaded.context_tokens)


def make_row(
    request_id: str,
    token_ids: list[int],
    position: int,
    block_table: Sequence[int],
    *,
    sample: bool = True,
    sampling: SamplingParams = GREEDY,
    output_index: int = 0,
    ban_token_ids: tuple[int, ...] = (),
) -> Row:
    return Row(request_id, token_ids, position, block_table, sample, sampling, output_index, ban_token_ids)


class Request:
    """A request on its way: its tokens, how many are computed, its blocks."""

    def __init__(self, name: str, prompt: list[int], sampling: SamplingParams) -> None:
        self.name = name
        self.tokens = list(prompt)
        self.num_prompt = len(prompt)
        self.computed = 0
        self.blocks: list[int] = []
        self.sampling = sampling

    @property
    def output(self) -> list[int]:
        return self.tokens[self.num_prompt :]


def generate(
    runner: ModelRunner,
    prompts: Sequence[list[int]],
    max_tokens: int,
    *,
    num_blocks: int,
    chunk: int = 64,
    batched: bool = True,
    seed: int = 0,
    block_size: int = BLOCK_SIZE,
    sampling: Callable[[int], SamplingParams] = lambda index: GREEDY,
) -> list[list[int]]:
    """Return the tokens drawn after each prompt, exactly ``max_tokens`` each."""
    free = list(range(num_blocks))
    random.Random(seed).shuffle(free)
    sequences = [Request(f"r{index}", prompt, sampling(index)) for index, prompt in enumerate(prompts)]
    for group in [sequences] if batched else [[sequence] for sequence in sequences]:
        while unfinished := [one for one in group if len(one.output) < max_tokens]:
            rows = [_row(one, free, chunk, block_size) for one in unfinished]
            for one, row, token in zip(unfinished, rows, runner.execute(rows), strict=True):
                one.computed += len(row.token_ids)
                if row.sample:
                    assert isinstance(token, int), token
                    one.tokens.append(token)
        for one in group:
            free.extend(one.blocks)
            poison(runner.pool, one.blocks)
    return [one.output for one in sequences]


def _row(one: Request, free: list[int], chunk: int, block_size: int) -> Row:
    end = min(one.computed + chunk, len(one.tokens))
    while len(one.blocks) * block_size < end:
        one.blocks.append(free.pop())
    return make_row(
        one.name,
        one.tokens[one.computed : end],
        one.computed,
        one.blocks,
        sample=end == len(one.tokens),
        sampling=one.sampling,
        output_index=len(one.output),
    )


def reference_model(model_dir: Path) -> transformers.LlamaForCausalLM:
    """The oracle: transformers in fp32, without an end token."""
    model = transformers.LlamaForCausalLM.from_pretrained(model_dir, dtype=torch.float32, local_files_only=True).eval()
    model.generation_config = transformers.GenerationConfig(do_sample=False, use_cache=True, pad_token_id=0)
    model.config.eos_token_id = None
    return model


@torch.inference_mode()
def reference_greedy(model: transformers.LlamaForCausalLM, prompt: list[int], max_tokens: int) -> list[int]:
    """Return the oracle's greedy tokens."""
    given = torch.tensor([prompt])
    out = model.generate(given, attention_mask=torch.ones_like(given), max_new_tokens=max_tokens)
    tokens = out[0, len(prompt) :].tolist()
    assert len(tokens) == max_tokens
    return tokens


@torch.inference_mode()
def reference_choices(
    model: transformers.LlamaForCausalLM, prompt: list[int], output: list[int]
) -> tuple[list[int], list[float]]:
    """Return what the oracle chooses at each position of ``output``, and its logit's lead over ``output``'s token.

    ``output`` is the oracle's greedy generation exactly when it equals these choices; one pass tells, instead of one
    for each token.
    """
    logits = model(torch.tensor([prompt + output[:-1]])).logits[0, len(prompt) - 1 :]
    best = logits.max(dim=-1)
    leads = best.values - logits.gather(1, torch.tensor(output)[:, None])[:, 0]
    return best.indices.tolist(), leads.tolist()
