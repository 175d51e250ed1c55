"""What every executor of a program offers, and the choice between them."""

from typing import Protocol

import numpy as np
import structlog
from numpy.typing import NDArray

from dataplane.kernels.cpu.library import load_library
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

    def logits(self, at: NDArray[np.int32]) -> Logits:
        """Compute the rest for the tokens ``at`` [n] of the last step (indices into its tokens)."""


def make_executor(program: Program, weights: Packed, limits: StepLimits, threads: int) -> Executor:
    """Return the fastest executor that this machine and this program allow.

    Args:
        program: what to compute.
        weights: with these.
        limits: of its steps.
        threads: to compute with.
    """
    library = load_library()
    reason = "the kernels are not built, or not for this processor" if library is None else unsupported(program)
    if library is None or reason:
        _log.warning("kernels_not_used", reason=reason)
        return ReferenceExecutor(program, weights)
    return NativeExecutor(library, program, weights, limits, threads)
