"""Replicas: their states, what they report, and the messages of their private control socket.

Control messages travel as frames of :mod:`dataplane.contracts.wire`; each call gets exactly one answer, in order.
"""

from enum import StrEnum

import msgspec

from dataplane.contracts.catalog import EngineSettings, Share
from dataplane.contracts.generation import EngineLoad, TenantLoad


class ReplicaState(StrEnum):
    """Life of a replica. Traffic only in READY."""

    COLD = "cold"
    STARTING = "starting"
    WARM_IDLE = "warm_idle"
    LOADING = "loading"
    WARMING = "warming"
    READY = "ready"
    DRAINING = "draining"
    ASLEEP = "asleep"
    STOPPED = "stopped"


class _Control(msgspec.Struct, frozen=True):
    """Base of every control message: the tag is the class name."""


class Attach(_Control, frozen=True, tag=True, forbid_unknown_fields=True):
    """Load a version into a WARM_IDLE process. Answered by :class:`Status` at once; loading goes on."""

    deployment_id: str
    version_id: str
    version_digest: str
    model_dir: str
    runtime_dir: str
    served_name: str
    engine: EngineSettings
    tenants: dict[str, Share]
    salt_secret: bytes


class SetShares(_Control, frozen=True, tag=True, forbid_unknown_fields=True):
    """New shares of the tenants; safe mid-flight."""

    tenants: dict[str, Share]


class MarkReady(_Control, frozen=True, tag=True, forbid_unknown_fields=True):
    """The fleet saw a real generation: WARMING becomes READY."""


class Drain(_Control, frozen=True, tag=True, forbid_unknown_fields=True):
    """Admit nothing more, finish what runs, then exit. What still runs after ``deadline_s`` gets an error event."""

    deadline_s: float


class AbortRequest(_Control, frozen=True, tag=True, forbid_unknown_fields=True):
    """End one request now."""

    request_id: str


class GetStatus(_Control, frozen=True, tag=True, forbid_unknown_fields=True):
    """Ask for :class:`Status`."""


class GetDump(_Control, frozen=True, tag=True, forbid_unknown_fields=True):
    """Ask for :class:`Dump`."""


ControlCall = Attach | SetShares | MarkReady | Drain | AbortRequest | GetStatus | GetDump


class Status(_Control, frozen=True, tag=True, forbid_unknown_fields=True):
    """What a replica says of itself. ``progress`` grows whenever work is done; pending work without it is a hang."""

    replica_id: str
    state: ReplicaState
    progress: int
    pending: int
    cause: str
    detail: str = ""
    kernels: str = ""
    context_tokens: int = 0
    load: EngineLoad | None = None
    tenants: list[TenantLoad] = []


class Dump(_Control, frozen=True, tag=True, forbid_unknown_fields=True):
    """A debugging dump as JSON-able values."""

    status: Status
    sequences: list[dict[str, str | int | float]]


class Refused(_Control, frozen=True, tag=True, forbid_unknown_fields=True):
    """A call that the replica's state does not allow."""

    code: str
    message: str


ControlAnswer = Status | Dump | Refused


class ReplicaReport(msgspec.Struct, frozen=True):
    """One row of the fleet's table: for gateways to route by, and for the console to show."""

    replica_id: str
    node: str
    state: ReplicaState
    cause: str
    since_ms: int
    socket: str
    pid: int = 0
    deployment_id: str = ""
    version_id: str = ""
    owner_tenant_id: str = ""
    restarts: int = 0
    detail: str = ""
    kernels: str = ""
    context_tokens: int = 0
    loaded_in_ms: int = 0
    load: EngineLoad | None = None
    tenants: list[TenantLoad] = []


class ReplicaEvent(msgspec.Struct, frozen=True):
    """A state change with its cause. ``sequence`` counts per fleet node, so delivery can be repeated safely."""

    sequence: int
    replica_id: str
    at_ms: int
    old: ReplicaState
    new: ReplicaState
    cause: str
    deployment_id: str = ""
    version_id: str = ""


class ReplicaTable(msgspec.Struct, frozen=True):
    """All replicas of a fleet at one moment; ``number`` grows with every change."""

    node: str
    number: int
    at_ms: int
    replicas: tuple[ReplicaReport, ...]


class FleetReport(msgspec.Struct, frozen=True):
    """What the fleet posts to ``/internal/replicas``."""

    table: ReplicaTable
    events: tuple[ReplicaEvent, ...]
