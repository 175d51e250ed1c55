"""What every executor of a program offers, and the choice between them."""

from collections.abc import Callable
from typing import Protocol

import numpy as np
import structlog
import torch
from numpy.typing import NDArray
from torch import Tensor

from dataplane.kernels.cpu.binding import load_library
from dataplane.model.devices import CUDA
from dataplane.model.kv_pool import KvPool
from dataplane.model.logits import Logits
from dataplane.model.native import NativeExecutor, unsupported
from dataplane.model.packing import Packed
from dataplane.model.program import Program
from dataplane.model.reference import ReferenceExecutor
from dataplane.model.step import Step, StepLimits

_log = structlog.get_logger(__name__)


class Executor(Protocol):
    """Computes a program over the tokens of a step."""

    @property
    def kernels(self) -> str:
        """What it computes with, in a few words."""

    def run(self, step: Step, pool: KvPool) -> None:
        """Compute everything before the selection; the keys and values of ``step`` are then in ``pool``."""

    def residual(self, tokens: int) -> Tensor:
        """Return the residual rows [tokens, width] of the last step, good until it computes again."""

    def put_residual(self, rows: Tensor) -> None:
        """Go on from ``rows`` [n, width], which may be more than a step has: in a step, or for logits."""

    def logits(self, at: NDArray[np.int32]) -> Logits:
        """Compute the rest for the tokens ``at`` [n] of the last step (indices into its tokens)."""


def make_executor(
    program: Program,
    weights: Packed,
    limits: StepLimits,
    threads: int,
    *,
    all_reduce: Callable[[Tensor], None] = lambda part: None,
) -> Executor:
    """Return the fastest executor that this machine and this program allow.

    Args:
        program: what to compute.
        weights: with these.
        limits: of its steps.
        threads: to compute with.
        all_reduce: replaces what it is given by the sum over the ranks that share the program's layers.
    """
    library = load_library()
    reason = "the kernels are not built, or not for this processor" if library is None else unsupported(program)
    if library is None or reason:
        _log.warning("kernels_not_used", reason=reason)
        return ReferenceExecutor(program, weights, all_reduce)
    return NativeExecutor(library, program, weights, limits, threads, all_reduce=all_reduce)


def make_gpu_executor(
    program: Program,
    weights: Packed,
    pool: KvPool,
    context_tokens: int,
    all_reduce: Callable[[Tensor], None] | None = None,
) -> Executor:
    """Return an executor on the current GPU; without others to add up with, its decode steps are recorded on ``pool``.

    Args:
        program: one that :func:`dataplane.model.devices.unsupported` has nothing against.
        weights: with these, of which the GPU takes a copy.
        pool: on the GPU.
        context_tokens: no sequence has more.
        all_reduce: as of :func:`make_executor`; None for the only rank.

    Raises:
        MemoryError: the GPU's is too small.
    """
    from dataplane.model import decode_graphs, device_weights, triton_executor  # noqa: PLC0415 - Triton is for GPUs only

    try:
        there = device_weights.on_device(program, weights, CUDA)
        if all_reduce is not None:
            return triton_executor.TritonExecutor(program, there, CUDA, all_reduce=all_reduce)
        executor = triton_executor.TritonExecutor(program, there, CUDA)
        return decode_graphs.GraphedExecutor(executor, pool, context_tokens, decode_graphs.CudaRecorder)
    except torch.OutOfMemoryError as error:
        raise MemoryError("the GPU's memory does not hold the weights and a step beside the KV pool") from error
