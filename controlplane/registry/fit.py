"""Whether a model fits the memory of a device at hand, and in which precision. Pure; the arithmetic is the planner's.

A device holds one replica with at least :data:`LEAST_KV_TOKENS` of keys and values, fewer where the model's own context
is shorter.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from dataplane.contracts import memory, precision
from dataplane.contracts.catalog import EngineSettings
from dataplane.contracts.memory import gib
from dataplane.contracts.model_config import ModelConfig
from dataplane.contracts.replica import Device
from dataplane.contracts.room import kv_room_mb

LEAST_KV_TOKENS = 2048
_MIB = 1024 * 1024
_PRECISIONS = ("fp32", "bf16", "fp16")
"""In the order they are tried: the default of a deployment first. Weights are never quantised unless someone asks."""


@dataclass(frozen=True, slots=True)
class Fit:
    """A device and precision that hold the model; ``kv_tokens`` is what is left for keys and values."""

    device: Device
    dtype: str
    kv_tokens: int


def fits(config: ModelConfig, devices: Sequence[Device]) -> list[Fit]:
    """Return where the model fits, the widest precision on the device with the most room first."""
    tried = _tried(config)
    found = [fit for device in devices for dtype in tried if (fit := _fit(config, device, dtype)) is not None]
    return sorted(found, key=lambda fit: (tried.index(fit.dtype), -fit.kv_tokens))


def least_kv_tokens(config: ModelConfig) -> int:
    """Return the tokens of keys and values below which a replica is not worth starting."""
    return min(LEAST_KV_TOKENS, config.context_tokens)


def needed_bytes(config: ModelConfig, dtype: str, device_kind: str = "cpu") -> int:
    """Return what the smallest replica of the model takes in ``dtype``."""
    return memory.plan(config, _smallest(config, dtype), device_kind).needed_bytes


def summary(found: Sequence[Fit]) -> str:
    """Say in a sentence how the model fits best."""
    best = found[0]
    return f"Fits {_named(best.device)} in {best.dtype}, which leaves room for {best.kv_tokens:,} tokens."


def shortage(config: ModelConfig, devices: Sequence[Device]) -> str:
    """Say what the model would need, and what there is."""
    narrowest = min(_tried(config), key=precision.BITS.__getitem__)
    largest = max(devices, key=lambda device: device.memory_bytes, default=None)
    has = "no device is there"
    if largest is not None:
        has = f"the largest device, {_named(largest)}, can give {gib(memory.usable_bytes(largest))}"
    return f"Even in {narrowest} a replica takes {gib(needed_bytes(config, narrowest))}, and {has}."


def _tried(config: ModelConfig) -> tuple[str, ...]:
    """The precisions of the model: its own alone where its weights are quantised already."""
    return (config.quantisation,) if config.quantisation in precision.QUANTISED else _PRECISIONS


def _fit(config: ModelConfig, device: Device, dtype: str) -> Fit | None:
    if needed_bytes(config, dtype, device.kind) > memory.usable_bytes(device):
        return None
    smallest = _smallest(config, dtype)
    room_bytes = kv_room_mb(config, smallest, device) * _MIB
    return Fit(device, dtype, room_bytes // _token_bytes(config, smallest))


def _smallest(config: ModelConfig, dtype: str) -> EngineSettings:
    tokens = least_kv_tokens(config)
    engine = EngineSettings(dtype=dtype, max_model_len=tokens, max_num_seqs=1)
    return replace(engine, kv_memory_mb=-(-tokens * _token_bytes(config, engine) // _MIB))


def _token_bytes(config: ModelConfig, engine: EngineSettings) -> int:
    return memory.kv_bytes_per_token(config, precision.of_keys_and_values(config, engine))


def _named(device: Device) -> str:
    return f"{device.name} ({device.kind}, {gib(device.memory_bytes)})"
