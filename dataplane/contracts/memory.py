"""The memory planner: what a replica takes, and what a device can give. Pure.

:func:`plan` lists what a replica takes; :mod:`dataplane.contracts.room` asks it what fits. On CPU, weights lie in the
runtime format's file in panels, as the kernels read them, and are mapped: all replicas of a version on a node share
them. What a step writes follows from the shapes of the forward pass. What the processes themselves take was measured,
see the constants.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from dataplane.contracts import precision
from dataplane.contracts.catalog import EngineSettings, Share
from dataplane.contracts.model_config import ModelConfig, expected_tensors
from dataplane.contracts.model_config.gpt2 import POSITIONS
from dataplane.contracts.model_config.quantisation import precision_of
from dataplane.contracts.replica import Device

STEP_TOKENS = 256
"""Most tokens that an engine computes in one step, unless it runs more sequences than that."""
USABLE = (0.85, 0.90)
"""The part of a device's memory that can be used, at the least and at the most. What is decided is decided by the
least; the rest is for the system, fragments, and on a device that was never measured for what its libraries take."""

_MIB, _GIB = 1024**2, 1024**3

# Measured with torch 2.13 on x86 (make memory measures them anew): a replica of a model of next to no weights gives the
# first two, the difference to one with 49,152 tokens the third.
_PROCESSES_HELD_BYTES = 196 * _MIB
"""Server, engine process and tokenizer child, without model and vocabulary, once they have answered."""
_PROCESSES_MAPPED_BYTES = 94 * _MIB
"""The libraries that they have mapped, each counted once."""
_TOKENIZER_BYTES = 1030
"""What the tokenizer child takes for each token of the vocabulary."""

_PANEL_OUTPUTS = 16
_GROUPS = {"int8": (64, 32 + 64 * _PANEL_OUTPUTS), "int4": (32, 64 + 32 * _PANEL_OUTPUTS // 2)}
"""Inputs of a group, and the bytes it takes of a panel: scales, int4's minimums, codes (``kernels/panels.py``)."""
_FLOAT_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
_KV_SCALE_BYTES = 4
"""Of the keys or values of a token and head in int8."""
_SAMPLING_BYTES = 4 * 8
"""Of a token of the vocabulary while a row is drawn: weights, kept ones, their sum and order, in fp64."""
_ACCELERATOR_LIBRARIES_BYTES = 1 * _GIB
"""An estimate, not measured: context, kernels and communication buffers of one accelerator."""


class Kind(StrEnum):
    """What becomes of memory when others need it.

    HELD is anonymous and only the replica's end, or sleep, gives it back; ``Status.memory_bytes`` counts it. MAPPED are
    files in use, weights among them: the kernel may drop their pages, and reads them again. DROPPABLE is there for a
    while only, or pages of files that are not read again. RESERVE lies in the part of a device that is not planned
    with.
    """

    HELD = "held"
    MAPPED = "mapped"
    DROPPABLE = "droppable"
    RESERVE = "reserve"


@dataclass(frozen=True, slots=True)
class Item:
    """One thing that a replica takes memory for."""

    name: str
    size_bytes: int
    kind: Kind = Kind.HELD


@dataclass(frozen=True, slots=True)
class Plan:
    """What a replica takes at most, from its start to the end of its longest request.

    ``measured`` says that plans for this kind of device were held against replicas that ran.
    """

    items: tuple[Item, ...]
    measured: bool

    def of(self, *kinds: Kind) -> int:
        """Return the bytes of all items of these kinds."""
        return sum(item.size_bytes for item in self.items if item.kind in kinds)

    @property
    def weights_bytes(self) -> int:
        """The weights as they are computed with."""
        return self.items[0].size_bytes

    @property
    def held_bytes(self) -> int:
        """What only its end, or sleep, gives back."""
        return self.of(Kind.HELD)

    @property
    def needed_bytes(self) -> int:
        """What must be there for it to run at its speed: what decides whether it fits."""
        return self.of(Kind.HELD, Kind.MAPPED)

    @property
    def peak_bytes(self) -> int:
        """What it takes where memory is plenty: the most that its processes have resident at once."""
        return self.of(Kind.HELD, Kind.MAPPED, Kind.DROPPABLE)

    @property
    def words(self) -> str:
        """Name the items that decide, with their sizes."""
        deciding = [item for item in self.items if item.size_bytes and item.kind in (Kind.HELD, Kind.MAPPED)]
        return ", ".join(f"{item.name} {mib(item.size_bytes)}" for item in deciding)


