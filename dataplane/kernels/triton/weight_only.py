"""Linear layers with int8 or int4 weights, expanded in registers: fewer bytes for the same products.

int8 is symmetric, value = scale x code, with a scale for each group of inputs of a channel, or for the whole channel.
int4 is not, value = minimum + scale x code, in groups of 32 inputs. A group is 16 bytes: input i in the low nibble of
byte i, input 16 + i in its high one, so that the two halves of a tile are two products and nothing is reordered. The
last group of a channel may be filled up: rows are then narrower than the weight, by less than a group.

The product is computed as weights x activations, transposed: there are few rows in a decode step and many channels, and
a tensor core's first factor comes from registers, where the weights are expanded. How the sum over the inputs is cut
depends on the shape of the weight alone.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name for it
import triton
import triton.language as tl
from torch import Tensor

from dataplane.kernels.triton.precision import dot_type

INT4_GROUP = 32
_PROGRAMS = 264
"""How many programs a launch should have at least: two for each multiprocessor of the largest GPU known here."""


@dataclass(frozen=True, slots=True)
class Int8Weight:
    """``codes`` [outputs, inputs] int8, ``scales`` [outputs, inputs / group] fp16 or fp32."""

    codes: Tensor
    scales: Tensor

    @property
    def group(self) -> int:
        """Inputs that share a scale."""
        return self.codes.shape[1] // self.scales.shape[1]


@dataclass(frozen=True, slots=True)
class Int4Weight:
    """``codes`` [outputs, inputs / 2] uint8; ``scales`` and ``minimums`` [outputs, inputs / 32] fp16 or fp32."""

    codes: Tensor
    scales: Tensor
    minimums: Tensor


@dataclass(frozen=True, slots=True)
class _Cut:
    """How a product is cut into programs."""

    outputs: int
    inputs: int
    rows: int
    splits: int
    num_warps: int
    num_stages: int


def int8_linear(rows: Tensor, weight: Int8Weight, bias: Tensor | None = None) -> Tensor:
    """Return ``rows`` [n, inputs] (fp32, fp16 or bf16; dense) times the weight, [n, outputs] in the dtype of ``rows``.

    Raises:
        ValueError: groups that are neither whole channels nor a multiple of 32 inputs, or ``rows`` of another width.
    """
    outputs, padded = weight.codes.shape
    group = weight.group
    _check(rows, padded, group)
    if group != padded and group % 32:
        raise ValueError(f"groups of {group} inputs: make them a multiple of 32, or one for each channel")
    tile = 128 if group == padded else next(size for size in (128, 64, 32) if group % size == 0)
    cut = _cut(len(rows), outputs, padded, tile)
    return _launch(_multiply_int8, rows, (weight.codes, weight.scales), bias, outputs, cut, padded=padded, group=group)


def int4_linear(rows: Tensor, weight: Int4Weight, bias: Tensor | None = None) -> Tensor:
    """Return ``rows`` [n, inputs] (fp32, fp16 or bf16; dense) times the weight, [n, outputs] in the dtype of ``rows``.

    Raises:
        ValueError: inputs that are not a multiple of 32, or ``rows`` of another width.
    """
    outputs, padded = weight.codes.shape[0], weight.codes.shape[1] * 2
    _check(rows, padded, INT4_GROUP)
    if padded % INT4_GROUP:
        raise ValueError(f"{padded} inputs: int4 takes a multiple of {INT4_GROUP}")
    cut = _cut(len(rows), outputs, padded, 4 * INT4_GROUP)
    tensors = (weight.codes, weight.scales, weight.minimums)
    groups = cut.inputs // INT4_GROUP
    return _launch(_multiply_int4, rows, tensors, bias, outputs, cut, padded=padded, groups=groups)


def _check(rows: Tensor, padded: int, group: int) -> None:
    if not padded - group < rows.shape[1] <= padded or not rows.is_contiguous():
        raise ValueError(f"rows of {tuple(rows.shape)}, strides {rows.stride()}: dense rows of {padded} are needed")


def _cut(tokens: int, outputs: int, inputs: int, tile_inputs: int) -> _Cut:
    tile_outputs = 64
    rows = min(64, max(16, triton.next_power_of_2(tokens)))
    most = max(1, min(8, inputs // tile_inputs // 4))  # no split is shorter than four tiles
    splits = next(count for count in (1, 2, 4, 8) if count * 2 > most or count * -(-outputs // 64) >= _PROGRAMS)
    return _Cut(tile_outputs, tile_inputs, rows, splits, num_warps=4, num_stages=4)


def _launch(
    kernel: triton.JITFunction,
    rows: Tensor,
    weight: tuple[Tensor, ...],
    bias: Tensor | None,
    outputs: int,
    cut: _Cut,
    **constants: int,
) -> Tensor:
    tokens, inputs = rows.shape
    out = torch.empty(tokens, outputs, dtype=rows.dtype, device=rows.device)
    partial = torch.empty(cut.splits if cut.splits > 1 else 0, tokens, outputs, device=rows.device)
    kernel[(triton.cdiv(outputs, cut.outputs), triton.cdiv(tokens, cut.rows), cut.splits)](
        rows, *weight, out if bias is None else bias, out, partial, tokens, outputs,
        **constants, inputs=inputs, tile_outputs=cut.outputs, tile_inputs=cut.inputs, tile_rows=cut.rows,
        splits=cut.splits, biased=bias is not None, dot=dot_type(rows.dtype),
        num_warps=cut.num_warps, num_stages=cut.num_stages,
    )  # fmt: skip
    if cut.splits > 1:
        _add_splits[(tokens, triton.cdiv(outputs, 1024))](
            partial, out if bias is None else bias, out, outputs,
            splits=cut.splits, biased=bias is not None, tile=1024,
        )  # fmt: skip
    return out


@triton.jit(do_not_specialize=("tokens",))
def _multiply_int8(
    rows: tl.tensor,
    codes: tl.tensor,
    scales: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    partial: tl.tensor,
    tokens: tl.int32,
    outputs: tl.int32,
    inputs: tl.constexpr,
    padded: tl.constexpr,
    group: tl.constexpr,
    tile_outputs: tl.constexpr,
    tile_inputs: tl.constexpr,
    tile_rows: tl.constexpr,
    splits: tl.constexpr,
    biased: tl.constexpr,
    dot: tl.constexpr,
) -> None:
    """Multiply a tile of channels with a tile of rows, over one split of the inputs."""
    channel = tl.program_id(0) * tile_outputs + tl.arange(0, tile_outputs)
    row = tl.program_id(1) * tile_rows + tl.arange(0, tile_rows)
    column = tl.arange(0, tile_inputs)
    span = tl.cdiv(tl.cdiv(inputs, tile_inputs), splits) * tile_inputs
    begin = tl.program_id(2) * span
    codes_at = codes + channel.to(tl.int64)[:, None] * padded + column[None, :]
    rows_at = rows + row.to(tl.int64)[None, :] * inputs + column[:, None]
    scales_at = scales + channel.to(tl.int64) * (padded // group)
    sums = tl.zeros([tile_outputs, tile_rows], tl.float32)
    for start in range(begin, tl.minimum(begin + span, inputs), tile_inputs):
        inside = start + column < inputs
        code = tl.load(codes_at + start, mask=(channel < outputs)[:, None] & inside[None, :], other=0)
        activation = tl.load(rows_at + start, mask=inside[:, None] & (row < tokens)[None, :], other=0.0)
        scale = tl.load(scales_at + start // group, mask=channel < outputs, other=0.0).to(tl.float32)
        sums += tl.dot(code.to(dot), activation.to(dot), input_precision="ieee") * scale[:, None]
    _finish(sums, channel, row, bias, out, partial, tokens, outputs, splits, biased)


@triton.jit(do_not_specialize=("tokens",))
def _multiply_int4(
    rows: tl.tensor,
    codes: tl.tensor,
    scales: tl.tensor,
    minimums: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    partial: tl.tensor,
    tokens: tl.int32,
    outputs: tl.int32,
    inputs: tl.constexpr,
    padded: tl.constexpr,
    groups: tl.constexpr,
    tile_outputs: tl.constexpr,
    tile_inputs: tl.constexpr,
    tile_rows: tl.constexpr,
    splits: tl.constexpr,
    biased: tl.constexpr,
    dot: tl.constexpr,
) -> None:
    """Multiply a tile of channels with a tile of rows, over one split of the inputs."""
    channel = tl.program_id(0) * tile_outputs + tl.arange(0, tile_outputs)
    row = tl.program_id(1) * tile_rows + tl.arange(0, tile_rows)
    group, byte, half = tl.arange(0, groups), tl.arange(0, 16), tl.arange(0, groups * 16)
    column = half // 16 * 32 + half % 16
    span = tl.cdiv(tl.cdiv(inputs, tile_inputs), splits) * tile_inputs
    begin = tl.program_id(2) * span
    channel_group = channel.to(tl.int64)[:, None] * (padded // 32) + group[None, :]
    codes_at = codes + channel_group[:, :, None] * 16 + byte[None, None, :]
    rows_at = rows + row.to(tl.int64)[None, :] * inputs + column[:, None]
    sums = tl.zeros([tile_outputs, tile_rows], tl.float32)
    for start in range(begin, tl.minimum(begin + span, inputs), tile_inputs):
        stored = (channel < outputs)[:, None] & (start // 32 + group < padded // 32)[None, :]
        both = tl.load(codes_at + start // 2, mask=stored[:, :, None], other=0)
        scale = tl.load(scales + channel_group + start // 32, mask=stored, other=0.0).to(tl.float32)[:, :, None]
        minimum = tl.load(minimums + channel_group + start // 32, mask=stored, other=0.0).to(tl.float32)[:, :, None]
        low = tl.reshape((both & 15).to(tl.float32) * scale + minimum, (tile_outputs, groups * 16)).to(dot)
        high = tl.reshape((both >> 4).to(tl.float32) * scale + minimum, (tile_outputs, groups * 16)).to(dot)
        there = (row < tokens)[None, :]
        first = tl.load(rows_at + start, mask=(start + column < inputs)[:, None] & there, other=0.0).to(dot)
        sums = tl.dot(low, first, sums, input_precision="ieee")
        second = tl.load(rows_at + start + 16, mask=(start + column + 16 < inputs)[:, None] & there, other=0.0).to(dot)
        sums = tl.dot(high, second, sums, input_precision="ieee")
    _finish(sums, channel, row, bias, out, partial, tokens, outputs, splits, biased)


@triton.jit
def _finish(
    sums: tl.tensor,
    channel: tl.tensor,
    row: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    partial: tl.tensor,
    tokens: tl.int32,
    outputs: tl.int32,
    splits: tl.constexpr,
    biased: tl.constexpr,
) -> None:
    """Write a finished tile, or a split of one."""
    wanted = (channel < outputs)[:, None] & (row < tokens)[None, :]
    at = row.to(tl.int64)[None, :] * outputs + channel[:, None]
    if splits > 1:
        tl.store(partial + tl.program_id(2).to(tl.int64) * tokens * outputs + at, sums, mask=wanted)
    else:
        if biased:
            sums += tl.load(bias + channel, mask=channel < outputs, other=0.0).to(tl.float32)[:, None]
        tl.store(out + at, sums.to(out.dtype.element_ty), mask=wanted)


@triton.jit
def _add_splits(
    partial: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    outputs: tl.int32,
    splits: tl.constexpr,
    biased: tl.constexpr,
    tile: tl.constexpr,
) -> None:
    """Add the splits of a row, in their order."""
    channel = tl.program_id(1) * tile + tl.arange(0, tile)
    at = tl.program_id(0).to(tl.int64) * outputs + channel
    size = tl.num_programs(0).to(tl.int64) * outputs
    total = tl.zeros([tile], tl.float32)
    for split in tl.static_range(splits):
        total += tl.load(partial + split * size + at, mask=channel < outputs, other=0.0)
    if biased:
        total += tl.load(bias + channel, mask=channel < outputs, other=0.0).to(tl.float32)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=channel < outputs)


def quantise_int8(weight: Tensor, group: int | None = None) -> Int8Weight:
    """Round ``weight`` [outputs, inputs] to the nearest codes, with a scale for ``group`` inputs or a whole channel."""
    outputs, inputs = weight.shape
    groups = weight.float().view(outputs, -1, group or inputs)
    scales = (groups.abs().amax(-1) / 127).half()
    codes = (groups / _divisor(scales)).round().clamp(-127, 127)
    return Int8Weight(codes.to(torch.int8).view(outputs, inputs), scales)


def quantise_int4(weight: Tensor) -> Int4Weight:
    """Round ``weight`` [outputs, inputs] to the nearest codes between the least and the greatest of each group."""
    outputs, inputs = weight.shape
    groups = weight.float().view(outputs, -1, INT4_GROUP)
    least, greatest = groups.amin(-1), groups.amax(-1)
    scales, minimums = ((greatest - least) / 15).half(), least.half()
    codes = ((groups - minimums.float()[..., None]) / _divisor(scales)).round().clamp(0, 15).to(torch.uint8)
    return Int4Weight(paired(codes.view(outputs, inputs)), scales, minimums)


def paired(codes: Tensor) -> Tensor:
    """Return int4 codes [outputs, inputs], a byte each, two to a byte [outputs, inputs / 2]; see the module."""
    low, high = codes.view(len(codes), -1, 2, INT4_GROUP // 2).unbind(2)
    return (low | high << 4).flatten(1)


def _divisor(scales: Tensor) -> Tensor:
    wide = scales.float()[..., None]
    return torch.where(wide == 0, torch.ones_like(wide), wide)


def expanded(weight: Int8Weight | Int4Weight) -> Tensor:
    """Return the fp32 matrix [outputs, inputs] that ``weight`` stands for."""
    outputs, groups = weight.scales.shape
    scales = weight.scales.float()[..., None]
    if isinstance(weight, Int8Weight):
        return (weight.codes.view(outputs, groups, -1).float() * scales).view(outputs, -1)
    both = weight.codes.view(outputs, groups, 16)
    codes = torch.cat((both & 15, both >> 4), dim=-1).float()
    return (weight.minimums.float()[..., None] + codes * scales).view(outputs, -1)


def reference_linear(rows: Tensor, weight: Int8Weight | Int4Weight, bias: Tensor | None = None) -> Tensor:
    """Do the same with the expanded matrix, in fp64; [n, outputs] fp64."""
    matrix = expanded(weight)[:, : rows.shape[1]]
    return F.linear(rows.double(), matrix.double(), None if bias is None else bias.double())
