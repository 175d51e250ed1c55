"""Runs a program in plain torch: the oracle of every other executor, and what runs where no kernel does.

Everything is computed in fp32 from the weights as they are packed, so what quantisation costs is in it.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the field's name for it
from numpy.typing import NDArray
from torch import Tensor

from dataplane.kernels import panels
from dataplane.model.kv_pool import KvPool
from dataplane.model.logits import Logits
from dataplane.model.packing import Packed
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


@dataclass(frozen=True, slots=True)
class _Places:
    """Where the tokens of a step stand: positions [n], slots [n], and for each row of the step its context's slots."""

    positions: Tensor
    slots: Tensor
    contexts: list[Tensor]


class ReferenceExecutor:
    """A :class:`dataplane.model.executor.Executor` that anyone can check by reading it."""

    kernels = "plain torch"

    def __init__(
        self, program: Program, weights: Packed, all_reduce: Callable[[Tensor], None] = lambda part: None
    ) -> None:
        self._program, self._all_reduce = program, all_reduce
        self._matrices = {name: panels.unpack(*matrix) for name, matrix in weights.matrices.items()}
        self._vectors: Mapping[str, Tensor] = weights.vectors
        self._registers: dict[str, Tensor] = {}

    def run(self, step: Step, pool: KvPool) -> None:
        """Compute ``step``; see :class:`dataplane.model.executor.Executor`."""
        places = _places(step, pool.block_size)
        for operation in self._program.operations[: self._program.selection]:
            self._execute(operation, self._registers, step, places, pool)

    def residual(self, tokens: int) -> Tensor:
        """Return the residual rows; see :class:`dataplane.model.executor.Executor`."""
        return self._registers[RESIDUAL][:tokens]

    def put_residual(self, rows: Tensor) -> None:
        """Go on from ``rows``; see :class:`dataplane.model.executor.Executor`."""
        self._registers[RESIDUAL] = rows

    def logits(self, at: NDArray[np.int32]) -> Logits:
        """Return the logits of tokens of the last step; see :class:`dataplane.model.executor.Executor`."""
        registers = dict(self._registers)
        for operation in self._program.operations[self._program.selection :]:
            match operation:
                case Select():
                    registers[operation.target] = registers[operation.source][torch.from_numpy(at).long()]
                case Linear() | Normalise():
                    self._row_by_row(operation, registers)
        values = registers["logits"]
        finite = values.sum(dim=-1).isfinite()
        return Logits(values, torch.where(finite, values.argmax(dim=-1), -1).tolist())

    def _execute(
        self, operation: Operation, registers: dict[str, Tensor], step: Step, places: _Places, pool: KvPool
    ) -> None:
        match operation:
            case Embed():
                registers[operation.target] = self._embed(operation, step, places)
            case Angles():
                registers[operation.target] = places.positions.float()[:, None] * torch.tensor(operation.frequencies)
            case Cache():
                self._cache(operation, registers, places, pool)
            case Attention():
                registers[operation.target] = self._attention(
                    operation, registers[operation.source], step, places, pool
                )
            case AllReduce():
                self._all_reduce(registers[operation.target])
            case Linear() | Normalise():
                self._row_by_row(operation, registers)

    def _row_by_row(self, operation: Linear | Normalise, registers: dict[str, Tensor]) -> None:
        rows = registers[operation.source]
        result = self._linear(operation, rows) if isinstance(operation, Linear) else self._norm(operation.norm, rows)
        registers[operation.target] = registers[operation.target] + result if operation.accumulate else result

    def _embed(self, operation: Embed, step: Step, places: _Places) -> Tensor:
        rows = F.embedding(torch.from_numpy(step.token_ids).long(), self._matrices[operation.weight]) * operation.scale
        return rows if operation.positions is None else rows + self._vectors[operation.positions][places.positions]

    def _norm(self, norm: Norm, rows: Tensor) -> Tensor:
        weight = self._vectors[norm.weight]
        if norm.kind is NormKind.RMS:
            return F.rms_norm(rows, weight.shape, weight, norm.epsilon)
        bias = None if norm.bias is None else self._vectors[norm.bias]
        return F.layer_norm(rows, weight.shape, weight, bias, norm.epsilon)

    def _linear(self, operation: Linear, rows: Tensor) -> Tensor:
        if operation.norm is not None:
            rows = self._norm(operation.norm, rows)
        weight = self._matrices[operation.weight]
        bias = None if operation.bias is None else self._vectors[operation.bias][: len(weight)]
        result = F.linear(rows[:, : weight.shape[1]], weight, bias)
        if operation.gated:
            gate, opened = result.view(len(result), -1, 2, 8).unbind(2)
            return (_activate(operation.activation, gate) * opened).flatten(1)
        result = _activate(operation.activation, result)
        return torch.tanh(result / operation.softcap) * operation.softcap if operation.softcap else result

    def _cache(self, operation: Cache, registers: dict[str, Tensor], places: _Places, pool: KvPool) -> None:
        program, rows = self._program, registers[operation.target]
        heads = rows.view(len(rows), -1, program.head_dim)
        query, key, value = torch.split(heads, [program.num_heads, program.num_kv_heads, program.num_kv_heads], dim=1)
        if operation.query_norm is not None:
            query = self._norm(operation.query_norm, query)
        if operation.key_norm is not None:
            key = self._norm(operation.key_norm, key)
        if operation.angles is not None:
            scale = self._angle_scale(operation.angles)
            query, key = (_rotated(part, registers[operation.angles], scale) for part in (query, key))
        registers[operation.target] = torch.cat((query, key, value), dim=1).flatten(1)
        pool.write(operation.layer, places.slots, torch.stack((key, value), dim=1))

    def _angle_scale(self, register: str) -> float:
        return next(one.scale for one in self._program.operations if isinstance(one, Angles) and one.target == register)

    def _attention(self, operation: Attention, rows: Tensor, step: Step, places: _Places, pool: KvPool) -> Tensor:
        program = self._program
        queries = rows[:, : program.num_heads * program.head_dim].view(len(rows), program.num_heads, -1)
        attended = []
        for sequence, context in zip(step.sequences, places.contexts, strict=True):
            own = queries[sequence["first"] : sequence["first"] + sequence["count"]].transpose(0, 1)
            keys, values = pool.read(operation.layer, context).transpose(0, 2).unbind(1)
            group = program.num_heads // program.num_kv_heads
            keys, values = keys.repeat_interleave(group, 0), values.repeat_interleave(group, 0)
            scores = own @ keys.transpose(1, 2) * operation.scale
            if operation.softcap:
                scores = torch.tanh(scores / operation.softcap) * operation.softcap
            back = torch.arange(own.shape[1])[:, None] + int(sequence["position"]) - torch.arange(len(context))
            hidden = (back < 0) | (back >= (operation.window or len(context)))
            weights = scores.masked_fill(hidden, -math.inf).softmax(-1)
            attended.append((weights @ values).transpose(0, 1).flatten(1))
        return torch.cat(attended)


def _places(step: Step, block_size: int) -> _Places:
    positions, slots, contexts = [], [], []
    for sequence, table in zip(step.sequences, step.tables, strict=True):
        end = int(sequence["position"] + sequence["count"])
        everywhere = torch.arange(end)
        blocks = torch.tensor(table, dtype=torch.int64)
        context = blocks[everywhere // block_size] * block_size + everywhere % block_size
        contexts.append(context)
        positions.append(everywhere[int(sequence["position"]) :])
        slots.append(context[int(sequence["position"]) :])
    return _Places(torch.cat(positions), torch.cat(slots), contexts)


def _activate(activation: Activation, rows: Tensor) -> Tensor:
    if activation is Activation.NONE:
        return rows
    return F.silu(rows) if activation is Activation.SILU else F.gelu(rows, approximate="tanh")


def _rotated(heads: Tensor, angles: Tensor, scale: float) -> Tensor:
    first, second = heads.view(*heads.shape[:-1], -1, 2).unbind(-1)
    cosine, sine = (angles.cos() * scale)[:, None], (angles.sin() * scale)[:, None]
    return torch.stack((first * cosine - second * sine, first * sine + second * cosine), dim=-1).flatten(-2)
