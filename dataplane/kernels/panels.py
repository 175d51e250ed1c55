"""Matrices as the CPU kernels read them: panels of 16 output channels, one after the other (``cpu/linear.hpp``).

::

    fp32, fp16, bf16   [panels][inputs][16]
    int8               [panels][groups of 64 inputs]: 16 scales fp16, then codes [32][16 channels][2 inputs] int8
    int4               [panels][groups of 32 inputs]: 16 scales fp16, 16 minimums fp16, then [8][16 channels x 2 inputs]
                       bytes, whose low nibbles are inputs 0 and 1 of four, the high ones inputs 2 and 3

int8 is symmetric: value = scale x code. int4 is not: value = minimum + scale x code, code 0 to 15. Inputs and outputs
are filled up with zeros to whole groups and panels. A packed matrix is bytes, but for fp32, fp16 and bf16, which keep
their dtype.
"""

from typing import Final

import torch
from torch import Tensor

PANEL: Final = 16
DTYPES: Final = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
GROUP_INPUTS: Final = {"int8": 64, "int4": 32}
PRECISIONS: Final = (*DTYPES, *GROUP_INPUTS)
MAX_HALF: Final = 65504.0
"""The largest finite fp16 value."""


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
    """Pack ``matrix`` [outputs, inputs] (fp32, fp16 or bf16); see the module.

    Raises:
        ValueError: a value that fp16 (weights or scales) cannot hold.
    """
    outputs, inputs = matrix.shape
    if precision in DTYPES:
        if precision == "fp16" and matrix.abs().amax().item() > MAX_HALF:
            raise ValueError(f"it holds values beyond {MAX_HALF:.0f}, too large for fp16; run it as bf16 or fp32")
        panels = _filled(matrix.to(DTYPES[precision]), outputs + -outputs % PANEL)
        return panels.view(-1, PANEL, inputs).transpose(1, 2).contiguous()
    group = GROUP_INPUTS[precision]
    wide = torch.zeros(outputs + -outputs % PANEL, inputs + -inputs % group)
    wide[:outputs, :inputs] = matrix
    groups = wide.view(-1, PANEL, wide.shape[1] // group, group).transpose(1, 2)  # [panels, groups, 16, inputs]
    codes, *headers = _quantised(groups, precision)
    if not all(header.isfinite().all() for header in headers):
        raise ValueError(f"it holds values whose scale fp16 cannot hold, too large for {precision}; run it as fp32")
    header = torch.cat([header.view(torch.uint8) for header in headers], dim=-1)
    return torch.cat((header, _arranged(codes, precision)), dim=-1).contiguous()


def unpack(packed: Tensor, precision: str, outputs: int, inputs: int) -> Tensor:
    """Return the fp32 matrix [outputs, inputs] that ``packed`` stands for."""
    if precision in DTYPES:
        return packed.float().transpose(1, 2).reshape(-1, inputs)[:outputs].contiguous()
    group = GROUP_INPUTS[precision]
    panels, groups, _ = packed.shape
    scale = packed[..., :32].contiguous().view(torch.float16).float()[..., None]
    if precision == "int8":
        codes = packed[..., 32:].contiguous().view(torch.int8).view(panels, groups, group // 2, PANEL, 2)
        values = codes.permute(0, 1, 3, 2, 4).reshape(panels, groups, PANEL, group).float() * scale
    else:
        minimum = packed[..., 32:64].contiguous().view(torch.float16).float()[..., None]
        both = packed[..., 64:].reshape(panels, groups, group // 4, PANEL, 2)
        codes = torch.stack((both & 15, both >> 4), dim=-2).permute(0, 1, 3, 2, 4, 5)
        values = minimum + codes.reshape(panels, groups, PANEL, group).float() * scale
    return values.transpose(1, 2).reshape(panels * PANEL, groups * group)[:outputs, :inputs].contiguous()


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
    quads = codes.view(panels, groups, PANEL, group // 4, 2, 2).permute(0, 1, 3, 4, 2, 5)
    return (quads[:, :, :, 0] | quads[:, :, :, 1] << 4).reshape(panels, groups, -1)


def _filled(tensor: Tensor, rows: int) -> Tensor:
    if tensor.shape[0] == rows:
        return tensor
    return torch.cat((tensor, tensor.new_zeros(rows - tensor.shape[0], *tensor.shape[1:])))
