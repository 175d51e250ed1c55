"""Every architecture and every way to stretch positions agrees with transformers on tiny random models."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from model_harness import (
    generate,
    load_model,
    make_row,
    poisoned_runner,
    reference_choices,
    reference_runner,
)
from msgspec.structs import replace
from torch import Tensor

from dataplane.contracts.memory import weight_bytes
from dataplane.contracts.model_config import FAMILIES
from dataplane.model import step as steps
from dataplane.model.architectures import ARCHITECTURES, architecture_of
from dataplane.model.loader import LoadedModel
from dataplane.model.model_runner import ModelRunner
from dataplane.model.native import NativeExecutor

SIZES: dict[str, Any] = {
    "vocab_size": 320, "hidden_size": 64, "intermediate_size": 100, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512,
}  # fmt: skip
WINDOW = {"sliding_window": 20}
ALTERNATING = {**WINDOW, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
HEADS = {"head_dim": 24}
LINEAR = {"rope_type": "linear", "factor": 4.0}
LLAMA_3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
OTHER_YARN = {**YARN, "attention_factor": 0.7, "beta_fast": 8.0, "beta_slow": 2.0}


def scaled(scaling: dict[str, Any]) -> dict[str, Any]:
    return {"rope_parameters": {**scaling, "rope_theta": 10_000.0}}


CONFIGS: dict[str, Callable[[], transformers.PretrainedConfig]] = {
    "mistral": lambda: transformers.MistralConfig(**SIZES, **WINDOW, **HEADS),
    "qwen2": lambda: transformers.Qwen2Config(**SIZES, **ALTERNATING, use_sliding_window=True),
    "qwen3": lambda: transformers.Qwen3Config(**SIZES, **HEADS, tie_word_embeddings=True, attention_bias=True),
    "gemma2": lambda: transformers.Gemma2Config(
        **SIZES, **ALTERNATING, **HEADS, query_pre_attn_scalar=30, attn_logit_softcapping=2.0,
        final_logit_softcapping=3.0,
    ),
    "gemma3": lambda: transformers.Gemma3TextConfig(
        **SIZES, **ALTERNATING, **HEADS, query_pre_attn_scalar=30, rope_scaling=dict(LINEAR)
    ),
    "gpt2": lambda: transformers.GPT2Config(
        vocab_size=320, n_embd=72, n_inner=100, n_head=3, n_layer=3, n_positions=512, bos_token_id=1, eos_token_id=2
    ),
    "linear": lambda: transformers.LlamaConfig(**SIZES, **scaled(LINEAR)),
    "llama3": lambda: transformers.LlamaConfig(**SIZES, **scaled(LLAMA_3)),
    "yarn": lambda: transformers.Qwen3Config(**SIZES, **scaled(YARN), head_dim=16),
    "other_yarn": lambda: transformers.LlamaConfig(**SIZES, **scaled(OTHER_YARN)),
}  # fmt: skip
FAMILY_CONFIGS = ["mistral", "qwen2", "qwen3", "gemma2", "gemma3", "gpt2"]
NUM_BLOCKS = 64
MAX_TOKENS = 10
TOP = 5
NARROW = ["fp16", "int8"]


@dataclass(frozen=True)
class Made:
    """A random model of transformers, where it was saved, and as it was loaded in fp32."""

    oracle: Any
    folder: Path
    loaded: LoadedModel


@torch.no_grad()
def with_telling_weights(model: Any) -> Any:
    """Give every parameter a scale at which it shows in the logits."""
    for name, parameter in model.named_parameters():
        noise = torch.randn_like(parameter)
        if "norm" in name or ".ln_" in name:
            parameter.add_(noise / 10)
        elif parameter.dim() == 1:
            parameter.copy_(noise / 10)
        elif "embed" in name or ".wte" in name or ".wpe" in name:
            parameter.copy_(noise * 0.2)
        else:
            transposed = model.config.model_type == "gpt2"
            parameter.copy_(noise / parameter.shape[0 if transposed else 1] ** 0.5)
    return model.eval()


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Made]:
    made: dict[str, Made] = {}

    def of(name: str) -> Made:
        if name not in made:
            torch.manual_seed(7)
            oracle = with_telling_weights(transformers.AutoModelForCausalLM.from_config(CONFIGS[name]()))
            base = tmp_path_factory.mktemp(name)
            oracle.save_pretrained(base / "model")
            made[name] = Made(oracle, base / "model", load_model(base / "model", base / "runtime"))
        return made[name]

    return of


@pytest.fixture(params=["native", "reference"])
def make_runner(request: pytest.FixtureRequest) -> Callable[[LoadedModel, int], ModelRunner]:
    return poisoned_runner if request.param == "native" else reference_runner


def prompts() -> list[list[int]]:
    """Longer than a window, and of one token."""
    return [random_tokens(length) for length in (45, 1)]


def random_tokens(count: int) -> list[int]:
    return torch.randint(3, 320, (count,), generator=torch.Generator().manual_seed(3)).tolist()


@torch.inference_mode()
def logits(runner: ModelRunner, token_ids: list[int]) -> Tensor:
    """The logits of every position of a prompt that is computed in one step."""
    blocks = list(range(len(token_ids) // runner.pool.block_size + 1))
    runner._executor.run(steps.build([make_row("r", token_ids, 0, blocks[::-1])], runner._bounds), runner.pool)
    parts = np.array_split(np.arange(len(token_ids), dtype=np.int32), -(-len(token_ids) // 64))
    return torch.cat([runner._executor.logits(part).values.clone() for part in parts])


@torch.inference_mode()
def oracle_logits(made: Made, token_ids: list[int]) -> Tensor:
    return made.oracle(torch.tensor([token_ids])).logits[0]


def test_every_family_has_a_file_that_computes_it() -> None:
    assert ARCHITECTURES.keys() == FAMILIES.keys()


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_are_those_of_transformers_within_1e_4(
    name: str, make: Callable[[str], Made], make_runner: Callable[[LoadedModel, int], ModelRunner]
) -> None:
    made, prompt = make(name), random_tokens(280)  # the kernels cut contexts at 256
    expected = oracle_logits(made, prompt)
    assert expected.std() > 0.1
    torch.testing.assert_close(logits(make_runner(made.loaded, NUM_BLOCKS), prompt), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", CONFIGS)
def test_greedy_tokens_are_those_of_transformers_whatever_the_chunks(
    name: str, make: Callable[[str], Made], make_runner: Callable[[LoadedModel, int], ModelRunner]
) -> None:
    made = make(name)
    runner = make_runner(made.loaded, NUM_BLOCKS)
    chunks = (1, 7, 64) if isinstance(runner._executor, NativeExecutor) else (7,)
    drawn = [generate(runner, prompts(), MAX_TOKENS, num_blocks=NUM_BLOCKS, chunk=chunk) for chunk in chunks]
    assert all(tokens == drawn[0] for tokens in drawn)
    for prompt, output in zip(prompts(), drawn[0], strict=True):
        assert reference_choices(made.oracle, prompt, output)[0] == output


@pytest.mark.parametrize("name", FAMILY_CONFIGS)
def test_a_neighbour_does_not_change_a_bit(name: str, make: Callable[[str], Made]) -> None:
    runner = poisoned_runner(make(name).loaded, NUM_BLOCKS)
    long, short = random_tokens(70), random_tokens(33)
    with torch.inference_mode():
        executor = runner._executor
        executor.run(steps.build([make_row("a", long, 0, list(range(9)))], runner._bounds), runner.pool)
        alone = executor.logits(np.array([69], np.int32)).values.clone()
        rows = [make_row("b", short, 0, list(range(20, 25))), make_row("a", long, 0, list(range(9, 18)))]
        executor.run(steps.build(rows, runner._bounds), runner.pool)
        assert torch.equal(executor.logits(np.array([33 + 69], np.int32)).values, alone)


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("name", FAMILY_CONFIGS)
def test_narrow_weights_part_from_fp32_only_where_both_are_close(
    name: str, dtype: str, make: Callable[[str], Made], tmp_path: Path
) -> None:
    """At the first different token each must be among the other's likeliest."""
    made = make(name)
    narrow = load_model(made.folder, tmp_path, dtype)
    runner = poisoned_runner(narrow, NUM_BLOCKS)
    for prompt, output in zip(prompts(), generate(runner, prompts(), MAX_TOKENS, num_blocks=NUM_BLOCKS), strict=True):
        wide = reference_choices(made.oracle, prompt, output)[0]
        parted = next((at for at, (own, other) in enumerate(zip(output, wide, strict=True)) if own != other), None)
        if parted is not None:
            before = prompt + output[:parted]
            assert output[parted] in oracle_logits(made, before)[-1].topk(TOP).indices.tolist()
            assert wide[parted] in logits(runner, before)[-1].topk(TOP).indices.tolist()


