"""What the runtime format holds: the matrices of a program packed for the kernels, and its vectors in fp32."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from dataplane.contracts.model_config import ModelConfig, expected_tensors
from dataplane.contracts.model_config.quantisation import PARTS, precision_of
from dataplane.kernels import panels
from dataplane.model.architectures import architecture_of
from dataplane.model.parallel.sharding import Shard
from dataplane.model.program import Embed, Linear, Program

LAYOUT_VERSION = 6
"""Part of a runtime folder's name: raise it with any change of the header, or of the tensors: names, order, meaning."""


class PackingError(ValueError):
    """Weights that the precision cannot hold; the message says which and what to do."""


@dataclass(frozen=True, slots=True)
class Packed:
    """Weights ready for an executor.

    Attributes:
        matrices: by name: packed (:mod:`dataplane.kernels.panels`), its precision, outputs, inputs.
        vectors: by name, fp32; biases are filled up with zeros to whole panels.
    """

    matrices: Mapping[str, tuple[Tensor, str, int, int]]
    vectors: Mapping[str, Tensor]


def packed_tensors(
    config: ModelConfig, shard: Shard, precision: str, read: Callable[[str], Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """Yield the runtime tensors of a shard by name in the order of their use.

    Args:
        config: of the checkpoint.
        shard: what is packed of it.
        precision: of the layers' weights; :func:`~dataplane.contracts.model_config.quantisation.precision_of` says it
            of each matrix.
        read: returns a checkpoint's tensor by name.

    Raises:
        PackingError: a weight too large for the precision.
    """
    matrices = matrix_shapes(shard.program)
    if config.quantisation in PARTS:
        yield from _stored_codes(config, shard, matrices, read)
        return
    for name, tensor in architecture_of(config).tensors(config, read):
        cut = shard.cuts.get(name)
        if cut is None:
            continue
        if name not in matrices:
            yield name, _vector(name, cut(tensor))
            continue
        try:
            yield name, panels.pack(cut(tensor), precision_of(name, precision))
        except ValueError as error:
            raise PackingError(f"{name}: {error}") from error


def _stored_codes(
    config: ModelConfig, shard: Shard, matrices: Collection[str], read: Callable[[str], Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """Yield what a quantised folder's matrices pack to, bit for bit.

    An architecture joins and reorders the rows of matrices; rows of codes, scales and minimums go the same way.
    """
    whole, scheme = expected_tensors(config), config.quantisation

    def reader(part: str) -> Callable[[str], Tensor]:
        def read_part(name: str) -> Tensor:
            if len(whole[name]) != 2:
                return read(name)
            # a matrix without minimums gives its codes again, which are left out below
            return read(f"{name}.{part if part in PARTS[precision_of(name, scheme)] else 'codes'}")

        return read_part

    streams = [architecture_of(config).tensors(config, reader(part)) for part in PARTS[scheme]]
    for named in zip(*streams, strict=True):
        name, first = named[0]
        cut = shard.cuts.get(name)
        if cut is None:
            continue
        if name not in matrices:
            yield name, _vector(name, cut(first))
            continue
        precision = precision_of(name, scheme)
        group = panels.GROUP_INPUTS[precision]
        codes = _unpacked(first, precision).view(len(first), -1, group)
        headers = (part[:, : codes.shape[1]] for _, part in named[1 : len(PARTS[precision])])
        yield name, panels.assemble([cut(codes, group).flatten(1), *(cut(part, group) for part in headers)], precision)


def _unpacked(codes: Tensor, precision: str) -> Tensor:
    """Return stored codes as one uint8 each."""
    if precision == "int8":
        return codes.view(torch.uint8)
    return torch.stack((codes & 15, codes >> 4), dim=-1).flatten(1)


def as_packed(program: Program, precision: str, tensors: Mapping[str, Tensor]) -> Packed:
    """Tell the matrices of ``tensors``, as :func:`packed_tensors` yields them in ``precision``, from the vectors."""
    shapes = matrix_shapes(program)
    return Packed(
        matrices={name: (tensors[name], precision_of(name, precision), *shape) for name, shape in shapes.items()},
        vectors={name: tensor for name, tensor in tensors.items() if name not in shapes},
    )


def matrix_shapes(program: Program) -> dict[str, tuple[int, int]]:
    """Return (outputs, inputs) of each matrix of a program by name."""
    shapes: dict[str, tuple[int, int]] = {}
    for operation in program.operations:
        match operation:
            case Embed():
                shapes.setdefault(operation.weight, (program.widths["logits"], program.widths[operation.target]))
            case Linear():
                outputs = program.widths[operation.target]
                shapes[operation.weight] = (
                    outputs * 2 if operation.gated else outputs,
                    program.widths[operation.source],
                )
    return shapes


def _vector(name: str, tensor: Tensor) -> Tensor:
    vector = tensor.float()
    if not name.endswith(".bias"):
        return vector
    return torch.nn.functional.pad(vector, (0, -len(vector) % panels.PANEL))
