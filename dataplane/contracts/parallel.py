"""How one replica is spread over processes: which models can be, and who has what. Pure.

Tensor parallel: every layer is cut across its heads and its inner width; each rank computes a part of every sum.
Pipeline parallel: each stage has some of the layers, and hands what it has computed on to the next.
"""

from typing import Self

import msgspec

from dataplane.contracts.model_config import ModelConfig
from dataplane.contracts.model_config.quantisation import GROUP_INPUTS

_LANES = 8
"""Values that a kernel computes at a time: no part of an inner width is cut finer."""


class Parallel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Ranks across which each layer is cut, and stages that layers are dealt to."""

    tensor: int = 1
    pipeline: int = 1

    @property
    def ranks(self) -> int:
        """How many processes compute."""
        return self.tensor * self.pipeline


class Place(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One rank of many: rank = stage x ``parallel.tensor`` + ``slice``; rank 0 is the engine's own process."""

    parallel: Parallel = Parallel()
    slice: int = 0
    stage: int = 0

    @classmethod
    def of(cls, rank: int, parallel: Parallel) -> Self:
        """Return the place of ``rank``."""
        stage, part = divmod(rank, parallel.tensor)
        return cls(parallel, part, stage)

    @property
    def rank(self) -> int:
        """Its number."""
        return self.stage * self.parallel.tensor + self.slice

    @property
    def label(self) -> str:
        """A part of a file's name that tells it from every other place; empty for the only one."""
        if self.parallel.ranks == 1:
            return ""
        return f"t{self.slice}of{self.parallel.tensor}-p{self.stage}of{self.parallel.pipeline}"

    def layers(self, num_layers: int) -> range:
        """Return the layers of its stage, of ``num_layers``: as even as can be."""
        stages = self.parallel.pipeline
        return range(self.stage * num_layers // stages, (self.stage + 1) * num_layers // stages)

    def heads(self, count: int) -> range:
        """Return its heads, of ``count``."""
        each = count // self.parallel.tensor
        return range(self.slice * each, (self.slice + 1) * each)

    def inner(self, width: int, precision: str) -> range:
        """Return its channels of an inner width in units that ``precision`` lets be cut."""
        unit, ranks = inner_unit(precision), self.parallel.tensor
        units = -(-width // unit)
        return range(self.slice * units // ranks * unit, min((self.slice + 1) * units // ranks * unit, width))


def inner_unit(precision: str) -> int:
    """Return how many channels of an inner width stay together where weights are in ``precision``."""
    return GROUP_INPUTS.get(precision, _LANES)


def conflict(config: ModelConfig, parallel: Parallel, precision: str) -> str:
    """Say why a model cannot be spread so, and what to do; empty where it can.

    Args:
        config: the model's.
        parallel: the ranks asked for.
        precision: of the layers' weights.
    """
    ranks, stages = parallel.tensor, parallel.pipeline
    if config.num_kv_heads % ranks:
        return (
            f"its {config.num_kv_heads} key/value heads cannot be dealt evenly to {ranks} ranks; "
            f"give --tensor-parallel a divisor of {config.num_kv_heads}"
        )
    unit = inner_unit(precision)
    if -(-config.intermediate_size // unit) < ranks:
        return (
            f"the inner width {config.intermediate_size} has too few parts of {unit} for {ranks} ranks; "
            f"lower --tensor-parallel"
        )
    width = config.num_heads // ranks * config.head_dim
    if precision in GROUP_INPUTS and ranks > 1 and width % unit:
        return (
            f"{precision} weights share a scale among {unit} inputs, and {ranks} ranks would cut that of their "
            f"{width} attended channels; lower --tensor-parallel, or use fp32, fp16 or bf16"
        )
    if config.num_layers < stages:
        return f"its {config.num_layers} layers are fewer than {stages} stages; lower --pipeline-parallel"
    return ""
