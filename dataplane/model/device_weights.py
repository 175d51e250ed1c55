"""Weights as the GPU's kernels take them, made of the panels of the runtime format.

Panels are the CPU's order. On a GPU a matrix is plain [outputs, inputs] for cuBLAS, or codes, scales and minimums of
:mod:`dataplane.kernels.triton.weight_only`; and of a gate and what it opens, all of the gate comes first.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name for it
from torch import Tensor

from dataplane.kernels import panels
from dataplane.kernels.triton import weight_only
from dataplane.kernels.triton.weight_only import Int4Weight, Int8Weight
from dataplane.model.packing import Packed
from dataplane.model.program import Linear, Program

Matrix = Tensor | Int8Weight | Int4Weight


@dataclass(frozen=True, slots=True)
class DeviceWeights:
    """Weights on a device.

    Attributes:
        matrices: by name.
        vectors: by name, fp32; biases are as long as their matrix has outputs.
        activations: the dtype in which rows are multiplied with them.
    """

    matrices: Mapping[str, Matrix]
    vectors: Mapping[str, Tensor]
    activations: torch.dtype


def on_device(program: Program, packed: Packed, device: str) -> DeviceWeights:
    """Return a program's weights on ``device``.

    Weights of integers, and mixed ones, are multiplied with bf16: fp16 has more digits, and overflows in models that
    were trained in bf16.

    Raises:
        torch.OutOfMemoryError: the device is too small for them.
    """
    linears = [one for one in program.operations if isinstance(one, Linear)]
    gated = {name for one in linears if one.gated for name in (one.weight, one.bias)}
    outputs = {one.bias: packed.matrices[one.weight][2] for one in linears if one.bias is not None}
    precisions = {precision for _, precision, _, _ in packed.matrices.values()}
    activations = panels.DTYPES.get(precisions.pop(), torch.bfloat16) if len(precisions) == 1 else torch.bfloat16
    matrices: dict[str, Matrix] = {}
    for name, (tensor, precision, rows, inputs) in packed.matrices.items():
        matrix = _matrix(tensor.to(device), precision, rows, inputs, gated=name in gated)
        matrices[name] = matrix.to(activations) if isinstance(matrix, Tensor) else matrix
    vectors: dict[str, Tensor] = {}
    for name, vector in packed.vectors.items():
        there = vector.to(device)[: outputs.get(name)]
        vectors[name] = _gate_first(there) if name in gated else there
    return DeviceWeights(matrices, vectors, activations)


def _matrix(packed: Tensor, precision: str, outputs: int, inputs: int, *, gated: bool) -> Matrix:
    if precision in panels.DTYPES:
        whole = panels.unpack(packed, precision, outputs, inputs)
        return (_gate_first(whole) if gated else whole).contiguous()
    parts = [part[:outputs] for part in panels.take_apart(packed, precision)]
    codes, scales, *minimums = (_gate_first(part) if gated else part.contiguous() for part in parts)
    if precision == "int8":
        return Int8Weight(codes.view(torch.int8), scales)
    return Int4Weight(weight_only.paired(codes), scales, *minimums)


def _gate_first(rows: Tensor) -> Tensor:
    """Undo :func:`dataplane.kernels.panels.interleave_gate`: all rows of the gate, then all of what it opens."""
    return rows.view(-1, 2, 8, *rows.shape[1:]).transpose(0, 1).reshape(rows.shape)


def multiply(rows: Tensor, matrix: Matrix, bias: Tensor | None) -> Tensor:
    """Return ``rows`` [n, inputs] times ``matrix``, plus ``bias`` [outputs]; [n, outputs] in the dtype of ``rows``."""
    match matrix:
        case Int8Weight():
            return weight_only.int8_linear(rows, matrix, bias)
        case Int4Weight():
            return weight_only.int4_linear(rows, matrix, bias)
    return F.linear(rows, matrix, None if bias is None else bias.to(rows.dtype))


def looked_up(token_ids: Tensor, matrix: Matrix, inputs: int) -> Tensor:
    """Return the rows of ``matrix`` of ``token_ids`` [n], widened: [n, inputs] fp32."""
    match matrix:
        case Int8Weight(codes, scales):
            return weight_only.expanded(Int8Weight(codes[token_ids], scales[token_ids]))[:, :inputs]
        case Int4Weight(codes, scales, minimums):
            chosen = Int4Weight(codes[token_ids], scales[token_ids], minimums[token_ids])
            return weight_only.expanded(chosen)[:, :inputs]
    return F.embedding(token_ids, matrix).float()