# --- arithmetic


def num_parameters(config: ModelConfig) -> int:
    """Return the number of elements of all tensors of the model, quantised or not; tied embeddings count once."""
    return sum(math.prod(shape) for shape in expected_tensors(config).values())


def weight_bytes(config: ModelConfig, dtype: str) -> int:
    """Return the most bytes of the weights in ``dtype`` of :data:`dataplane.contracts.precision.WEIGHTS`, in panels.

    fp32 takes less where the values are exact in less, which only the weights themselves tell.
    Matrices are filled up to whole panels and groups; vectors and learned positions stay in fp32, and beside layers in
    int4 the vocabulary's matrices are in int8.

    Raises:
        ValueError: an unknown dtype.
    """
    if dtype not in precision.WEIGHTS:
        raise ValueError(f"unknown dtype {dtype!r}; known are {', '.join(precision.WEIGHTS)}")
    return sum(
        _tensor_bytes(shape, "fp32" if name == POSITIONS else precision_of(name, dtype))
        for name, shape in expected_tensors(config).items()
    )


def kv_bytes_per_token(config: ModelConfig, kv_dtype: str) -> int:
    """Return the bytes of one token's keys and values in all layers.

    Args:
        config: the model's.
        kv_dtype: one of :data:`dataplane.contracts.precision.KEYS_AND_VALUES`; int8 has a scale for each head.
    """
    head_bytes = config.head_dim + _KV_SCALE_BYTES if kv_dtype == "int8" else config.head_dim * _FLOAT_BYTES[kv_dtype]
    return 2 * config.num_layers * config.num_kv_heads * head_bytes


def block_bytes(config: ModelConfig, engine: EngineSettings) -> int:
    """Return the bytes of one block of a replica's KV pool."""
    return engine.block_size * kv_bytes_per_token(config, precision.of_keys_and_values(config, engine))


def pool_blocks(config: ModelConfig, engine: EngineSettings) -> int:
    """Return the blocks of one replica's KV pool; 0 where its memory is not stated or too small for one."""
    return (engine.kv_memory_mb or 0) * _MIB // block_bytes(config, engine)


def promised_blocks(shares: Mapping[str, Share], block_size: int, replicas: int) -> int:
    """Return the blocks that guarantees take of each of ``replicas`` pools, which hold an equal part of every one."""
    return sum(_parts(_parts(share.guarantee_tokens, replicas), block_size) for share in shares.values())


def safe_guarantees(config: ModelConfig, engine: EngineSettings, replicas: int) -> int:
    """Return the tokens that may be guaranteed in all while ``replicas`` serve: whole blocks of every pool."""
    return pool_blocks(config, engine) * engine.block_size * max(1, replicas)


def shut_out(
    shares: Mapping[str, Share], total_blocks: int, block_size: int, longest_tokens: int, replicas: int
) -> tuple[str, int, int] | None:
    """Return a tenant whose longest request would never have room while the others use what they are guaranteed.

    Args:
        shares: what is promised, by tenant.
        total_blocks: one replica's pool.
        block_size: tokens in a block.
        longest_tokens: the model's context, or what it is limited to.
        replicas: how many serve; each holds an equal part of every share.

    Returns:
        The tenant, the blocks that it needs and those that are left to it; None if everybody has room.
    """
    promised = promised_blocks(shares, block_size, replicas)
    for tenant, share in shares.items():
        left = total_blocks - promised + promised_blocks({tenant: share}, block_size, replicas)
        needed = min(total_blocks, _parts(longest_tokens, block_size))
        if share.cap_tokens is not None:
            needed = min(needed, _parts(_parts(share.cap_tokens, replicas), block_size))
        if needed > left:
            return tenant, needed, left
    return None


