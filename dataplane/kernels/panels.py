"""Matrices as the CPU kernels read them: panels of 16 output channels, one after the other (``cpu/linear.hpp``).

::

    fp32, fp16, bf16   [panels][inputs][16]
    fp24               [panels][inputs]: 16 upper halves of fp32, then the 16 bytes below them
    int8               [panels][groups of 64 inputs]: 16 scales fp16, then codes [32][16 channels][2 inputs] int8
    int4               [panels][groups of 32 inputs]: 16 scales fp16, 16 minimums fp16, then [8][8 channels][4 inputs]
                       bytes, whose low nibbles are of channels 0 to 7, the high ones of 8 to 15

int8 is symmetric: value = scale x code. int4 is not: value = minimum + scale x code, code 0 to 15. Inputs and outputs
are filled up with zeros to whole groups and panels. A packed matrix is bytes, but for fp32, fp16 and bf16, which keep
their dtype.

What is asked for as fp32 lies in the narrowest format that holds each of its values exactly (:func:`format_of`): most
checkpoints were trained in bf16, and what is read for a step is what a few rows wait for.
"""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

PANEL: Final = 16
DTYPES: Final = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
GROUP_INPUTS: Final = {"int8": 64, "int4": 32}
PRECISIONS: Final = (*DTYPES, *GROUP_INPUTS)
_FP24: Final = "fp24"
FORMATS: Final = (*DTYPES, _FP24, *GROUP_INPUTS)
"""How matrices may lie, in the order of ``WeightType`` of ``linear.hpp``."""
MAX_HALF: Final = 65504.0
"""The largest finite fp16 value."""
_FORMATS_OF: Final = {dtype: name for name, dtype in DTYPES.items()}
_ROWS_AT_ONCE: Final = 64 * PANEL
_HEADER_BYTES: Final = 2 * PANEL
"""Of the scales, or the minimums, of a group."""


def interleave_gate(gate: Tensor, opened: Tensor) -> Tensor:
    """Return rows of both by turns, 8 of ``gate`` and 8 of ``opened``, so that one panel holds what is multiplied.

    Rows that do not fill eight stand at the end of the last eight's place, with zeros after them.
    """
    rows = gate.shape[0]
    missing = -rows % 8
    both = torch.stack((_filled(gate, rows + missing), _filled(opened, rows + missing)))
    return both.view(2, -1, 8, *gate.shape[1:]).transpose(0, 1).reshape(2 * (rows + missing), *gate.shape[1:])


def whole_lanes(matrix: Tensor) -> Tensor:
    """Return ``matrix`` [outputs, inputs] with its inputs filled up with zeros to a multiple of 8."""
    return torch.nn.functional.pad(matrix, (0, -matrix.shape[1] % 8))


