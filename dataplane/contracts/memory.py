"""The memory planner: what a replica takes, and what a device can give. Pure.

:func:`plan` lists what a replica takes; :mod:`dataplane.contracts.room` asks it what fits. On CPU, weights lie in
memory as the kernels packed them, beside the file they were packed from. What a step computes with follows from the
shapes of the forward pass. What the processes themselves take was measured, see the constants.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from dataplane.contracts.catalog import EngineSettings, Share
from dataplane.contracts.model_config import ModelConfig, expected_tensors
from dataplane.contracts.replica import Device

DTYPE_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
STEP_TOKENS = 256
"""Most tokens that an engine computes in one step, unless it runs more sequences than that."""
USABLE = (0.85, 0.90)
"""The part of a device's memory that can be used, at the least and at the most. What is decided is decided by the
least; the rest is for the system, fragments, and on a device that was never measured for what its libraries take."""

_MIB, _GIB = 1024**2, 1024**3

# Measured with torch 2.13 on x86 (make memory measures them anew): a replica of a model of next to no weights gives the
# first two, the difference to one with 49,152 tokens the third, the weights of that in bf16 the last.
_PROCESSES_HELD_BYTES = 204 * _MIB
"""Server, engine process and tokenizer child, without model and vocabulary, once they have answered."""
_PROCESSES_MAPPED_BYTES = 103 * _MIB
"""The libraries that they have mapped, each counted once."""
_TOKENIZER_BYTES = 1040
"""What the tokenizer child takes for each token of the vocabulary."""
PACKING_HOLES = 0.12
"""What remains free between packed matrices, as a part of the fp32 copies they were packed from."""

_HALF_PACKED_INPUTS, _HALF_PACKED_OUTPUTS = 512, 16
"""FBGEMM pads each fp16 matrix to multiples of these."""
_OWN_MAPPING_BYTES = 32 * _MIB
"""What glibc's allocator gives a mapping of its own, however it has adapted: such memory leaves no hole."""
_MASK_BYTES = 4 + 1
"""Of a position in an attention mask: the fp32 value, and the boolean it is made of."""
_SAMPLING_BYTES = 4 * 8
"""Of a token of the vocabulary while a row is drawn: weights, kept ones, their sum and order, in fp64."""
_ACCELERATOR_LIBRARIES_BYTES = 1 * _GIB
"""An estimate, not measured: context, kernels and communication buffers of one accelerator."""


class Kind(StrEnum):
    """What becomes of memory when others need it.

    HELD is anonymous and only the replica's end, or sleep, gives it back; ``Status.memory_bytes`` counts it. MAPPED are
    files in use. DROPPABLE are pages of files that are not read again. RESERVE lies in the part of a device that is not
    planned with.
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
    """Return the number of elements of all tensors of the checkpoint; tied embeddings count once."""
    return sum(math.prod(shape) for shape in expected_tensors(config).values())


def weight_bytes(config: ModelConfig, dtype: str) -> int:
    """Return the bytes of the weights held in ``dtype``, a key of :data:`DTYPE_BYTES`.

    Raises:
        ValueError: an unknown dtype.
    """
    if dtype not in DTYPE_BYTES:
        raise ValueError(f"unknown dtype {dtype!r}; known are {', '.join(DTYPE_BYTES)}")
    return num_parameters(config) * DTYPE_BYTES[dtype]


def kv_bytes_per_token(config: ModelConfig, kv_dtype_bytes: int) -> int:
    """Return the bytes that one token's keys and values take in all layers."""
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim * kv_dtype_bytes


def kv_blocks(config: ModelConfig, kv_memory_bytes: int, block_size: int, kv_dtype_bytes: int) -> int:
    """Return how many whole blocks of ``block_size`` tokens fit ``kv_memory_bytes``; 0 when not even one does."""
    return max(kv_memory_bytes, 0) // (block_size * kv_bytes_per_token(config, kv_dtype_bytes))


def pool_blocks(config: ModelConfig, engine: EngineSettings) -> int:
    """Return the blocks of one replica's KV pool; 0 where its memory is not stated or too small for one."""
    memory_bytes = (engine.kv_memory_mb or 0) * _MIB
    return kv_blocks(config, memory_bytes, engine.block_size, DTYPE_BYTES[engine.dtype])


def promised_blocks(shares: Mapping[str, Share], block_size: int, replicas: int) -> int:
    """Return the blocks that guarantees take of each of ``replicas`` pools, which hold an equal part of every one."""
    return sum(_parts(_parts(share.guarantee_tokens, replicas), block_size) for share in shares.values())


def safe_guarantees(config: ModelConfig, engine: EngineSettings, replicas: int) -> int:
    """Return the tokens that may be guaranteed in all while ``replicas`` serve: whole blocks of every pool."""
    return pool_blocks(config, engine) * engine.block_size * max(1, replicas)


def usable_bytes(device: Device) -> int:
    """Return what replicas may take of ``device``."""
    return int(device.memory_bytes * USABLE[0])


# --- a replica


