"""Hold the GPU's kernels against what the GPU could do in the same run: ``make gpu``, under five minutes.

Writes JSON: whether each kernel is right; paged attention's bytes per second against those of a copy; int4 products
against cuBLAS in bf16; decode steps of the runner that serves against the time that their bytes take. Times of kernels
are medians over replays of a graph, and what is read in one replay is several times larger than the GPU's cache.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kernel_cases
import torch
import torch.nn.functional as F  # noqa: N812 - the field's name for it
from gpu_step import BLOCK_SIZE, DecodeSteps

from dataplane.engine.runner import Row
from dataplane.kernels.triton import sampling
from dataplane.kernels.triton.paged_attention import AttentionRows, Tuning, attention_tiles, paged_attention
from dataplane.kernels.triton.weight_only import int4_linear, quantise_int4
from dataplane.model.model_runner import ModelRunner

_CACHE_BYTES = 256 * 1024**2
_HEADS, _KV_HEADS, _HEAD_DIM = 32, 8, 128
UNIFORM = [2048] * 64
_STEP_ROWS = (1, 2, 4, 8, 16, 32, 64)
SKEWED = [32_768, 16_384, 8192, 8192, *[1024] * 20, *[256] * 40]


def main() -> int:
    """Measure and write the report; 1 if a kernel was wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("var/bench/gpu.json"))
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("There is no GPU that torch can use here.")
        return 2
    began = time.monotonic()
    torch.manual_seed(0)
    copy_bytes_per_s = _copy_bytes_per_s()
    report = {
        "gpu": torch.cuda.get_device_name(),
        "copy_gb_per_s": copy_bytes_per_s / 1e9,
        "bf16_tflop_per_s": _gemm_flop_per_s() / 1e12,
    }
    parts: dict[str, Callable[[float], Any]] = {
        "correctness": _correctness,
        "attention": _attention,
        "int4": _int4,
        "sampling": _sampling,
        "decode_step": _decode_steps,
    }
    for name, measure in parts.items():
        report[name] = measure(copy_bytes_per_s)
        report["seconds"] = time.monotonic() - began
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(report, indent=2))  # what was measured stays, whatever comes
        print(json.dumps({name: report[name]}, indent=1), flush=True)
    return 0 if all(case["right"] for case in report["correctness"]) else 1


