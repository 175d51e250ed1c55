"""The executor on the GPU: as plain torch computes, and bit for bit the same with a graph as without one."""

from pathlib import Path

import pytest
import torch
from driven_executor import CONTEXT, FAMILIES, GREEDY, STEPS, Drive, apart, random_tokens, uneven_model
from tiny_models import make_tiny_llama

from dataplane.contracts.catalog import EngineSettings
from dataplane.contracts.sampling import SamplingParams
from dataplane.engine.runner import Row
from dataplane.model import loader
from dataplane.model.decode_graphs import BUCKETS, CudaRecorder, DecodeRows, GraphedExecutor
from dataplane.model.device_logits import greedy
from dataplane.model.device_weights import on_device
from dataplane.model.loader import LoadedModel
from dataplane.model.model_runner import ModelRunner
from dataplane.model.reference import ReferenceExecutor
from dataplane.model.triton_executor import TritonExecutor


def on_gpu(model: LoadedModel, kv_dtype: str) -> Drive:
    drive = Drive(executor(model), model.program, kv_dtype, "cuda")
    drive.executor = GraphedExecutor(drive.executor, drive.pool, CONTEXT, CudaRecorder)
    return drive


def executor(model: LoadedModel) -> TritonExecutor:
    return TritonExecutor(model.program, on_device(model.program, model.weights, "cuda"), "cuda")


@torch.inference_mode()
def both(model: LoadedModel, kv_dtype: str) -> tuple[torch.Tensor, torch.Tensor]:
    reference = Drive(ReferenceExecutor(model.program, model.weights), model.program, kv_dtype)
    return on_gpu(model, kv_dtype).logits(STEPS), reference.logits(STEPS)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_computes_what_plain_torch_does(family: str, tmp_path: Path) -> None:
    torch.testing.assert_close(*both(uneven_model(family, tmp_path), "fp32"), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("kv_dtype", ["fp16", "bf16", "int8"])
@pytest.mark.parametrize("precision", ["fp16", "bf16", "int8", "int4"])
def test_narrow_weights_and_pools_cost_no_more_than_their_digits(precision: str, kv_dtype: str, tmp_path: Path) -> None:
    assert apart(*both(uneven_model("qwen3", tmp_path, precision), kv_dtype)) < 0.03


@torch.inference_mode()
@pytest.mark.parametrize("precision", ["bf16", "int4"])
def test_a_replay_has_the_bits_of_the_same_step_as_it_comes(precision: str, tmp_path: Path) -> None:
    model = uneven_model("llama", tmp_path, precision)
    drive = on_gpu(model, "bf16")
    drive.run({str(row): random_tokens(9, row) for row in range(BUCKETS[-1])})
    eager = executor(model)
    for rows in (1, 2, 3, 8, 13, 32, 64):
        step = drive.step({str(row): random_tokens(1, row + rows) for row in range(rows)})
        bucket = next(bucket for bucket in BUCKETS if bucket >= rows)
        inputs = DecodeRows(CONTEXT, drive.pool.block_size, "cuda")
        inputs.fill(step, bucket)
        eager.compute(inputs.inputs(bucket), drive.pool)
        expected = eager.project()
        drive.executor.run(step, drive.pool)
        found = drive.executor.logits(step.sampled_at)
        assert torch.equal(found.values, expected[:rows])
        assert found.greedy == greedy(expected).tolist()[:rows]


def serve(runner: ModelRunner, sampling: SamplingParams) -> list[int]:
    """The tokens of a prompt and of what it draws, as the engine would ask for them."""
    tokens = random_tokens(21, 5)
    table = list(range(9, 0, -1))
    drawn: list[int] = []
    done = 0
    while len(drawn) < 12:
        row = Row("a", tokens[done:], done, table, True, sampling, len(drawn), ())
        (token,) = runner.execute([row])
        assert isinstance(token, int)
        drawn.append(token)
        done = len(tokens)
        tokens.append(token)
    return drawn


@pytest.mark.parametrize("sampling", [GREEDY, SamplingParams(max_tokens=99, temperature=0.8, top_p=0.9, seed=4)])
def test_a_loaded_model_draws_the_tokens_that_it_does_on_the_cpu_also_after_a_sleep(
    sampling: SamplingParams, tmp_path: Path
) -> None:
    folder = make_tiny_llama(tmp_path / "model")
    gpu, cpu = (
        loader.load(folder, tmp_path / "runtime", EngineSettings(device=device), lambda *figures: None).make_runner(
            16, 8, 64, 8
        )
        for device in ("cuda", "cpu")
    )
    expected = serve(cpu, sampling)
    assert serve(gpu, sampling) == expected
    gpu.pool.release()
    gpu.pool.restore()
    assert serve(gpu, sampling) == expected
