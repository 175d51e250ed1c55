"""How to spread a model over several devices, by what connects them. Pure; advice for people, replicas run on one yet.

Tensor parallelism (Shoeybi et al., 2019) exchanges activations twice in every layer and so needs a fast link; a
pipeline (Huang et al., 2019) hands them on once a stage; replicas exchange nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from dataplane.contracts.memory import gib, usable_bytes
from dataplane.contracts.model_config import ModelConfig
from dataplane.contracts.replica import Device


class Link(StrEnum):
    """What connects devices, the fastest first: their own switch, the host's bus, a network between hosts."""

    NVLINK = "nvlink"
    PCIE = "pcie"
    NETWORK = "network"


class Way(StrEnum):
    """How a model is spread."""

    REPLICAS = "replicas"
    TENSOR_PARALLEL = "tensor_parallel"
    PIPELINE_PARALLEL = "pipeline_parallel"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Advice:
    """A way, the devices that one copy of the model takes, and why."""

    way: Way
    devices: int
    words: str


def advise(config: ModelConfig, needed_bytes: int, devices: Sequence[Device], link: Link) -> Advice:
    """Return how to run a model that takes ``needed_bytes`` on equal ``devices``.

    Args:
        config: the model's: its heads and layers limit into how many parts it can be cut.
        needed_bytes: weights, keys and values together.
        devices: those at hand, of one kind and size; one at least.
        link: what connects them.
    """
    room_bytes = usable_bytes(devices[0])
    if needed_bytes <= room_bytes:
        words = f"{gib(needed_bytes)} fit one device, which can give {gib(room_bytes)}: add replicas for more requests."
        return Advice(Way.REPLICAS, 1, words)
    needs = f"{gib(needed_bytes)} do not fit one device, which can give {gib(room_bytes)}"
    way = Way.TENSOR_PARALLEL if link is Link.NVLINK else Way.PIPELINE_PARALLEL
    for parts in range(2, len(devices) + 1):
        divides = config.num_kv_heads % parts == 0 if way is Way.TENSOR_PARALLEL else parts <= config.num_layers
        if divides and needed_bytes <= parts * room_bytes:
            return Advice(way, parts, f"{needs}: spread it over {parts}. {_WHY[link]}")
    least = -(-needed_bytes // room_bytes)
    return Advice(Way.NONE, 0, f"{needs}, nor the {len(devices)} at hand: it takes {least} or more.")


_WHY = {
    Link.NVLINK: "Tensor parallel: every layer's exchange goes over NVLink, and each request is faster.",
    Link.PCIE: "Pipeline parallel: PCIe is too slow for an exchange in every layer, not for one between stages.",
    Link.NETWORK: "Pipeline parallel: only stages may lie in different hosts. It adds throughput, not speed.",
}
