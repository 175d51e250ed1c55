"""Whether a model fits the memory of a device at hand, and in which precision. Pure; the arithmetic is the planner's.

A device holds one replica: its weights, the libraries beside them, and at least :data:`LEAST_KV_TOKENS` of keys and
values, fewer where the model's own context is shorter.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dataplane.contracts import memory
from dataplane.contracts.model_config import ModelConfig
from dataplane.contracts.replica import Device

LEAST_KV_TOKENS = 2048
USABLE = 0.85
"""The part of a device's memory that is planned with; the rest is the system's and the fragments'."""
LIBRARIES_BYTES = 600 * 1024 * 1024
"""What the three processes of a replica take without weights, measured on CPUs with torch 2.13."""
_GIB = 1024**3
_PRECISIONS = ("fp32", "bf16", "fp16")
"""In the order they are tried: the default of a deployment first."""


@dataclass(frozen=True, slots=True)
class Fit:
    """A device and precision that hold the model; ``kv_tokens`` is what is left for keys and values."""

    device: Device
    dtype: str
    kv_tokens: int


def fits(config: ModelConfig, devices: Sequence[Device]) -> list[Fit]:
    """Return where the model fits, the widest precision on the device with the most room first."""
    found = [fit for device in devices for dtype in _PRECISIONS if (fit := _fit(config, device, dtype)) is not None]
    return sorted(found, key=lambda fit: (_PRECISIONS.index(fit.dtype), -fit.kv_tokens))


def least_kv_tokens(config: ModelConfig) -> int:
    """Return the tokens of keys and values below which a replica is not worth starting."""
    return min(LEAST_KV_TOKENS, config.context_tokens)


def needed_bytes(config: ModelConfig, dtype: str) -> int:
    """Return what the smallest replica of the model takes in ``dtype``."""
    kv_bytes = least_kv_tokens(config) * memory.kv_bytes_per_token(config, memory.DTYPE_BYTES[dtype])
    return memory.weight_bytes(config, dtype) + kv_bytes + LIBRARIES_BYTES


def summary(found: Sequence[Fit]) -> str:
    """Say in a sentence how the model fits best."""
    best = found[0]
    return f"Fits {_named(best.device)} in {best.dtype}, which leaves room for {best.kv_tokens:,} tokens."


def shortage(config: ModelConfig, devices: Sequence[Device]) -> str:
    """Say what the model would need, and what there is."""
    narrowest = min(_PRECISIONS, key=lambda dtype: memory.DTYPE_BYTES[dtype])
    largest = max(devices, key=lambda device: device.memory_bytes, default=None)
    has = (
        f"the largest device, {_named(largest)}, can give {_gib(_usable(largest))}" if largest else "no device is there"
    )
    return f"Even in {narrowest} a replica takes {_gib(needed_bytes(config, narrowest))}, and {has}."


def _fit(config: ModelConfig, device: Device, dtype: str) -> Fit | None:
    left_bytes = _usable(device) - LIBRARIES_BYTES - memory.weight_bytes(config, dtype)
    kv_tokens = max(left_bytes, 0) // memory.kv_bytes_per_token(config, memory.DTYPE_BYTES[dtype])
    return Fit(device, dtype, kv_tokens) if kv_tokens >= least_kv_tokens(config) else None


def _usable(device: Device) -> int:
    return int(device.memory_bytes * USABLE)


def _named(device: Device) -> str:
    return f"{device.name} ({device.kind}, {_gib(device.memory_bytes)})"


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / _GIB:,.1f} GiB"
