"""The number format in which a kernel multiplies matrices.

Activations set it: 16-bit ones go to the tensor cores, fp32 ones are multiplied in fp32. Sums are always fp32.
"""

import torch
import triton
import triton.language as tl

INTERPRETED: bool = triton.knobs.runtime.interpret
"""Whether kernels run in Triton's interpreter, which was decided when Triton was imported."""

_DOT_TYPES = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}


def dot_type(activations: torch.dtype) -> tl.dtype:
    """Return the type of both factors of a product with ``activations``.

    Raises:
        ValueError: activations that are not fp32, fp16 or bf16.
    """
    if activations not in _DOT_TYPES:
        raise ValueError(f"activations are {activations}: make them float32, float16 or bfloat16")
    if INTERPRETED and activations == torch.bfloat16:
        return tl.float32  # the interpreter holds bf16 as integers, and would multiply those
    return _DOT_TYPES[activations]
