"""One rank's part of a program and of its weights.

Registers are whole on every rank (residual rows, logits) or divided (heads, what was attended, the inner width of an
MLP). A matrix from a whole register to a divided one is cut by rows, one from a divided register back to a whole one
by columns; what the ranks then hold are parts of one sum, which :class:`AllReduce` adds up (Shoeybi et al., 2019). The
first rank alone adds its part to what the register held, and the bias with it: so both are in the sum once.

The matrix of the vocabulary is not cut. Tokens are drawn by rank 0 alone, as often as it likes; were the matrix cut,
every rank would have to answer each time, and send its logits.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dataplane.contracts.parallel import Place
from dataplane.model.program import (
    Activation,
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
)


@dataclass(frozen=True, slots=True)
class Cut:
    """What of a tensor a rank has: some ranges of its rows, and one of its columns; None is all of them."""

    rows: tuple[range, ...] | None = None
    columns: range | None = None

    def __call__(self, tensor: Tensor, inputs_per_column: int = 1) -> Tensor:
        """Return the part of ``tensor`` [rows] or [rows, columns], each column of which stands for some inputs."""
        if self.rows is not None:
            tensor = torch.cat([tensor[rows.start : rows.stop] for rows in self.rows])
        if self.columns is not None:
            first, last = self.columns.start, self.columns.stop
            tensor = tensor[:, first // inputs_per_column : -(-last // inputs_per_column)]
        return tensor


@dataclass(frozen=True, slots=True)
class Shard:
    """A rank's program, and what it has of each tensor that the program names; those not in ``cuts`` it lacks."""

    program: Program
    cuts: Mapping[str, Cut]


def shard_of(program: Program, place: Place, precision: str) -> Shard:
    """Return the part of ``program`` that is computed at ``place`` with weights in ``precision``."""
    operations = _of_stage(program, place)
    divided = _divided(program, place, precision)
    widths = dict(program.widths) | {name: sum(map(len, ranges)) for name, ranges in divided.items()}
    cuts: dict[str, Cut] = {}
    computed: list[Operation] = []
    for operation in operations:
        cuts |= {name: Cut() for name in _vectors(operation)}
        if not isinstance(operation, Linear):
            computed.append(operation)
            if isinstance(operation, Embed):
                cuts[operation.weight] = Cut()
            continue
        cuts |= _cuts(operation, divided)
        partial = operation.source in divided
        computed.append(_part_of_a_sum(operation) if partial and place.slice else operation)
        if partial:
            computed.append(AllReduce(operation.target))
    heads, kv_heads = len(place.heads(program.num_heads)), len(place.heads(program.num_kv_heads))
    return Shard(Program(tuple(computed), widths, heads, kv_heads, program.head_dim), cuts)


def _of_stage(program: Program, place: Place) -> list[Operation]:
    """The operations of one stage: the first also embeds and draws, and all turn positions.

    A layer begins with the projection that its :class:`Cache` reads; its number counts from the stage's first.
    """
    starts = [index - 1 for index, one in enumerate(program.operations) if isinstance(one, Cache)]
    borders = [*starts, program.selection]
    own = place.layers(len(starts))
    before, after = program.operations[: starts[0]], program.operations[program.selection :]
    layers = [
        replace(one, layer=one.layer - own.start) if isinstance(one, Cache | Attention) else one
        for one in program.operations[borders[own.start] : borders[own.stop]]
    ]
    if place.stage:
        return [*(one for one in before if isinstance(one, Angles)), *layers]
    return [*before, *layers, *(after if place.slice == 0 else ())]


def _divided(program: Program, place: Place, precision: str) -> dict[str, tuple[range, ...]]:
    """The registers that ranks have parts of, with the channels of this one's.

    An activation stands only where the inner width of an MLP is.
    """
    dim, divided = program.head_dim, dict[str, tuple[range, ...]]()
    if place.parallel.tensor == 1:
        return divided
    queries, keys = place.heads(program.num_heads), place.heads(program.num_kv_heads)
    first_key, first_value = program.num_heads, program.num_heads + program.num_kv_heads
    for operation in program.operations:
        match operation:
            case Cache():
                divided[operation.target] = (
                    _channels(queries, dim), _channels(keys, dim, first_key), _channels(keys, dim, first_value)
                )  # fmt: skip
            case Attention():
                divided[operation.target] = (_channels(queries, dim),)
            case Linear() if operation.activation is not Activation.NONE:
                divided[operation.target] = (place.inner(program.widths[operation.target], precision),)
    return divided


def _channels(heads: range, dim: int, first: int = 0) -> range:
    return range((first + heads.start) * dim, (first + heads.stop) * dim)


def _cuts(operation: Linear, divided: Mapping[str, tuple[range, ...]]) -> dict[str, Cut]:
    """What a rank has of a projection's matrix and bias."""
    rows = divided.get(operation.target)
    if rows is not None and operation.gated:  # two channels of the matrix for each of the register
        rows = tuple(range(2 * one.start, 2 * one.stop) for one in rows)
    columns = divided.get(operation.source)
    cuts = {operation.weight: Cut(rows, None if columns is None else columns[0])}
    if operation.bias is not None:
        cuts[operation.bias] = Cut(rows)
    return cuts


def _part_of_a_sum(operation: Linear) -> Linear:
    return replace(operation, accumulate=False, bias=None)


def _vectors(operation: Operation) -> list[str]:
    """The vectors that every rank has whole."""
    norms: list[Norm | None] = []
    names: list[str | None] = []
    match operation:
        case Embed():
            names = [operation.positions]
        case Linear() | Normalise():
            norms = [operation.norm]
        case Cache():
            norms = [operation.query_norm, operation.key_norm]
        case _:
            pass
    names += [name for norm in norms if norm is not None for name in (norm.weight, norm.bias)]
    return [name for name in names if name is not None]
