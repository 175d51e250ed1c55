"""The C library's allocator, which keeps what was freed for the next who asks."""

import contextlib
import ctypes


def give_back_freed_memory() -> None:
    """Have it return to the machine what it keeps; where it cannot be asked, it does so in its own time."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
