"""A forward pass as data: a list of operations over named registers, which any executor can run.

An architecture (:mod:`dataplane.model.architectures`) writes the program of a config; executors compute it: plain torch
(:mod:`dataplane.model.reference`, the oracle) and C++ kernels (:mod:`dataplane.model.native`). A register is a matrix
[tokens of the step, width] in fp32; after :class:`Select` it has one row for each token that draws a successor.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

RESIDUAL: Final = "rows"
"""The register that runs through all layers: what one stage of a pipeline hands on to the next."""


class NormKind(IntEnum):
    """RMSNorm (Zhang and Sennrich, 2019) or LayerNorm (Ba et al., 2016)."""

    RMS = 1
    LAYER = 2


class Activation(IntEnum):
    """SiLU (Elfwing et al., 2017), or GELU in its tanh form (Hendrycks and Gimpel, 2016)."""

    NONE = 0
    SILU = 1
    GELU_TANH = 2


@dataclass(frozen=True, slots=True)
class Norm:
    """How rows are normalised; ``weight`` and ``bias`` name vectors."""

    weight: str
    epsilon: float
    kind: NormKind = NormKind.RMS
    bias: str | None = None


@dataclass(frozen=True, slots=True)
class Embed:
    """``target`` = the token's row of the matrix ``weight``, times ``scale``, plus its place's row of ``positions``."""

    target: str
    weight: str
    scale: float = 1.0
    positions: str | None = None


@dataclass(frozen=True, slots=True)
class Angles:
    """``target`` = cosine and sine of position x frequency, pair after pair, times ``scale``.

    Rotary positions: Su et al., 2021. ``scale`` is the attention factor of YaRN (Peng et al., 2023).
    """

    target: str
    frequencies: tuple[float, ...]
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Linear:
    """``target`` = activation(norm(``source``) x ``weight`` + ``bias``), or added to ``target`` if ``accumulate``.

    ``gated``: the channels of ``weight`` come as 8 of a gate and 8 of what it opens, 8 of the gate ...; the result is
    activation(gate) x opened, half as wide. ``softcap``: the result is softcap x tanh(result / softcap).
    """

    source: str
    target: str
    weight: str
    bias: str | None = None
    norm: Norm | None = None
    activation: Activation = Activation.NONE
    gated: bool = False
    accumulate: bool = False
    softcap: float = 0.0


@dataclass(frozen=True, slots=True)
class Cache:
    """Normalise and rotate the heads of ``target`` [query heads | key heads | value heads], then keep keys and values.

    Queries and keys change in place; keys and values go to ``layer`` of the KV pool. Rotary pairs lie side by side
    (:func:`dataplane.kernels.rotary.interleave_pairs`).
    """

    target: str
    layer: int
    angles: str | None
    query_norm: Norm | None = None
    key_norm: Norm | None = None


@dataclass(frozen=True, slots=True)
class Attention:
    """``target`` = softmax(``scale`` x queries . keys) x values over the token's own context in the KV pool.

    ``window``: a token sees itself and ``window`` - 1 tokens before it; 0 is all. ``softcap`` bounds scores as in
    :class:`Linear`, before the softmax.
    """

    source: str
    target: str
    layer: int
    scale: float
    window: int = 0
    softcap: float = 0.0


@dataclass(frozen=True, slots=True)
class Normalise:
    """``target`` = norm(``source``), or added to ``target`` if ``accumulate``."""

    source: str
    target: str
    norm: Norm
    accumulate: bool = False


@dataclass(frozen=True, slots=True)
class Select:
    """``target`` = the rows of ``source`` of tokens that draw a successor. Every later operation works on such rows."""

    source: str
    target: str


@dataclass(frozen=True, slots=True)
class AllReduce:
    """``target`` = the sum of what every rank of a tensor parallel group has there."""

    target: str


Operation = Embed | Angles | Linear | Cache | Attention | Normalise | Select | AllReduce


@dataclass(frozen=True, slots=True)
class Program:
    """A forward pass; the last operation writes the register ``logits``, but for ranks that do not draw.

    Attributes:
        operations: in order.
        widths: of each register.
        num_heads, num_kv_heads, head_dim: of every attention.
    """

    operations: tuple[Operation, ...]
    widths: Mapping[str, int]
    num_heads: int
    num_kv_heads: int
    head_dim: int

    @property
    def attended_layers(self) -> int:
        """How many layers keep keys and values."""
        return sum(isinstance(operation, Cache) for operation in self.operations)

    @property
    def selection(self) -> int:
        """The index of the one :class:`Select`; of a part without one, the number of operations."""
        found = (index for index, operation in enumerate(self.operations) if isinstance(operation, Select))
        return next(found, len(self.operations))