def packed_weight_bytes(config: ModelConfig, dtype: str) -> int:
    """Return what the matrices take on CPU as the kernels hold them; tied embeddings have a copy there as the head."""
    if DTYPE_BYTES[dtype] == 4:
        return sum(outputs * inputs for outputs, inputs in _matrices(config)) * 4
    return 2 * sum(
        _parts(outputs, _HALF_PACKED_OUTPUTS) * _HALF_PACKED_OUTPUTS
        * _parts(inputs, _HALF_PACKED_INPUTS) * _HALF_PACKED_INPUTS
        for outputs, inputs in _matrices(config)
    )  # fmt: skip


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
    kv_bytes = pool_blocks(config, engine) * engine.block_size * kv_bytes_per_token(config, DTYPE_BYTES[engine.dtype])
    pool = Item("KV pool", kv_bytes)
    if device_kind != "cpu":
        on_device = (
            Item("weights", weight_bytes(config, engine.dtype) if weights_bytes is None else weights_bytes),
            pool,
            Item("workspace of a step", _step_bytes(config, engine), Kind.RESERVE),
            Item("libraries of the device", _ACCELERATOR_LIBRARIES_BYTES, Kind.RESERVE),
        )
        return Plan(on_device, measured=False)
    # The pool fills after the weights are packed, so what packing takes for a while is there for the pool.
    workspace_bytes = max(_step_bytes(config, engine), _packing_bytes(config, engine.dtype) - kv_bytes)
    embedding_bytes = config.vocab_size * config.hidden_size * DTYPE_BYTES[engine.dtype]
    file_bytes = weight_bytes(config, engine.dtype) - embedding_bytes
    items = (
        Item(f"weights in {engine.dtype}", packed_weight_bytes(config, engine.dtype)),
        Item("embedding", embedding_bytes, Kind.MAPPED),
        pool,
        Item("workspace", workspace_bytes),
        Item("holes between weights", _holes_bytes(config, engine.dtype)),
        Item("processes", _PROCESSES_HELD_BYTES + _TOKENIZER_BYTES * config.vocab_size),
        Item("libraries", _PROCESSES_MAPPED_BYTES, Kind.MAPPED),
        Item("file that weights were packed from", file_bytes, Kind.DROPPABLE),
    )
    return Plan(items, measured=True)


def _step_bytes(config: ModelConfig, engine: EngineSettings) -> int:
    """The most that a step computes with: one chunk at the end of the longest prompt, or a row of every sequence.

    Attention gathers a row's keys and values of one layer, and widens them to fp32; a decode row's blocks are padded to
    a power of two, so to less than twice as many. Rows that share cached blocks gather them once each; that is not
    planned for.
    """
    kv_dtype_bytes = DTYPE_BYTES[engine.dtype]
    wide_bytes = 0 if kv_dtype_bytes == 4 else 4
    gathered_bytes = 2 * config.num_kv_heads * config.head_dim * (kv_dtype_bytes + wide_bytes)
    pool_tokens = pool_blocks(config, engine) * engine.block_size
    context_tokens = min(engine.max_model_len or config.context_tokens, config.context_tokens, pool_tokens)
    chunk_tokens = max(STEP_TOKENS, engine.max_num_seqs)
    row_bytes = 4 * 3 * (config.hidden_size + config.intermediate_size)
    prefill_bytes = (
        chunk_tokens * (row_bytes + context_tokens * _MASK_BYTES)
        + context_tokens * gathered_bytes
        + config.vocab_size * 4
    )
    padded_tokens = 1 << (max(context_tokens, 1) - 1).bit_length()
    decoded_tokens = min(2 * pool_tokens, engine.max_num_seqs * padded_tokens)
    decode_bytes = decoded_tokens * (gathered_bytes + _MASK_BYTES) + engine.max_num_seqs * (
        row_bytes + config.vocab_size * 4
    )
    return max(prefill_bytes, decode_bytes) + config.vocab_size * _SAMPLING_BYTES


def _packing_bytes(config: ModelConfig, dtype: str) -> int:
    """What packing takes for a while: 16-bit matrices are widened to fp32 first, one after the other."""
    return 0 if dtype == "fp32" else 4 * max(outputs * inputs for outputs, inputs in _matrices(config))


def _holes_bytes(config: ModelConfig, dtype: str) -> int:
    """What the allocator keeps of the widened matrices, which lie between the packed ones."""
    if dtype == "fp32":
        return 0
    widened_bytes = [4 * outputs * inputs for outputs, inputs in _matrices(config)]
    return int(PACKING_HOLES * sum(size_bytes for size_bytes in widened_bytes if size_bytes < _OWN_MAPPING_BYTES))


def _matrices(config: ModelConfig) -> list[tuple[int, int]]:
    """The linear layers as they are computed, (outputs, inputs): query, key and value in one, gate and up in one."""
    hidden, query = config.hidden_size, config.num_heads * config.head_dim
    layer = [
        (query + 2 * config.num_kv_heads * config.head_dim, hidden),
        (hidden, query),
        (2 * config.intermediate_size, hidden),
        (hidden, config.intermediate_size),
    ]
    return [*layer * config.num_layers, (config.vocab_size, hidden)]


def _parts(value: int, size: int) -> int:
    return -(-value // size)


# --- words


def mib(size_bytes: int) -> str:
    """Return a size in whole MiB, rounded up."""
    return f"{_parts(size_bytes, _MIB):,} MiB"


def gib(size_bytes: float) -> str:
    """Return a size in GiB."""
    return f"{size_bytes / _GIB:,.1f} GiB"
