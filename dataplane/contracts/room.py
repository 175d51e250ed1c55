"""What fits a device, by the planner's figures, in words with numbers. Pure.

What is *safe* was held against replicas that ran: on a kind of device that was never measured a batch is an estimate.
"""

from dataclasses import dataclass
from enum import StrEnum

from msgspec.structs import replace

from dataplane.contracts import memory, precision
from dataplane.contracts.catalog import EngineSettings
from dataplane.contracts.memory import USABLE, Kind, Plan, gib, mib
from dataplane.contracts.model_config import ModelConfig
from dataplane.contracts.replica import Device

_MIB = 1024**2


class Outcome(StrEnum):
    """What is to be thought of a batch."""

    SAFE = "safe"
    ESTIMATED = "estimated"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Batch:
    """How many requests of one length a replica holds at once.

    Attributes:
        outcome: safe, an estimate, or refused because not one request is sure to fit.
        requests: how many fit at the lower end of what is usable, and at the upper.
        nominal_requests: what the device's memory less the weights seems to allow.
        left_bytes: for keys and values, at both ends; below zero where not even the rest fits.
        request_bytes: keys and values of one request.
        words: all of it.
    """

    outcome: Outcome
    requests: tuple[int, int]
    nominal_requests: int
    left_bytes: tuple[int, int]
    request_bytes: int
    words: str


@dataclass(frozen=True, slots=True)
class Narrower:
    """What the weights would take in a narrower precision, and what that frees for keys and values."""

    name: str
    weights_bytes: int
    freed_bytes: int


@dataclass(frozen=True, slots=True)
class CoResidency:
    """Whether two replicas fit one device side by side; ``left_bytes`` below zero is what lacks."""

    fits: bool
    left_bytes: int
    words: str


def kv_room_mb(
    config: ModelConfig,
    engine: EngineSettings,
    device: Device,
    *,
    usable: float = USABLE[0],
    weights_bytes: int | None = None,
) -> int:
    """Return the most KV memory, in MiB, that a replica may have on ``device``; 0 where it does not fit at all.

    Args:
        config: the model's.
        engine: how it would run; its own KV memory does not count.
        device: where.
        usable: the part of the device's memory that is planned with.
        weights_bytes: see :func:`dataplane.contracts.memory.plan`.
    """
    usable_bytes = int(device.memory_bytes * usable)
    low, high = 0, usable_bytes // _MIB
    while low < high:  # what is needed grows with the pool
        middle = (low + high + 1) // 2
        sized = replace(engine, kv_memory_mb=middle)
        fits = memory.plan(config, sized, device.kind, weights_bytes=weights_bytes).needed_bytes <= usable_bytes
        low, high = (middle, high) if fits else (low, middle - 1)
    return low


def safe_batch(
    config: ModelConfig,
    engine: EngineSettings,
    device: Device,
    *,
    context_tokens: int,
    weights_bytes: int | None = None,
) -> Batch:
    """Return how many requests of ``context_tokens`` a replica on ``device`` has the memory to hold at once.

    Args:
        config: the model's.
        engine: how it would run; its own KV memory does not count, it gets what is left.
        device: one, or several that share the weights evenly: their memory is the sum.
        context_tokens: prompt and output of one request.
        weights_bytes: see :func:`dataplane.contracts.memory.plan`.
    """
    bare = memory.plan(config, replace(engine, kv_memory_mb=None), device.kind, weights_bytes=weights_bytes)
    kv_dtype = precision.of_keys_and_values(config, engine)
    request_bytes = context_tokens * memory.kv_bytes_per_token(config, kv_dtype)

    def at(usable: float) -> tuple[int, int]:
        room_mb = kv_room_mb(config, engine, device, usable=usable, weights_bytes=weights_bytes)
        return int(device.memory_bytes * usable) - bare.needed_bytes, room_mb * _MIB // request_bytes

    (least_left, least), (most_left, most) = (at(usable) for usable in USABLE)
    nominal_bytes = device.memory_bytes - bare.weights_bytes
    nominal = max(0, nominal_bytes) // request_bytes
    outcome = (Outcome.SAFE if bare.measured else Outcome.ESTIMATED) if least else Outcome.REFUSED
    sentences = [
        f"Nominally {gib(nominal_bytes)} of {gib(device.memory_bytes)} are left beside weights of "
        f"{gib(bare.weights_bytes)}, which suggests {nominal:,} requests of {context_tokens:,} tokens "
        f"({mib(request_bytes)} each).",
        f"But {USABLE[0]:.0%} to {USABLE[1]:.0%} can be used, which leaves {gib(least_left)} to {gib(most_left)}"
        f"{_overheads(bare)}.",
        _VERDICTS[outcome].format(least=least, most=most),
    ]
    if outcome is Outcome.REFUSED:
        offers = narrower(bare.weights_bytes, precision.of_weights(config, engine))
        sentences += [_offer(each, least_left, most_left) for each in offers if least_left + each.freed_bytes > 0][:1]
    return Batch(outcome, (least, most), nominal, (least_left, most_left), request_bytes, " ".join(sentences))


_VERDICTS = {
    Outcome.SAFE: "{least:,} requests are safe, {most:,} the most.",
    Outcome.ESTIMATED: "That is room for {least:,} to {most:,} requests: an estimate until it was measured in a run.",
    Outcome.REFUSED: "Refused: at the lower end not one request fits.",
}


def _overheads(plan: Plan) -> str:
    """Say what else the replica takes: beside the weights where it was measured, in the reserve where not."""
    if plan.measured:
        return f" after {plan.words}"
    listed = ", ".join(f"{item.name} {mib(item.size_bytes)}" for item in plan.items if item.kind is Kind.RESERVE)
    return f"; the rest is for fragments and, by estimate, {listed}"


def narrower(weights_bytes: int, dtype: str) -> tuple[Narrower, ...]:
    """Return what weights of ``weights_bytes`` in ``dtype`` would take quantised to narrower codes, widest first.

    Scales and minimums, which add 3 % to int8 and 25 % to int4 in the layout of the CPU's kernels, do not count, nor
    that int4 holds the vocabulary's matrices in int8.
    """
    bits = precision.BITS[dtype]
    taken = {
        name: weights_bytes * precision.BITS[name] // bits
        for name in precision.WEIGHTS
        if name in precision.QUANTISED and precision.BITS[name] < bits
    }
    return tuple(Narrower(name, size_bytes, weights_bytes - size_bytes) for name, size_bytes in taken.items())


def _offer(offer: Narrower, least_left: int, most_left: int) -> str:
    left = f"{gib(least_left + offer.freed_bytes)} to {gib(most_left + offer.freed_bytes)}"
    return (
        f"In {offer.name} the weights would take {gib(offer.weights_bytes)}, free {gib(offer.freed_bytes)} and leave "
        f"{left} for keys and values."
    )


def co_residency(old: Plan, new: Plan, device: Device) -> CoResidency:
    """Return whether a replica of each fits ``device`` at once, with nothing else on it."""
    left_bytes = memory.usable_bytes(device) - old.needed_bytes - new.needed_bytes
    sizes = f"{gib(old.needed_bytes)} and {gib(new.needed_bytes)} of the {gib(memory.usable_bytes(device))} usable"
    end = f"leave {gib(left_bytes)}." if left_bytes >= 0 else f"lack {gib(-left_bytes)}."
    return CoResidency(left_bytes >= 0, left_bytes, f"Side by side on {device.name}, {sizes} {end}")
