"""Runs a program by the C++ kernels, all operations in one call."""

import ctypes
from collections.abc import Callable
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dataplane.kernels import panels
from dataplane.kernels.cpu import binding as native
from dataplane.model.kv_pool import KvPool
from dataplane.model.logits import Logits
from dataplane.model.packing import Packed
from dataplane.model.program import (
    RESIDUAL,
    AllReduce,
    Angles,
    Attention,
    Cache,
    Embed,
    Linear,
    Norm,
    Normalise,
    Operation,
    Program,
    Select,
)
from dataplane.model.step import SEQUENCE, Step, StepLimits

_EMBED, _ANGLES, _LINEAR, _CACHE, _ATTENTION, _NORM, _SELECT, _GREEDY = range(8)
_WEIGHT_TYPES: Final = {name: number for number, name in enumerate(panels.FORMATS)}
_KV_TYPES: Final = {"fp32": 0, "fp16": 1, "bf16": 2, "int8": 3}
_LANES: Final = 8
_MAX_GROUP, _MAX_HEAD_DIM = 64, 1024


def unsupported(program: Program) -> str:
    """Return why the kernels cannot run ``program``; empty where they can."""
    for name, width in program.widths.items():
        if name != "logits" and width % _LANES:
            return f"the kernels compute {_LANES} values at a time, and {name} is {width} wide"
    if program.head_dim % _LANES or program.head_dim > _MAX_HEAD_DIM:
        return f"the kernels need heads of a multiple of {_LANES} up to {_MAX_HEAD_DIM}, not {program.head_dim}"
    if program.num_heads // program.num_kv_heads > _MAX_GROUP:
        return f"the kernels share a KV head among {_MAX_GROUP} heads at most"
    return ""


