"""The allocators of the C library and of torch on a GPU, which keep what was freed for the next who asks."""

import contextlib
import ctypes

import torch


def give_back_freed_memory() -> None:
    """Have them return to the machine what they keep; one that cannot be asked does so in its own time."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