def _median_s(work: Callable[[], object]) -> float:
    """Return the seconds of ``work`` as a CUDA graph: the median of 20 replays."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # compiles, and lets libraries take their workspaces
        for _ in range(2):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    graph.replay()
    return _device_s(graph.replay)


def _device_s(work: Callable[[], object]) -> float:
    """Return the seconds that the device takes for what ``work`` launches: the median of 20."""
    times_s = []
    for _ in range(20):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        work()
        ended.record()
        ended.synchronize()
        times_s.append(began.elapsed_time(ended) / 1e3)
    return statistics.median(times_s)


def _copy_bytes_per_s() -> float:
    source = torch.zeros(1024**3, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / _median_s(lambda: target.copy_(source))


def _gemm_flop_per_s() -> float:
    left, right = (torch.randn(8192, 8192, device="cuda").bfloat16() for _ in range(2))
    return 2 * 8192**3 / _median_s(lambda: left @ right)


def _correctness(_: float) -> list[dict[str, Any]]:
    results = []
    for case in _cases():
        try:
            case.check("cuda")
            error = ""
        except Exception as raised:  # noqa: BLE001 - whatever a kernel does, the others are of interest
            error = f"{type(raised).__name__}: {raised}"[:300]
        results.append({"case": str(case), "right": not error, "error": error})
    return results


def _cases() -> Iterator[kernel_cases.Case]:
    yield from kernel_cases.quick_cases()
    yield from kernel_cases.quick_to_compile()
    for pool in (kernel_cases.BF16, kernel_cases.INT8):
        for head_dim in (64, 128, 256):
            step = kernel_cases.Sequences(
                (0, 3000, 70), (40, 1, 5), kv_heads=2, head_dim=head_dim, query=kernel_cases.BF16, pool=pool
            )
            yield step.case()
    yield from kernel_cases.linear_cases(((1, 2048, 2048), (64, 4096, 1024)), (4, None), (kernel_cases.BF16,))
    yield from kernel_cases.likeliest_cases((128_256,))
    yield from kernel_cases.draw_cases((128_256,))


def _attention(copy_bytes_per_s: float) -> list[dict[str, Any]]:
    default = Tuning.of(_HEAD_DIM, torch.bfloat16)
    others = [Tuning(64, num_stages=3), Tuning(128), Tuning(32), Tuning(64, num_warps=8), Tuning(64, min_split=512)]
    runs = []
    for name, lengths in (("uniform", UNIFORM), ("skewed", SKEWED)):
        for pool in (torch.bfloat16, torch.int8):
            for tuning in (default, *(others if pool == torch.bfloat16 else [])):
                seconds, read_bytes = _attend(lengths, pool, tuning)
                part = read_bytes / seconds / copy_bytes_per_s
                runs.append({"lengths": name, "pool": str(pool), "tuning": str(tuning), "us": seconds * 1e6})
                runs[-1] |= {"of_copy": part, "default": tuning == default}
    return runs


def _attend(lengths: list[int], dtype: torch.dtype, tuning: Tuning) -> tuple[float, int]:
    """Return the seconds of a decode step's attention, and the bytes of its keys, values and scales."""
    blocks = [-(-length // BLOCK_SIZE) for length in lengths]
    shape = (sum(blocks), BLOCK_SIZE, 2, _KV_HEADS, _HEAD_DIM)
    scales = torch.rand(shape[:-1], device="cuda") if dtype == torch.int8 else None
    pool = torch.randint(-127, 128, shape, device="cuda").to(dtype)
    tables = torch.zeros(len(lengths), max(blocks), dtype=torch.int32)
    for row, ids in enumerate(torch.randperm(sum(blocks)).int().split(blocks)):
        tables[row, : len(ids)] = ids
    positions = torch.tensor(lengths) - 1
    tiles = attention_tiles(torch.ones_like(positions), positions, _HEADS // _KV_HEADS)
    rows = AttentionRows(positions.int().cuda(), tiles.cuda(), tables.cuda(), max(lengths))
    query = torch.randn(len(lengths), _HEADS, _HEAD_DIM, device="cuda").bfloat16()
    seconds = _median_s(
        lambda: paged_attention(query, pool, rows, scale=_HEAD_DIM**-0.5, kv_scales=scales, tuning=tuning)
    )
    return seconds, pool.nbytes + (0 if scales is None else scales.nbytes)


def _int4(copy_bytes_per_s: float) -> list[dict[str, Any]]:
    runs = []
    for outputs, inputs in ((4096, 4096), (28_672, 4096), (4096, 14_336)):
        matrices = [torch.randn(outputs, inputs, device="cuda").bfloat16()]
        matrices += [matrices[0].clone() for _ in range(_CACHE_BYTES // matrices[0].nbytes)]
        first = quantise_int4(matrices[0])
        narrow = [kernel_cases.moved(first, "cuda")]
        narrow += [type(first)(*(part.clone() for part in (first.codes, first.scales, first.minimums))) for _ in
                   range(_CACHE_BYTES // first.codes.nbytes)]  # fmt: skip
        for rows in (1, 2, 4, 8, 16, 32, 64):
            x = torch.randn(rows, inputs, device="cuda").bfloat16()
            cublas = _median_s(lambda x=x, all_=matrices: [F.linear(x, each) for each in all_]) / len(matrices)
            ours = _median_s(lambda x=x, all_=narrow: [int4_linear(x, each) for each in all_]) / len(narrow)
            read_bytes = first.codes.nbytes + first.scales.nbytes + first.minimums.nbytes
            runs.append({"rows": rows, "outputs": outputs, "inputs": inputs, "cublas_us": cublas * 1e6})
            runs[-1] |= {"us": ours * 1e6, "speedup": cublas / ours, "of_copy": read_bytes / ours / copy_bytes_per_s}
    return runs


def _sampling(_: float) -> list[dict[str, Any]]:
    runs = []
    for rows in (1, 64):
        logits = torch.randn(rows, 128_256, device="cuda") * 3
        found = sampling.likeliest(logits)
        ones = torch.ones(rows, dtype=torch.float64, device="cuda")
        top_k = torch.zeros(rows, dtype=torch.int32, device="cuda")
        run: dict[str, Any] = {"rows": rows, "likeliest_us": _median_s(lambda x=logits: sampling.likeliest(x)) * 1e6}
        for name, top_p in (("all", 1.0), ("top_p", 0.9)):
            arguments = (logits, found.logits, ones, ones * 0, top_k, ones * top_p, ones * 0.5)
            run[f"draw_{name}_us"] = _median_s(lambda all_=arguments: sampling.draw(*all_)) * 1e6
        runs.append(run)
    return runs


def _decode_steps(copy_bytes_per_s: float) -> list[dict[str, Any]]:
    """Whole steps of the runner that serves: the host's clock around one, and the device's around its graph."""
    runs = []
    for four_bits in (False, True):
        steps = DecodeSteps(max(_STEP_ROWS), context=1024, four_bits=four_bits)
        for batch in _STEP_ROWS:
            rows = steps.rows(batch)
            step_s = _host_s(steps.runner, rows)
            device_s = _device_s(steps.replay(batch))
            roofline_s = steps.read_bytes(batch) / copy_bytes_per_s
            runs.append({"weights": "int4" if four_bits else "bf16", "batch": batch, "step_us": step_s * 1e6})
            runs[-1] |= {"tokens_per_s": batch / step_s, "of_roofline": roofline_s / step_s}
            runs[-1] |= {"device_us": device_s * 1e6, "device_of_roofline": roofline_s / device_s}
        del steps
    return runs


def _host_s(runner: ModelRunner, rows: list[Row]) -> float:
    """Return the seconds from rows to tokens: the median of 20 steps."""
    times_s = []
    for _ in range(20):
        began_s = time.perf_counter()
        runner.execute(rows)
        times_s.append(time.perf_counter() - began_s)
    return statistics.median(times_s)


if __name__ == "__main__":
    with torch.inference_mode():
        sys.exit(main())
