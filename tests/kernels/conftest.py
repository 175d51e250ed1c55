"""Kernels in Triton's interpreter, on the CPU.

Triton reads when it is imported that it is to interpret, and keeps to it; nothing else of the run sees the setting.
"""

import os
import sys
from collections.abc import Iterator

import numpy as np
import pytest

if "triton" in sys.modules:
    raise RuntimeError("Triton was imported before tests/kernels: run these tests by themselves")
os.environ["TRITON_INTERPRET"] = "1"
try:
    import kernel_cases  # noqa: F401 - with it, Triton and every kernel
    import triton.experimental.gluon  # noqa: F401 - which the first launch imports
finally:
    del os.environ["TRITON_INTERPRET"]


@pytest.fixture(autouse=True)
def _infinities_are_numbers() -> Iterator[None]:
    """The interpreter computes with numpy, which warns of what a GPU just does."""
    with np.errstate(all="ignore"):
        yield
