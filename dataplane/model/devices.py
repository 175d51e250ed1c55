"""Where a replica computes: on the CPU, or on a GPU if it is told to and there is one that the kernels know.

``auto`` is the CPU, on machines with a GPU too, until the GPU's path has been run on one.
"""

import importlib.util
from typing import Final

import torch

from dataplane.contracts.catalog import AUTO
from dataplane.model.program import Program

CPU: Final = "cpu"
CUDA: Final = "cuda"
_OLDEST: Final = (8, 0)
"""Compute capability: the first with products of bf16."""
_MAX_GROUP, _MAX_HEAD_DIM = 64, 256


def conflict(wanted: str, rank: int = 0) -> str:
    """Say why the process of ``rank`` cannot compute on the device ``wanted``; empty where it can."""
    if wanted != CUDA:
        return "" if wanted in (AUTO, CPU) else f"device {wanted!r} is not known; use auto, cpu or cuda"
    if not torch.cuda.is_available():
        return "torch finds no GPU here, or is a build without CUDA; use device cpu"
    if rank >= torch.cuda.device_count():
        return f"rank {rank} needs a GPU of its own, and there are {torch.cuda.device_count()}; lower the ranks"
    if torch.cuda.get_device_capability(rank) < _OLDEST:
        return f"{torch.cuda.get_device_name(rank)} is older than compute capability 8.0; use device cpu"
    if importlib.util.find_spec("triton") is None:
        return "the kernels need Triton; install pagoda[gpu], or use device cpu"
    return ""


def unsupported(program: Program) -> str:
    """Say why a GPU's kernels cannot run ``program``, and what to do; empty where they can."""
    if program.head_dim > _MAX_HEAD_DIM:
        return f"heads of {program.head_dim} do not fit a GPU's shared memory, {_MAX_HEAD_DIM} do; use device cpu"
    if program.num_heads // program.num_kv_heads > _MAX_GROUP:
        return f"the GPU's kernels share a KV head among {_MAX_GROUP} heads at most; use device cpu"
    return ""


def take(wanted: str, rank: int = 0) -> str:
    """Return the device that ``wanted`` stands for; each rank computes on a GPU of its own from then on."""
    if wanted != CUDA:
        return CPU
    torch.cuda.set_device(rank)
    return CUDA


def free_bytes() -> int:
    """Return the memory of this process's GPU that nobody has taken."""
    free, _ = torch.cuda.mem_get_info()
    return free
