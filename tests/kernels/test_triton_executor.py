"""The GPU's executor computes what plain torch does, of every family, in Triton's interpreter."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from driven_executor import FAMILIES, STEPS, Chunks, Drive, apart, random_tokens, uneven_model
from torch import Tensor

from dataplane.contracts.parallel import Parallel, Place
from dataplane.model.device_weights import on_device
from dataplane.model.devices import unsupported
from dataplane.model.loader import LoadedModel
from dataplane.model.program import Attention, Program
from dataplane.model.reference import ReferenceExecutor
from dataplane.model.triton_executor import TritonExecutor

QUICK: list[Chunks] = [
    {"a": random_tokens(3, 1), "b": random_tokens(1, 2)},
    {"b": random_tokens(2, 3), "a": random_tokens(1, 4)},
]
"""Ragged prompts together; then the rest of one beside the first token that another draws."""


def triton_executor(model: LoadedModel, activations: torch.dtype | None = None) -> TritonExecutor:
    weights = on_device(model.program, model.weights, "cpu")
    if activations is not None:
        weights = replace(weights, activations=activations)
    return TritonExecutor(model.program, weights, "cpu")


def both(
    model: LoadedModel, steps: list[Chunks], kv_dtype: str, activations: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """The logits of every token of ``steps``, by the kernels and by plain torch."""
    executors = (triton_executor(model, activations), ReferenceExecutor(model.program, model.weights))
    found, expected = (Drive(executor, model.program, kv_dtype).logits(steps) for executor in executors)
    return found, expected


@pytest.mark.parametrize("family", ["gemma3_text", "gpt2"])  # between them, every operation
def test_a_family_computes_what_plain_torch_does(family: str, tmp_path: Path) -> None:
    found, expected = both(uneven_model(family, tmp_path), QUICK, "fp32")
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=2e-4)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_computes_what_plain_torch_does_in_chunks_and_alone(family: str, tmp_path: Path) -> None:
    found, expected = both(uneven_model(family, tmp_path), STEPS, "fp32")
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_weights_of_integers_stand_for_what_their_panels_do(precision: str, tmp_path: Path) -> None:
    """Multiplied with fp32, so that nothing but the weights' layout can tell the two apart."""
    found, expected = both(uneven_model("llama", tmp_path, precision, num_layers=1), QUICK[:1], "fp32", torch.float32)
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("kv_dtype", ["fp32", "fp16", "bf16", "int8"])
@pytest.mark.parametrize("precision", ["fp16", "bf16", "int8", "int4"])
@pytest.mark.parametrize("family", ["qwen3", "gpt2"])
def test_narrow_weights_and_pools_cost_no_more_than_their_digits(
    family: str, precision: str, kv_dtype: str, tmp_path: Path
) -> None:
    found, expected = both(uneven_model(family, tmp_path, precision), STEPS, kv_dtype)
    assert apart(found, expected) < (0.01 if precision == "fp16" else 0.03)


def test_logits_can_be_asked_for_again_and_in_any_order(tmp_path: Path) -> None:
    model = uneven_model("llama", tmp_path, num_layers=1)
    executor = triton_executor(model)
    whole = Drive(executor, model.program, "fp32").run({"a": random_tokens(4, 3)})["a"]
    some = executor.logits(np.array([3, 1], np.int32))
    torch.testing.assert_close(some.values, whole[[3, 1]], atol=1e-5, rtol=1e-5)
    assert some.greedy == whole[[3, 1]].argmax(-1).tolist()


def test_one_stage_goes_on_from_the_rows_of_another(tmp_path: Path) -> None:
    model = uneven_model("llama", tmp_path, num_layers=1)
    first, second = triton_executor(model), triton_executor(model)
    expected = Drive(first, model.program, "fp32").run({"a": random_tokens(3, 3)})["a"]
    second.put_residual(first.residual(3).clone())
    torch.testing.assert_close(second.logits(np.arange(3, dtype=np.int32)).values, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_brings_to_the_sums_what_plain_torch_does(rank: int, tmp_path: Path) -> None:
    place = Place.of(rank, Parallel(2))
    model = uneven_model("llama", tmp_path, "bf16", place, num_layers=1)
    weights = on_device(model.program, model.weights, "cpu")
    brought: list[list[Tensor]] = [[], []]
    executors = (
        TritonExecutor(model.program, weights, "cpu", all_reduce=lambda part: brought[0].append(part.clone())),
        ReferenceExecutor(model.program, model.weights, lambda part: brought[1].append(part.clone())),
    )
    for executor in executors:
        drive = Drive(executor, model.program, "fp32")
        executor.run(drive.step(QUICK[0]), drive.pool)
    assert len(brought[0]) == len(brought[1]) == 2
    for ours, theirs in zip(*brought, strict=True):
        assert ours.dtype == theirs.dtype  # bf16 on one rank and fp32 on another would be no sum
        assert apart(ours, theirs) < 0.02


@pytest.mark.parametrize(("shape", "why"), [((2, 1, 512), "heads of 512"), ((65, 1, 64), "among 64 heads")])
def test_heads_that_the_kernels_cannot_take_are_named(shape: tuple[int, int, int], why: str) -> None:
    program = Program((Attention("heads", "attended", 0, 1.0),), {}, *shape)
    assert why in unsupported(program)
    assert not unsupported(replace(program, num_heads=8, head_dim=128))
