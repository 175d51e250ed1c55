"""What the machine could do in this very run: memory read bandwidth and fp32 GEMM rate."""

import time
from collections.abc import Callable

import torch


def read_gb_per_s() -> float:
    """Sum a buffer larger than the caches; best of five, in GB/s."""
    buffer = torch.ones(64 * 1024 * 1024)
    return _best(buffer.sum) * buffer.numel() * 4 / 1e9


def gemm_gflop_per_s() -> float:
    """Multiply 1024 x 1024 fp32 matrices; best of five, in GFLOP/s."""
    left, right = torch.rand(1024, 1024), torch.rand(1024, 1024)
    return _best(lambda: left @ right) * 2 * 1024**3 / 1e9


def _best(work: Callable[[], object]) -> float:
    work()
    rates = []
    for _ in range(5):
        began_s = time.perf_counter()
        work()
        rates.append(1 / (time.perf_counter() - began_s))
    return max(rates)
