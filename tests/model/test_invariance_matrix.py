"""Nothing around a request changes a bit of its answer: the matrix, and what would be seen if something did.

The watched request is computed alone and whole; then again in each of these ways, greedily and drawn by a seed. Equal
are its tokens, its log probabilities and those of the likeliest tokens beside them, to the last bit:

=========================  =====  =====  =====  ===========  ======  ========
around the request         fp32   int8   int4   int8 keys    tensor  pipeline
                                                and values   x 2     x 2
=========================  =====  =====  =====  ===========  ======  ========
prompt in chunks of 1      bits   bits   bits   bits         bits    bits
                    of 7   bits   bits   bits   bits         bits    bits
                    of 64  bits   bits   bits   bits         bits    bits
prefix hot, not cold       bits   bits   bits   bits         bits    bits
preempted after each step  bits   bits   bits   bits         bits    bits
neighbours of all kinds    bits   bits   bits   bits         bits    bits
-------------------------  -----  -----  -----  -----------  ------  --------
beside fp32 on one rank           close  close  close        tokens  tokens
=========================  =====  =====  =====  ===========  ======  ========

``close`` is the rule for what is rounded otherwise: where two answers first differ, each one's token is among the
other's likeliest few. Between ranks sums are rounded otherwise too, but hardly: their tokens are those of one.

The same with every other architecture and precision, on logits: ``test_native.py``. The scheduler's part, with random
preemptions, aborts and tenants: ``tests/engine/test_same_tokens.py``. More ranks: ``test_ranks.py``.
"""

import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from model_harness import ignore_progress, poison, reference_runner
from msgspec.structs import replace
from poison import poison_what_is_free
from ranks_harness import NUM_BLOCKS, spread
from tiny_models import make_tiny_llama

from dataplane.contracts.catalog import EngineSettings
from dataplane.contracts.generation import Submit, TokenScore
from dataplane.contracts.parallel import Parallel
from dataplane.contracts.sampling import SamplingParams
from dataplane.engine.config import EngineConfig
from dataplane.engine.engine import Engine
from dataplane.model import sampler
from dataplane.model.loader import LoadedModel, load
from dataplane.model.model_runner import ModelRunner

SUBJECT, TENANT = "subject", "acme"
MAX_TOKENS = 10
PROMPT = random.Random(5).choices(range(3, 320), k=70)
NEAR = 20
GREEDY = SamplingParams(max_tokens=MAX_TOKENS, temperature=0.0, ignore_eos=True, logprobs=NEAR)
DRAWS = {"greedy": GREEDY, "seeded": replace(GREEDY, temperature=1.1, top_p=0.95, seed=9)}
PRECISIONS = {"fp32": ("fp32", "auto"), "int8": ("int8", "auto"), "int4": ("int4", "auto"), "kv_int8": ("fp32", "int8")}
RANKS = {"tensor": Parallel(2), "pipeline": Parallel(1, 2)}


class Heard(NamedTuple):
    """An answer: its tokens, and what the model thought of them."""

    token_ids: list[int]
    scores: list[TokenScore]


class Serving:
    """An engine on a runner whose free blocks hold garbage, and what it says of the watched request."""

    def __init__(self, runner: ModelRunner, **settings: Any) -> None:
        sizes = {"num_blocks": NUM_BLOCKS, "max_num_seqs": 8, "max_model_len": 128, "step_token_budget": 160}
        config = EngineConfig(**(sizes | settings))
        self.engine = Engine(config, runner, {}, salt_secret=b"salt", version_digest="v", eos_token_ids=(2,))
        poison_what_is_free(self.engine, partial(poison, runner.pool))
        self.heard = Heard([], [])
        self.cached_tokens = 0

    def ask(self, name: str, prompt: list[int], sampling: SamplingParams) -> None:
        self.engine.submit(Submit(name, TENANT, prompt, sampling))

    def step(self) -> None:
        for delta in self.engine.step():
            assert not delta.error_code, delta.error_message
            if delta.request_id == SUBJECT:
                self.heard.token_ids.extend(delta.token_ids)
                self.heard.scores.extend(delta.scores)
                self.cached_tokens = delta.cached_tokens

    def finish(self) -> Heard:
        while self.engine.has_work:
            self.step()
        self.engine.check_integrity()
        return self.heard

    def preempt(self) -> None:
        self.engine._scheduler._preempt(self.engine._sequences[SUBJECT])


# The ways. Each yields what was heard of the watched request, once or several times.


def alone(runner: ModelRunner, draw: SamplingParams, **settings: Any) -> Heard:
    serving = Serving(runner, **settings)
    serving.ask(SUBJECT, PROMPT, draw)
    return serving.finish()


def in_chunks(runner: ModelRunner, draw: SamplingParams, *, tokens: int) -> Iterator[Heard]:
    yield alone(runner, draw, prefill_chunk_tokens=tokens)


def hot(runner: ModelRunner, draw: SamplingParams) -> Iterator[Heard]:
    serving = Serving(runner)
    serving.ask("before", PROMPT, DRAWS["greedy"])
    serving.finish()
    serving.ask(SUBJECT, PROMPT, draw)
    yield serving.finish()
    assert serving.cached_tokens == 64