def pack(matrix: Tensor, precision: str) -> Tensor:
    """Pack ``matrix`` [outputs, inputs] (fp32, fp16 or bf16); see the module. It is read a few rows at a time.

    Raises:
        ValueError: a value that fp16 (weights or scales) cannot hold.
    """
    outputs, inputs = matrix.shape
    lies = _exact_format(matrix) if precision == "fp32" else precision
    packed = _empty(outputs, inputs, lies)
    for first in range(0, outputs, _ROWS_AT_ONCE):
        rows = matrix[first : first + _ROWS_AT_ONCE]
        into = packed[first // PANEL : (first + len(rows) + PANEL - 1) // PANEL]
        into.copy_(_packed_rows(rows, lies))
    return packed


def format_of(packed: Tensor, precision: str) -> str:
    """Return in which of :data:`FORMATS` a matrix lies that was packed in ``precision``."""
    return precision if precision in GROUP_INPUTS else _FORMATS_OF.get(packed.dtype, _FP24)


def quantise(matrix: Tensor, precision: str) -> tuple[Tensor, ...]:
    """Return the codes [outputs, inputs of whole groups] uint8 (int8's bits), scales, and minimums of int4.

    Scales and minimums are [outputs, groups] fp16, rounded to nearest; codes are chosen for them as they are rounded.

    Raises:
        ValueError: a value whose scale fp16 cannot hold.
    """
    outputs, inputs = matrix.shape
    group = GROUP_INPUTS[precision]
    wide = torch.zeros(outputs, inputs + -inputs % group)
    wide[:, :inputs] = matrix
    codes, *headers = _quantised(wide.view(outputs, -1, group), precision)
    if not all(header.isfinite().all() for header in headers):
        raise ValueError(f"it holds values whose scale fp16 cannot hold, too large for {precision}; run it as fp32")
    return codes.flatten(1), *headers


def assemble(parts: Sequence[Tensor], precision: str) -> Tensor:
    """Return the packed matrix of what :func:`quantise` returned, or rows of it in another order."""
    codes, *headers = (_filled(part, len(part) + -len(part) % PANEL) for part in parts)
    group = GROUP_INPUTS[precision]
    header = [part.view(-1, PANEL, part.shape[1]).transpose(1, 2).contiguous().view(torch.uint8) for part in headers]
    grouped = codes.view(-1, PANEL, codes.shape[1] // group, group).transpose(1, 2)
    return torch.cat((*header, _arranged(grouped, precision)), dim=-1)


def take_apart(packed: Tensor, precision: str) -> tuple[Tensor, ...]:
    """Return what :func:`assemble` was given, with rows of zeros up to a whole panel."""
    panels, groups, _ = packed.shape
    group, headers = GROUP_INPUTS[precision], 1 if precision == "int8" else 2
    codes = packed[..., headers * _HEADER_BYTES :]
    if precision == "int8":
        codes = codes.reshape(panels, groups, group // 2, PANEL, 2).permute(0, 1, 3, 2, 4)
    else:
        both = codes.reshape(panels, groups, group // 4, PANEL // 2, 4)
        codes = torch.stack((both & 15, both >> 4), dim=2).transpose(3, 4)
    halves = packed[..., : headers * _HEADER_BYTES].contiguous().view(torch.float16)
    halves = halves.view(panels, groups, headers, PANEL)
    return (
        codes.reshape(panels, groups, PANEL, group).transpose(1, 2).reshape(panels * PANEL, -1),
        *(halves[:, :, index].transpose(1, 2).reshape(panels * PANEL, -1) for index in range(headers)),
    )


def unpack(packed: Tensor, precision: str, outputs: int, inputs: int) -> Tensor:
    """Return the fp32 matrix [outputs, inputs] that ``packed`` stands for."""
    if precision in DTYPES:
        wide = _widened(packed) if format_of(packed, precision) == _FP24 else packed.float()
        return wide.transpose(1, 2).reshape(-1, inputs)[:outputs].contiguous()
    codes, scales, *minimums = take_apart(packed, precision)
    wide = (codes.view(torch.int8) if precision == "int8" else codes).float()
    values = wide.view(len(wide), scales.shape[1], -1) * scales.float()[..., None]
    if minimums:
        values += minimums[0].float()[..., None]
    return values.flatten(1)[:outputs, :inputs].contiguous()


def _exact_format(matrix: Tensor) -> str:
    """Return the narrowest format of floats that holds every value as it is."""
    left = ["bf16", "fp16", _FP24]
    for first in range(0, len(matrix), _ROWS_AT_ONCE):
        rows = matrix[first : first + _ROWS_AT_ONCE].float()
        bits = rows.view(torch.int32)
        holds = {"bf16": not (bits & 0xFFFF).any(), "fp16": torch.equal(rows.half().float(), rows)}
        left = [name for name in left if holds.get(name, not (bits & 0xFF).any())]
        if not left:
            return "fp32"
    return left[0]


def _empty(outputs: int, inputs: int, lies: str) -> Tensor:
    panels = (outputs + PANEL - 1) // PANEL
    if lies in DTYPES:
        return torch.empty(panels, inputs, PANEL, dtype=DTYPES[lies])
    if lies == _FP24:
        return torch.empty(panels, inputs, 3 * PANEL, dtype=torch.uint8)
    group = GROUP_INPUTS[lies]
    group_bytes = PANEL * (2 + group if lies == "int8" else 4 + group // 2)
    return torch.empty(panels, (inputs + group - 1) // group, group_bytes, dtype=torch.uint8)


def _packed_rows(rows: Tensor, lies: str) -> Tensor:
    if lies in DTYPES:
        return _rounded(rows, lies)
    return _narrowed(_rounded(rows, "fp32")) if lies == _FP24 else assemble(quantise(rows, lies), lies)


def _narrowed(panels: Tensor) -> Tensor:
    """Return fp32 panels [panels, inputs, 16] without their last bytes."""
    bits = panels.contiguous().view(torch.int32)
    return torch.cat(((bits >> 16).to(torch.int16).view(torch.uint8), (bits >> 8 & 0xFF).to(torch.uint8)), dim=-1)


def _widened(packed: Tensor) -> Tensor:
    """Return what :func:`_narrowed` was given."""
    high = packed[..., : 2 * PANEL].contiguous().view(torch.int16).to(torch.int32)
    return (high << 16 | packed[..., 2 * PANEL :].to(torch.int32) << 8).view(torch.float32)


def _rounded(matrix: Tensor, precision: str) -> Tensor:
    if precision == "fp16" and matrix.abs().amax().item() > MAX_HALF:
        raise ValueError(f"it holds values beyond {MAX_HALF:.0f}, too large for fp16; run it as bf16 or fp32")
    outputs, inputs = matrix.shape
    return _filled(matrix.to(DTYPES[precision]), outputs + -outputs % PANEL).view(-1, PANEL, inputs).transpose(1, 2)


def _quantised(groups: Tensor, precision: str) -> tuple[Tensor, ...]:
    """Codes [..., inputs] as uint8 (int8's bits), the scales [...] and int4's minimums in fp16, rounded to nearest."""
    if precision == "int8":
        scale = (groups.abs().amax(dim=-1) / 127).half()
        codes = (groups / _divisor(scale)).round_().clamp_(-127, 127)
        return codes.to(torch.int8).view(torch.uint8), scale
    low, high = groups.amin(dim=-1), groups.amax(dim=-1)
    scale, minimum = ((high - low) / 15).half(), low.half()
    codes = ((groups - minimum.float()[..., None]) / _divisor(scale)).round_().clamp_(0, 15)
    return codes.to(torch.uint8), scale, minimum


def _divisor(scale: Tensor) -> Tensor:
    wide = scale.float()[..., None]
    return torch.where(wide == 0, torch.ones_like(wide), wide)


def _arranged(codes: Tensor, precision: str) -> Tensor:
    """Put codes [panels, groups, 16, inputs] into the order of the kernels, as bytes [panels, groups, bytes]."""
    panels, groups, _, group = codes.shape
    if precision == "int8":
        return codes.view(panels, groups, PANEL, group // 2, 2).permute(0, 1, 3, 2, 4).reshape(panels, groups, -1)
    halves = codes.view(panels, groups, 2, PANEL // 2, group // 4, 4).transpose(3, 4)
    return (halves[:, :, 0] | halves[:, :, 1] << 4).reshape(panels, groups, -1)


def _filled(tensor: Tensor, rows: int) -> Tensor:
    if tensor.shape[0] == rows:
        return tensor
    return torch.cat((tensor, tensor.new_zeros(rows - tensor.shape[0], *tensor.shape[1:])))