@pytest.mark.parametrize("name", FAMILY_CONFIGS)
def test_the_planner_knows_what_the_weights_take(name: str, make: Callable[[str], Made], tmp_path: Path) -> None:
    made = make(name)
    load_model(made.folder, tmp_path, "fp16")
    (blob,) = tmp_path.glob("*/weights.bin")
    # the rest is what fills up the last panel of a gate that is no multiple of eight, and alignment
    assert weight_bytes(made.loaded.config, "fp16") == pytest.approx(blob.stat().st_size, rel=0.03)


def changes() -> Iterator[tuple[str, dict[str, object]]]:
    """What each config says, unsaid."""
    yield from ((name, {"sliding_window": None}) for name in ("mistral", "qwen2", "gemma2", "gemma3"))
    yield from (("gemma2", {field: None}) for field in ("attention_softcap", "logit_softcap", "attention_scale"))
    yield from (("gemma3", {field: None}) for field in ("sliding_rope_theta", "rope_scaling", "attention_scale"))
    yield from ((name, {"rope_scaling": None}) for name in ("linear", "llama3", "yarn", "other_yarn"))


@pytest.mark.parametrize(("name", "change"), list(changes()))
def test_what_a_config_says_shows_in_the_logits(
    name: str, change: dict[str, object], make: Callable[[str], Made]
) -> None:
    """The control of the comparison with transformers: it would see each of them forgotten."""
    made, prompt = make(name), random_tokens(70)
    config = replace(made.loaded.config, **change)
    forgetful = LoadedModel(**{
        **{field: getattr(made.loaded, field) for field in made.loaded.__dataclass_fields__},
        "config": config, "program": architecture_of(config).program(config),
    })  # fmt: skip
    found = logits(reference_runner(forgetful, NUM_BLOCKS), prompt)
    assert (found - oracle_logits(made, prompt)).abs().max() > 1e-2
