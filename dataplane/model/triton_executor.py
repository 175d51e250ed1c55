"""Runs a program by the Triton kernels, and its products with float weights by torch's own.

Rows are multiplied, normalised and attended with in the weights' dtype (bf16 beside weights of integers); the residual
rows and every sum within a kernel are fp32. Written for a GPU, where it has never run: what is known of it is that it
computes the same as plain torch in Triton's interpreter, and that its kernels compile.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the field's name for it
from numpy.typing import NDArray
from torch import Tensor

from dataplane.kernels.triton import gated
from dataplane.kernels.triton.kv_write import write_kv
from dataplane.kernels.triton.norms import layer_norm, rms_norm
from dataplane.kernels.triton.paged_attention import AttentionRows, attention_tiles, paged_attention
from dataplane.kernels.triton.rotary import rotate_
from dataplane.model.device_logits import DeviceLogits, greedy
from dataplane.model.device_weights import DeviceWeights, looked_up, multiply
from dataplane.model.kv_pool import KvPool
from dataplane.model.program import (
    RESIDUAL,
    Activation,
    AllReduce,
    Angles,
    Attention,
    Cache,
    Embed,
    Linear,
    Norm,
    Normalise,
    NormKind,
    Operation,
    Program,
    Select,
)
from dataplane.model.step import Step

TABLE_COLUMNS = 16
"""Block tables are filled up to a multiple of this: a kernel is compiled anew for a stride that is none."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """The tokens of a step, all on the device.

    Attributes:
        token_ids: [n] int64.
        slots: [n] int64, where their keys and values go; -1 pads.
        rows: what each attends to; positions of -1 pad.
    """

    token_ids: Tensor
    slots: Tensor
    rows: AttentionRows


def inputs_of(step: Step, block_size: int, group: int, device: str) -> Inputs:
    """Lay out a step of any shape on ``device``, for a program with ``group`` query heads to a KV head."""
    sequences = step.sequences
    counts, starts = (sequences[field].astype(np.int64) for field in ("count", "position"))
    row = np.repeat(np.arange(len(sequences)), counts)
    positions = starts[row] + np.arange(len(row)) - sequences["first"][row]
    widest = max(map(len, step.tables))
    tables = np.zeros((len(sequences), widest + -widest % TABLE_COLUMNS), np.int32)
    for index, table in enumerate(step.tables):
        tables[index, : len(table)] = table
    slots = tables[row, positions // block_size].astype(np.int64) * block_size + positions % block_size
    tiles = attention_tiles(torch.from_numpy(counts), torch.from_numpy(starts), group)

    def placed(array: NDArray[np.int32] | NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(array).to(device)

    rows = AttentionRows(
        positions=placed(positions.astype(np.int32)),
        tiles=tiles.to(device),
        block_tables=placed(tables),
        context_tokens=int((starts + counts).max()),
    )
    return Inputs(placed(step.token_ids.astype(np.int64)), placed(slots), rows)


class TritonExecutor:
    """A :class:`dataplane.model.executor.Executor` on one device.

    Args:
        program: one that :func:`dataplane.model.devices.unsupported` has nothing against.
        weights: of it.
        device: where they and the pool are.
        all_reduce: replaces a tensor, in place, by its sum over the ranks of a tensor parallel group.
    """

    def __init__(
        self,
        program: Program,
        weights: DeviceWeights,
        device: str,
        *,
        all_reduce: Callable[[Tensor], None] = lambda part: None,
    ) -> None:
        self.program, self.device = program, device
        self.kernels = f"Triton kernels, activations {weights.activations}".replace("torch.", "")
        self._weights, self._all_reduce = weights, all_reduce
        self._frequencies = {
            one.target: torch.tensor(one.frequencies, device=device)
            for one in program.operations if isinstance(one, Angles)
        }  # fmt: skip
        self._registers: dict[str, Tensor] = {}
        self._unadded: dict[str, Tensor] = {}
        """By register what is yet to be added to it: a norm that comes next adds and normalises in one kernel."""

    @property
    def group(self) -> int:
        """How many query heads share a KV head."""
        return self.program.num_heads // self.program.num_kv_heads

    def run(self, step: Step, pool: KvPool) -> None:
        """Compute ``step``; see :class:`dataplane.model.executor.Executor`."""
        self.compute(inputs_of(step, pool.block_size, self.group, self.device), pool)

    def residual(self, tokens: int) -> Tensor:
        """Return the residual rows; see :class:`dataplane.model.executor.Executor`."""
        return self._register(RESIDUAL)[:tokens]

    def put_residual(self, rows: Tensor) -> None:
        """Go on from ``rows``; see :class:`dataplane.model.executor.Executor`."""
        self._write(RESIDUAL, rows)

    def logits(self, at: NDArray[np.int32]) -> DeviceLogits:
        """Return the logits of tokens of the last step; see :class:`dataplane.model.executor.Executor`."""
        values = self.project(torch.from_numpy(at).to(self.device).long())
        return DeviceLogits(values, greedy(values).tolist())

    def compute(self, inputs: Inputs, pool: KvPool) -> None:
        """Compute everything before the selection. Nothing here waits for the device, or reads what is on it."""
        for operation in self.program.operations[: self.program.selection]:
            self._execute(operation, inputs, pool)

    def project(self, at: Tensor | None = None) -> Tensor:
        """Return the logits [n, vocab] fp32 of tokens ``at`` [n] int64 of the last step, or of all."""
        for operation in self.program.operations[self.program.selection :]:
            match operation:
                case Select():
                    rows = self._register(operation.source)
                    self._write(operation.target, rows if at is None else rows[at])
                case Linear() | Normalise():
                    self._row_by_row(operation)
        return self._registers["logits"].float()

    # --- registers

    def _register(self, name: str) -> Tensor:
        """Return a register with all that was added to it."""
        rows = self._registers[name]
        added = self._unadded.pop(name, None)
        return rows if added is None else rows.add_(added)

    def _write(self, name: str, rows: Tensor) -> None:
        self._unadded.pop(name, None)
        self._registers[name] = rows

    def _heads(self, register: str) -> Tensor:
        rows = self._registers[register]
        return rows.view(len(rows), -1, self.program.head_dim)

    # --- operations

    def _execute(self, operation: Operation, inputs: Inputs, pool: KvPool) -> None:
        match operation:
            case Embed():
                self._embed(operation, inputs)
            case Angles():
                turns = inputs.rows.positions.float()[:, None] * self._frequencies[operation.target]
                pairs = torch.stack((turns.cos(), turns.sin()), dim=-1) * operation.scale
                self._write(operation.target, pairs.flatten(1))
            case Cache():
                self._cache(operation, inputs, pool)
            case Attention():
                self._attend(operation, inputs, pool)
            case AllReduce():
                self._all_reduce(self._register(operation.target))
            case Linear() | Normalise():
                self._row_by_row(operation)

    def _row_by_row(self, operation: Linear | Normalise) -> None:
        if isinstance(operation, Linear):
            result = self._linear(operation)
        else:
            result = self._normalised(operation.source, operation.norm)
        if operation.accumulate:
            self._register(operation.target)
            self._unadded[operation.target] = result
        else:
            # a part of a sum over ranks, too, is added up in the residual rows' dtype
            self._write(operation.target, result.float() if operation.target == RESIDUAL else result)

    def _embed(self, operation: Embed, inputs: Inputs) -> None:
        matrix, width = self._weights.matrices[operation.weight], self.program.widths[operation.target]
        rows = looked_up(inputs.token_ids, matrix, width) * operation.scale
        if operation.positions is not None:
            rows += self._weights.vectors[operation.positions][inputs.rows.positions.clamp(min=0)]
        self._write(operation.target, rows)

    def _normalised(self, register: str, norm: Norm) -> Tensor:
        """Return a register's rows normalised, in the activations' dtype."""
        residual = self._registers[register]
        added = self._unadded.pop(register, None)
        out = torch.empty_like(residual, dtype=self._weights.activations)
        if added is None:
            return self._norm(residual, norm, None, out)
        return self._norm(added, norm, residual, out)

    def _norm(self, rows: Tensor, norm: Norm, residual: Tensor | None, out: Tensor) -> Tensor:
        weight = self._weights.vectors[norm.weight]
        if norm.kind is NormKind.RMS:
            return rms_norm(rows, weight, norm.epsilon, residual, out=out)
        bias = torch.zeros_like(weight) if norm.bias is None else self._weights.vectors[norm.bias]
        return layer_norm(rows, weight, bias, norm.epsilon, residual, out=out)

    def _linear(self, operation: Linear) -> Tensor:
        if operation.norm is None:
            rows = self._register(operation.source).to(self._weights.activations)
        else:
            rows = self._normalised(operation.source, operation.norm)
        bias = None if operation.bias is None else self._weights.vectors[operation.bias]
        result = multiply(rows, self._weights.matrices[operation.weight], bias)
        silu = operation.activation is Activation.SILU
        if operation.gated:
            return gated.silu_mul(result) if silu else gated.gelu_tanh_mul(result)
        if operation.activation is not Activation.NONE:
            result = F.silu(result) if silu else F.gelu(result, approximate="tanh")
        return torch.tanh(result.float() / operation.softcap) * operation.softcap if operation.softcap else result

    def _cache(self, operation: Cache, inputs: Inputs, pool: KvPool) -> None:
        heads, queries = self._heads(operation.target), self.program.num_heads
        turned = heads[:, : queries + self.program.num_kv_heads]
        parts = ((turned[:, :queries], operation.query_norm), (turned[:, queries:], operation.key_norm))
        for part, norm in parts:
            if norm is not None:
                self._norm(part, norm, None, part)
        if operation.angles is not None:
            rotate_(turned, self._registers[operation.angles])
        layer = operation.layer
        keys_values = heads[:, queries:].view(len(heads), 2, -1, self.program.head_dim)
        write_kv(keys_values, inputs.slots, pool.data[layer], _scales(pool, layer))

    def _attend(self, operation: Attention, inputs: Inputs, pool: KvPool) -> None:
        layer = operation.layer
        attended = paged_attention(
            self._heads(operation.source)[:, : self.program.num_heads], pool.data[layer], inputs.rows,
            scale=operation.scale, window=operation.window, softcap=operation.softcap, kv_scales=_scales(pool, layer),
        )  # fmt: skip
        self._write(operation.target, attended)


def _scales(pool: KvPool, layer: int) -> Tensor | None:
    return pool.scales[layer] if pool.dtype == "int8" else None