def usable_bytes(device: Device) -> int:
    """Return what replicas may take of ``device``."""
    return int(device.memory_bytes * USABLE[0])


# --- a replica


def plan(
    config: ModelConfig, engine: EngineSettings, device_kind: str = "cpu", *, weights_bytes: int | None = None
) -> Plan:
    """Return what a replica of the model takes. KV memory that is not stated counts as none.

    Args:
        config: the model's.
        engine: how it runs.
        device_kind: what it runs on. On anything but ``cpu`` only weights and the pool are planned: what was never
            measured is left to the reserve.
        weights_bytes: of an accelerator, where a checkpoint's headers say other than the config and dtype do.
    """
    dtype = precision.of_weights(config, engine)
    planned_bytes = weight_bytes(config, dtype)
    pool = Item("KV pool", pool_blocks(config, engine) * block_bytes(config, engine))
    if device_kind != "cpu":
        on_device = (
            Item("weights", planned_bytes if weights_bytes is None else weights_bytes),
            pool,
            Item("workspace of a step", _step_bytes(config, engine), Kind.RESERVE),
            Item("libraries of the device", _ACCELERATOR_LIBRARIES_BYTES, Kind.RESERVE),
        )
        return Plan(on_device, measured=False)
    workspace = Item("workspace", _step_bytes(config, engine))
    serving_bytes = planned_bytes + pool.size_bytes + workspace.size_bytes
    items = (
        Item(f"weights in {dtype}", planned_bytes, Kind.MAPPED),
        pool,
        workspace,
        Item("processes", _PROCESSES_HELD_BYTES + _TOKENIZER_BYTES * config.vocab_size),
        Item("libraries", _PROCESSES_MAPPED_BYTES, Kind.MAPPED),
        Item("conversion", max(0, _conversion_bytes(config, dtype) - serving_bytes), Kind.DROPPABLE),
    )
    return Plan(items, measured=True)


def _tensor_bytes(shape: tuple[int, ...], dtype: str) -> int:
    if len(shape) != 2:
        return math.prod(shape) * _FLOAT_BYTES["fp32"]
    outputs, inputs = shape
    panels = _parts(outputs, _PANEL_OUTPUTS)
    if dtype in _FLOAT_BYTES:
        return panels * _PANEL_OUTPUTS * inputs * _FLOAT_BYTES[dtype]
    group, group_bytes = _GROUPS[dtype]
    return panels * _parts(inputs, group) * group_bytes


def _step_bytes(config: ModelConfig, engine: EngineSettings) -> int:
    """What a full step writes: registers of every token in fp32, a normalised and a coded copy of what a matrix reads.

    Buffers for more rows than that are untouched pages, which cost nothing.
    """
    attention = 2 * (config.num_heads + config.num_kv_heads) * config.head_dim
    registers_bytes = 4 * (3 * config.hidden_size + attention + config.head_dim + config.intermediate_size)
    coded = precision.of_weights(config, engine) in precision.QUANTISED
    codes_bytes = 2 * max(config.hidden_size, config.intermediate_size) if coded else 0
    tokens = max(STEP_TOKENS, engine.max_num_seqs)
    logits_bytes = 4 * engine.max_num_seqs * config.vocab_size
    return tokens * (registers_bytes + codes_bytes) + logits_bytes + config.vocab_size * _SAMPLING_BYTES


def _conversion_bytes(config: ModelConfig, dtype: str) -> int:
    """What the first load takes to write the runtime format: the largest matrix as it is stored, and packed."""
    stored = config.quantisation if config.quantisation in precision.QUANTISED else config.weight_dtype
    return max(
        sum(_tensor_bytes(shape, precision_of(name, weights)) for weights in (stored, dtype))
        for name, shape in expected_tensors(config).items()
        if len(shape) == 2
    )


def _parts(value: int, size: int) -> int:
    return -(-value // size)


# --- words


def mib(size_bytes: int) -> str:
    """Return a size in whole MiB, rounded up."""
    return f"{_parts(size_bytes, _MIB):,} MiB"


def gib(size_bytes: float) -> str:
    """Return a size in GiB."""
    return f"{size_bytes / _GIB:,.1f} GiB"