def preempted(runner: ModelRunner, draw: SamplingParams) -> Iterator[Heard]:
    """After each of the steps that do not end it; what was computed is cached, or lost."""
    for steps in range(1, MAX_TOKENS + 1):  # the prompt takes two, the second of which draws the first token
        serving = Serving(runner, prefill_chunk_tokens=40, prefix_cache=steps % 2 == 0)
        serving.ask(SUBJECT, PROMPT, draw)
        for _ in range(steps):
            serving.step()
        serving.preempt()
        yield serving.finish()


def among_neighbours(runner: ModelRunner, draw: SamplingParams) -> Iterator[Heard]:
    """They come before it, with it and after it, share its prefix or its seed, and leave in the middle."""
    serving = Serving(runner, prefill_chunk_tokens=23)
    serving.ask("shares", PROMPT[:45] + [9] * 5, DRAWS["seeded"])
    serving.step()
    serving.ask("other", [7] * 61, replace(draw, seed=1))
    serving.ask(SUBJECT, PROMPT, draw)
    serving.ask("short", [5, 4], draw)
    for _ in range(4):
        serving.step()
    serving.engine.abort("other")
    serving.ask("equal", PROMPT, replace(draw, choice=3))
    yield serving.finish()


Way = Callable[[ModelRunner, SamplingParams], Iterator[Heard]]
WAYS: dict[str, Way] = {
    **{f"chunks of {tokens}": partial(in_chunks, tokens=tokens) for tokens in (1, 7, 64)},
    "hot prefix": hot,
    "preempted": preempted,
    "neighbours": among_neighbours,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("invariance") / "model", num_kv_heads=4, seed=4)


def loaded(folder: Path, precision: str) -> LoadedModel:
    dtype, kv_dtype = PRECISIONS[precision]
    settings = EngineSettings(dtype=dtype, kv_dtype=kv_dtype)
    return load(folder, folder.parent / "runtime", settings, ignore_progress)


def runner_of(folder: Path, precision: str = "fp32") -> ModelRunner:
    return loaded(folder, precision).make_runner(NUM_BLOCKS, 8, 512, 8)


@pytest.fixture(scope="module")
def plain(folder: Path) -> ModelRunner:
    """In fp32, on one rank."""
    return runner_of(folder)


@pytest.fixture(scope="module", params=[*PRECISIONS, *RANKS])
def runner(request: pytest.FixtureRequest, folder: Path) -> Iterator[ModelRunner]:
    if request.param in PRECISIONS:
        yield runner_of(folder, request.param)
        return
    with spread(folder, RANKS[request.param]) as made:
        yield made.runner


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_nothing_around_a_request_changes_a_bit_of_its_answer(
    runner: ModelRunner, way: Way, draw: SamplingParams
) -> None:
    expected = alone(runner, draw)
    assert len(expected.scores) == len(expected.token_ids) == MAX_TOKENS
    for heard in way(runner, draw):
        assert heard == expected


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
@pytest.mark.parametrize("runner", RANKS, indirect=True)
def test_ranks_say_what_one_says(runner: ModelRunner, plain: ModelRunner, draw: SamplingParams) -> None:
    assert alone(runner, draw).token_ids == alone(plain, draw).token_ids


@pytest.mark.parametrize("runner", [name for name in PRECISIONS if name != "fp32"], indirect=True)
def test_a_precision_says_what_is_close_to_fp32(runner: ModelRunner, plain: ModelRunner) -> None:
    """Close: where they first differ, each one's token is among the other's likeliest, of a vocabulary of hundreds.

    Random weights are far from what 4 bits hold, so that these are more than the five that a real model is held to.
    """
    for prompt in (PROMPT, PROMPT[:9], PROMPT[::-1]):
        ours, theirs = (_answer_to(prompt, one) for one in (runner, plain))
        differing = [
            pair for pair in zip(ours.scores, theirs.scores, strict=True) if pair[0].token_id != pair[1].token_id
        ]
        for mine, other in differing[:1]:
            assert mine.token_id in [token for token, _ in other.top]
            assert other.token_id in [token for token, _ in mine.top]


def _answer_to(prompt: list[int], runner: ModelRunner) -> Heard:
    serving = Serving(runner)
    serving.ask(SUBJECT, prompt, GREEDY)
    return serving.finish()


# The inverse: without what keeps the answers equal, the matrix sees that they are not.


@pytest.mark.parametrize("way", ["chunks of 7", "preempted", "neighbours"])
def test_sums_in_another_order_by_batch_are_seen(folder: Path, way: str) -> None:
    """Plain torch adds up a row in an order that depends on how many there are."""
    by_torch = reference_runner(loaded(folder, "fp32"), NUM_BLOCKS)
    expected = alone(by_torch, GREEDY)
    assert any(heard != expected for heard in WAYS[way](by_torch, GREEDY))


def test_draws_from_one_generator_for_all_are_seen(plain: ModelRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = random.Random()
    monkeypatch.setattr(sampler, "uniform", lambda seed, output_index, choice=0: shared.random())
    shared.seed(1)
    expected = alone(plain, DRAWS["seeded"])
    shared.seed(1)
    assert alone(plain, DRAWS["seeded"]) == expected
    shared.seed(1)
    (heard,) = among_neighbours(plain, DRAWS["seeded"])
    assert heard.token_ids != expected.token_ids