class NativeExecutor:
    """A :class:`dataplane.model.executor.Executor` of C++ kernels and a thread team of its own.

    Args:
        library: the compiled kernels.
        program: one that :func:`unsupported` has nothing against.
        weights: kept alive and read in place.
        limits: of its steps.
        threads: of the team, the caller's among them.
        all_reduce: replaces a register's rows, in place, by their sum over the ranks of a tensor parallel group.

    Raises:
        MemoryError: no memory for the registers.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        program: Program,
        weights: Packed,
        limits: StepLimits,
        threads: int,
        *,
        all_reduce: Callable[[Tensor], None] = lambda part: None,
    ) -> None:
        self._library, self._program, self._weights = library, program, weights
        self._all_reduce = all_reduce
        self._handle: int | None = None
        self._alive: list[Tensor] = []
        self._registers = {name: index for index, name in enumerate(program.widths)}
        sampled = _sampled_registers(program)
        operations = [self._translated(one) for one in program.operations if not isinstance(one, AllReduce)]
        operations.append(native.Operation(
            kind=_GREEDY, source=self._registers["logits"], target=-1, inputs=program.widths["logits"]
        ))  # fmt: skip
        self._num_operations = len(operations)
        widths = np.array(list(program.widths.values()), np.int32)
        marks = np.array([name in sampled for name in program.widths], np.int32)
        self._handle = library.pagoda_program(
            (native.Operation * self._num_operations)(*operations),
            self._num_operations,
            widths.ctypes.data,
            marks.ctypes.data,
            len(widths),
            limits.tokens,
            limits.sampled,
            threads,
        )
        if not self._handle:
            raise MemoryError(f"no memory for steps of {limits.tokens} tokens")
        logits = self._register("logits", limits.sampled)
        # Made beforehand: right after a step the caches hold nothing but weights, and a slice takes 30 us.
        self._logits = [logits[:count] for count in range(limits.sampled + 1)]
        self._residual = self._register(RESIDUAL, limits.tokens)
        self._parts = self._make_parts(limits.tokens)
        # What the kernels read of a step lies in the same place each time: to ask an array for its place takes longer.
        self._limits = limits
        self._token_ids = np.empty(limits.tokens, np.int32)
        self._sequences = np.empty(limits.tokens, SEQUENCE)
        self._sampled_at, self._greedy = np.empty((2, limits.sampled), np.int32)
        self._step = native.Step(
            token_ids=self._token_ids.ctypes.data,
            sequence=self._sequences.ctypes.data,
            sampled_at=self._sampled_at.ctypes.data,
            greedy=self._greedy.ctypes.data,
        )
        self._drawn_at: NDArray[np.int32] | None = None
        self.kernels = f"{library.pagoda_instructions().decode()} kernels, {threads} threads"

    def __del__(self) -> None:
        if self._handle:
            self._library.pagoda_free(self._handle)

    def run(self, step: Step, pool: KvPool) -> None:
        """Compute ``step``; see :class:`dataplane.model.executor.Executor`.

        Raises:
            ValueError: more tokens than were said to come.
        """
        tokens, sequences, sampled = len(step.token_ids), len(step.sequences), len(step.sampled_at)
        if tokens > self._limits.tokens or sampled > self._limits.sampled:
            raise ValueError(f"a step of {tokens} tokens, {sampled} of them sampled, is longer than was said")
        self._token_ids[:tokens] = step.token_ids
        self._sequences[:sequences] = step.sequences
        self._sampled_at[:sampled] = step.sampled_at
        self._step.tokens, self._step.sequences, self._step.sampled = tokens, sequences, sampled
        self._drawn_at = None
        layers, blocks, block_size, _, kv_heads, dim = pool.data.shape
        data, scales = pool.data.data_ptr(), pool.scales.data_ptr()
        where = native.Pool(data, scales, _KV_TYPES[pool.dtype], layers, blocks, block_size, kv_heads, dim)
        for first, last, partial in self._parts:
            # The last part goes on to the logits that will be asked for: to call the team together takes a while.
            goes_on = sampled > 0 and partial is None
            end = self._num_operations if goes_on else last
            self._library.pagoda_run(self._handle, ctypes.byref(self._step), ctypes.byref(where), first, end)
            if goes_on:
                self._drawn_at = step.sampled_at
            if partial is not None:
                self._all_reduce(partial[:tokens])

    def residual(self, tokens: int) -> Tensor:
        """Return the residual rows; see :class:`dataplane.model.executor.Executor`."""
        return self._residual[:tokens]

    def put_residual(self, rows: Tensor) -> None:
        """Go on from ``rows``; see :class:`dataplane.model.executor.Executor`."""
        self._residual[: len(rows)].copy_(rows)
        self._drawn_at = None

    def logits(self, at: NDArray[np.int32]) -> Logits:
        """Return the logits of tokens of the last step; see :class:`dataplane.model.executor.Executor`.

        Raises:
            ValueError: more tokens than were said to come.
        """
        count = len(at)
        if count > self._limits.sampled:
            raise ValueError(f"the logits of {count} tokens are more than was said")
        if at is not self._drawn_at:
            self._sampled_at[:count] = at
            self._library.pagoda_finish(self._handle, count)
        self._drawn_at = None  # whoever draws may overwrite them
        return Logits(self._logits[count], self._greedy[:count].tolist())

    def _register(self, name: str, rows: int) -> Tensor:
        """The register itself, [rows, width]."""
        address = ctypes.cast(self._library.pagoda_values(self._handle, self._registers[name]), ctypes.c_void_p).value
        floats = (ctypes.c_float * (rows * self._program.widths[name])).from_address(address or 0)
        return torch.frombuffer(floats, dtype=torch.float32).view(rows, -1)

    def _make_parts(self, rows: int) -> list[tuple[int, int, Tensor | None]]:
        """What runs in one call, as [first, last), and the register that ranks then add up, if any."""
        found: list[tuple[int, int, Tensor | None]] = []
        first = last = 0
        for operation in self._program.operations[: self._program.selection]:
            if isinstance(operation, AllReduce):
                found.append((first, last, self._register(operation.target, rows)))
                first = last
            else:
                last += 1
        return [*found, (first, last, None)] if last > first else found

    # --- translation

    def _translated(self, operation: Operation) -> native.Operation:
        translate: dict[type, Callable[..., native.Operation]] = {
            Embed: self._embed, Angles: self._angles, Linear: self._linear, Cache: self._cache,
            Attention: self._attention, Normalise: self._normalise, Select: self._select,
        }  # fmt: skip
        return translate[type(operation)](operation)

    def _operation(self, kind: int, target: str, source: str | None = None, **fields: float) -> native.Operation:
        return native.Operation(
            kind=kind,
            target=self._registers[target],
            source=-1 if source is None else self._registers[source],
            inputs=0 if source is None else self._program.widths[source],
            outputs=self._program.widths[target],
            angles=-1,
            **fields,
        )

    def _vector(self, name: str | None) -> int | None:
        return None if name is None else self._address(self._weights.vectors[name])

    def _address(self, tensor: Tensor) -> int:
        whole = tensor.contiguous()
        self._alive.append(whole)
        return whole.data_ptr()

    def _put_matrix(self, into: native.Operation, name: str) -> None:
        packed, precision, outputs, _ = self._weights.matrices[name]
        into.weight, into.weight_type = self._address(packed), _WEIGHT_TYPES[panels.format_of(packed, precision)]
        if into.kind == _LINEAR:
            into.outputs = outputs

    def _put_norm(self, into: native.Operation, norm: Norm | None) -> None:
        if norm is not None:
            into.norm, into.epsilon = norm.kind, norm.epsilon
            into.norm_weight, into.norm_bias = self._vector(norm.weight), self._vector(norm.bias)

    def _embed(self, one: Embed) -> native.Operation:
        made = self._operation(_EMBED, one.target, scale=one.scale)
        self._put_matrix(made, one.weight)
        made.extra = self._vector(one.positions)
        return made

    def _angles(self, one: Angles) -> native.Operation:
        made = self._operation(_ANGLES, one.target, scale=one.scale)
        made.extra = self._address(torch.tensor(one.frequencies))
        return made

    def _linear(self, one: Linear) -> native.Operation:
        made = self._operation(
            _LINEAR, one.target, one.source, accumulate=one.accumulate, activation=one.activation, gated=one.gated,
            softcap=one.softcap,
        )  # fmt: skip
        self._put_matrix(made, one.weight)
        self._put_norm(made, one.norm)
        made.bias = self._vector(one.bias)
        return made

    def _cache(self, one: Cache) -> native.Operation:
        made = self._operation(_CACHE, one.target, layer=one.layer, heads=self._program.num_heads)
        if one.angles is not None:
            made.angles = self._registers[one.angles]
        self._put_norm(made, one.query_norm)
        if one.key_norm is not None:
            made.extra = self._vector(one.key_norm.weight)
        return made

    def _attention(self, one: Attention) -> native.Operation:
        return self._operation(
            _ATTENTION, one.target, one.source, layer=one.layer, heads=self._program.num_heads, scale=one.scale,
            window=one.window, softcap=one.softcap,
        )  # fmt: skip

    def _normalise(self, one: Normalise) -> native.Operation:
        made = self._operation(_NORM, one.target, one.source, accumulate=one.accumulate)
        self._put_norm(made, one.norm)
        return made

    def _select(self, one: Select) -> native.Operation:
        return self._operation(_SELECT, one.target, one.source)


def _sampled_registers(program: Program) -> set[str]:
    """The registers that have a row for each sampled token: those written from the selection on."""
    names: set[str] = set()
    selected = False
    for operation in program.operations:
        selected = selected or isinstance(operation, Select)
        if selected:
            names.add(operation.target)
    return names
