"""Linear layers whose weights are packed once for the fastest lossless CPU kernel.

Measured on AVX2 (2 cores, 576 x 1536): oneDNN's packed fp32 runs 1.0 to 2.5 times as fast as ``F.linear`` at 1 to 32
rows; FBGEMM's fp16 weights with fp32 activations run another 1.2 to 2 times as fast up to 64 rows. Native bf16 matmul
is 5 to 15 times slower than fp32 there, so bf16 weights are held as fp16.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name for it
from torch import Tensor

Linear = Callable[[Tensor], Tensor]
"""Maps float32 rows [n, in] to float32 rows [n, out]."""

MAX_HALF = 65504.0
"""The largest finite fp16 value: what a 16-bit weight may not exceed here."""

_ROWS_HINT = 32
"""The batch for which oneDNN lays weights out: of 1, 32 and 256 the layout that is best or equal from 2 rows on."""


def reference_linear(weight: Tensor, bias: Tensor | None) -> Linear:
    """Return the plain layer: the weights widened to fp32, one matrix product."""
    wide = weight.float()
    return lambda rows: F.linear(rows, wide, bias)


def kernel_name(dtype: torch.dtype) -> str:
    """Name the kernel that :func:`packed_linear` uses for weights of ``dtype`` on this machine."""
    if dtype == torch.float32:
        has_onednn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        return "onednn-fp32" if has_onednn else "reference-fp32"
    return "fbgemm-fp16" if "fbgemm" in torch.backends.quantized.supported_engines else "reference-fp32"


def packed_linear(weight: Tensor, bias: Tensor | None) -> Linear:
    """Pack ``weight`` [out, in] (fp32, fp16 or bf16) with ``bias`` [out] (fp32); ``weight`` is not referenced after.

    A bf16 weight becomes fp16: exactly, but for magnitudes below 2^-14, which move by at most 2^-25. Its magnitude must
    not exceed :data:`MAX_HALF`, else FBGEMM would clip it.
    """
    kernel = kernel_name(weight.dtype)
    if kernel == "onednn-fp32":
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS_HINT)
        linear = torch.ops.mkldnn._linear_pointwise.default
        return lambda rows: linear(rows, packed, bias, "none", [], "")
    if kernel == "fbgemm-fp16":
        half = torch.ops.quantized.linear_prepack_fp16(weight.float(), bias)
        dynamic = torch.ops.quantized.linear_dynamic_fp16.default
        return lambda rows: dynamic(rows, half)
    return reference_linear(weight, bias)
