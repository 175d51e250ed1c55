"""The real engine drives the real model: however it schedules, a request's tokens are the same."""

from functools import partial

import pytest
import torch
from model_harness import generate, load_model, poison, poisoned_runner
from poison import poison_what_is_free
from tiny_models import make_tiny_llama

from dataplane.contracts.catalog import Share
from dataplane.contracts.generation import Submit
from dataplane.contracts.sampling import SamplingParams
from dataplane.engine.config import EngineConfig
from dataplane.engine.engine import Engine
from dataplane.model.loader import LoadedModel

MAX_TOKENS = 24
TENANTS = ("acme", "evil")


def sampling(index: int) -> SamplingParams:
    """Greedy for even requests, drawn with a seed for odd ones."""
    temperature = 0.9 if index % 2 else 0.0
    return SamplingParams(max_tokens=MAX_TOKENS, temperature=temperature, top_p=0.95, seed=index, ignore_eos=True)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tmp_path_factory.mktemp("tiny")
    return load_model(make_tiny_llama(folder / "model", seed=8), folder / "runtime")


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """Half of them begin with the same 40 tokens."""
    generator = torch.Generator().manual_seed(1)
    shared = torch.randint(3, 320, (40,), generator=generator).tolist()
    tails = [torch.randint(3, 320, (length,), generator=generator).tolist() for length in (1, 9, 17, 30, 3, 24, 8, 12)]
    return [shared + tail if index % 4 < 2 else tail for index, tail in enumerate(tails)]


@pytest.fixture(scope="module")
def expected(tiny: LoadedModel, prompts: list[list[int]]) -> list[list[int]]:
    """Each prompt alone, prefilled whole."""
    runner = poisoned_runner(tiny, 64)
    return generate(runner, prompts, MAX_TOKENS, num_blocks=64, chunk=512, batched=False, sampling=sampling)


def make_engine(tiny: LoadedModel, *, num_blocks: int = 128, budget: int = 64, prefix_cache: bool = True) -> Engine:
    config = EngineConfig(
        num_blocks=num_blocks,
        max_num_seqs=8,
        max_model_len=128,
        step_token_budget=budget,
        prefix_cache=prefix_cache,
    )
    shares = {tenant: Share() for tenant in TENANTS}
    runner = poisoned_runner(tiny, num_blocks)
    engine = Engine(config, runner, shares, salt_secret=b"salt", version_digest="v", eos_token_ids=(2,))
    poison_what_is_free(engine, partial(poison, runner.pool))
    return engine


def run(engine: Engine, prompts: list[list[int]], wave: str = "") -> list[list[int]]:
    tokens: dict[str, list[int]] = {f"{wave}{index}": [] for index in range(len(prompts))}
    for index, prompt in enumerate(prompts):
        engine.submit(Submit(f"{wave}{index}", TENANTS[index // 2 % 2], prompt, sampling(index)))
    while engine.has_work:
        for delta in engine.step():
            assert not delta.error_code, delta.error_message
            tokens[delta.request_id] += delta.token_ids
    engine.check_integrity()
    return list(tokens.values())


@pytest.mark.parametrize("budget", [9, 64, 512])
def test_chunked_and_batched_by_the_engine(
    tiny: LoadedModel, prompts: list[list[int]], expected: list[list[int]], budget: int
) -> None:
    assert run(make_engine(tiny, budget=budget, prefix_cache=False), prompts) == expected


def test_cold_and_hot_prefix(tiny: LoadedModel, prompts: list[list[int]], expected: list[list[int]]) -> None:
    engine = make_engine(tiny)
    assert run(engine, prompts, "cold") == expected
    hits = engine.load().prefix_cache_hits_tokens
    assert run(engine, prompts, "hot") == expected
    assert engine.load().prefix_cache_hits_tokens >= hits + 4 * 40


def test_preempted_and_resumed(tiny: LoadedModel, prompts: list[list[int]], expected: list[list[int]]) -> None:
    engine = make_engine(tiny, num_blocks=26)
    assert run(engine, prompts) == expected
    assert engine.load().num_preemptions > 0


def run_shaped(engine: Engine, prompts: list[list[int]], wave: str = "") -> tuple[list[list[int]], list[list[float]]]:
    """Tokens and scores of requests for two choices each, with penalties that the whole history weighs in."""
    tokens: dict[str, list[int]] = {}
    scores: dict[str, list[float]] = {}
    for index, prompt in enumerate(prompts):
        params = SamplingParams(
            max_tokens=MAX_TOKENS, temperature=0.8, min_p=0.01, presence_penalty=0.7, frequency_penalty=0.4,
            repetition_penalty=1.2, logit_bias={5: 2.0}, seed=index, ignore_eos=True, logprobs=2,
            score_prompt=index % 2 == 0,
        )  # fmt: skip
        request = Submit(f"{wave}{index}", TENANTS[index // 2 % 2], prompt, params, 2)
        tokens |= {sequence_id: [] for sequence_id in request.sequence_ids()}
        scores |= {sequence_id: [] for sequence_id in request.sequence_ids()}
        engine.submit(request)
    while engine.has_work:
        for delta in engine.step():
            assert not delta.error_code, delta.error_message
            tokens[delta.request_id] += delta.token_ids
            scores[delta.request_id] += [score.logprob for score in delta.scores]
    engine.check_integrity()
    return list(tokens.values()), list(scores.values())


def test_penalties_choices_and_scores_are_the_same_however_they_are_scheduled(
    tiny: LoadedModel, prompts: list[list[int]]
) -> None:
    prompts = prompts[:4]
    tokens, scores = run_shaped(make_engine(tiny, budget=512, prefix_cache=False), prompts)
    preempting, hot = make_engine(tiny, num_blocks=26), make_engine(tiny, budget=9)
    run_shaped(hot, prompts, "cold")
    for engine in (preempting, hot):
        again, rescored = run_shaped(engine, prompts)
        assert again == tokens
        for mine, first in zip(rescored, scores, strict=True):
            assert mine == pytest.approx(first, abs=1e-3)
    assert preempting.load().num_preemptions > 0
    assert hot.load().prefix_cache_hits_tokens > 0
    expected = [MAX_TOKENS + (len(prompt) - 1 if index % 2 == 0 else 0) for index, prompt in enumerate(prompts)]
    assert [len(found) for found in scores[::2]] == expected


def test_a_block_that_is_freed_while_it_is_read_fails_its_request_alone(
    tiny: LoadedModel, prompts: list[list[int]]
) -> None:
    engine = make_engine(tiny)
    for index in (0, 2):
        engine.submit(Submit(str(index), TENANTS[0], prompts[index], sampling(index)))
    engine.step()
    engine._pool._free_block(engine._sequences["0"].table.blocks[0])
    assert {delta.request_id: bool(delta.error_code) for delta in engine.step()} == {"0": True, "2": False}
