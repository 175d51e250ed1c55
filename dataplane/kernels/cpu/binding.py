"""The compiled kernels as a C library, and the structs that cross the border (``program.cpp``)."""

import ctypes
import importlib.util
from ctypes import POINTER, Structure, c_char_p, c_float, c_int, c_int32, c_void_p
from functools import cache
from typing import ClassVar

_MODULES = ("dataplane.kernels.cpu._kernels_avx512", "dataplane.kernels.cpu._kernels")
"""The same program compiled for one kind of processor each, the fastest first."""


class Operation(Structure):
    """``Operation`` of ``program.cpp``."""

    _fields_: ClassVar = [
        *((name, c_int32) for name in (
            "kind", "source", "target", "accumulate", "inputs", "outputs", "weight_type", "activation", "gated",
            "layer", "heads", "window", "norm", "angles",
        )),
        *((name, c_float) for name in ("epsilon", "scale", "softcap")),
        ("reserved", c_int32),
        *((name, c_void_p) for name in ("weight", "bias", "norm_weight", "norm_bias", "extra")),
    ]  # fmt: skip


class Step(Structure):
    """``Step`` of ``program.cpp``."""

    _fields_: ClassVar = [
        *((name, c_int32) for name in ("tokens", "sequences", "sampled", "reserved")),
        *((name, c_void_p) for name in ("token_ids", "sequence", "sampled_at", "greedy")),
    ]


class Pool(Structure):
    """``Pool`` of ``attention.hpp``."""

    _fields_: ClassVar = [
        ("data", c_void_p),
        ("scales", c_void_p),
        *((name, c_int32) for name in ("type", "layers", "blocks", "block_size", "kv_heads", "dim")),
    ]


def load_library() -> ctypes.CDLL | None:
    """Return the compiled kernels, or None where they were not built or this processor lacks AVX2, FMA or F16C."""
    return next(iter(load_libraries()), None)


@cache
def load_libraries() -> tuple[ctypes.CDLL, ...]:
    """Return the compiled kernels of every kind that this processor can run, the fastest first."""
    return tuple(library for module in _MODULES if (library := _load(module)) is not None)


def _load(module: str) -> ctypes.CDLL | None:
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        return None
    try:
        library = ctypes.CDLL(spec.origin)
    except OSError:  # built for another machine
        return None
    if not library.pagoda_supported():
        return None
    library.pagoda_instructions.restype = c_char_p
    library.pagoda_program.restype = c_void_p
    library.pagoda_program.argtypes = [POINTER(Operation), c_int, c_void_p, c_void_p, c_int, c_int, c_int, c_int]
    library.pagoda_free.argtypes = [c_void_p]
    library.pagoda_run.restype = library.pagoda_finish.restype = None
    library.pagoda_run.argtypes = [c_void_p, POINTER(Step), POINTER(Pool), c_int, c_int]
    library.pagoda_finish.argtypes = [c_void_p, c_int]
    library.pagoda_values.restype = POINTER(c_float)
    library.pagoda_values.argtypes = [c_void_p, c_int]
    return library
