"""Replicas: their states, what they report, and the messages of their private control socket.

Control messages travel as frames of :mod:`dataplane.contracts.wire`; each call gets exactly one answer, in order.
"""

from enum import StrEnum

import msgspec

from dataplane.contracts.catalog import EngineSettings, Share, VersionEntry
from dataplane.contracts.generation import EngineLoad, TenantLoad
from dataplane.contracts.leases import Lease
from dataplane.contracts.probes import ProbeReport

TRIAL_PREFIX = "trial_"
"""A trial runs under the deployment id that this and the version's id make; no gateway routes to it."""


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


class Tier(StrEnum):
    """How warm an idle deployment is kept, and so what its next start costs.

    ASLEEP: weights in host memory. WARM: a process without weights, packed weights on disk. DISK: packed weights on
    disk only. STORE: this node has to fetch, verify or pack the version's files first.
    """

    ASLEEP = "asleep"
    WARM = "warm"
    DISK = "disk"
    STORE = "store"


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
    leases: dict[str, Lease] = {}


class SetShares(_Control, frozen=True, tag=True, forbid_unknown_fields=True):
    """New shares of the tenants, and what of them this replica holds; safe mid-flight.

    They are in force once a :class:`Status` says so: its ``shares_number`` is then no less than this ``number``. One of
    a lower number than came before is late and changes nothing.
    """

    tenants: dict[str, Share]
    leases: dict[str, Lease] = {}
    number: int = 0


class AddService(_Control, frozen=True, tag=True, forbid_unknown_fields=True):
    """What other replicas of the version gave each tenant since this one became READY, in service units.

    A total, so one that is lost, late or repeated neither loses service nor counts it twice.
    """

    units: dict[str, float]


class MarkReady(_Control, frozen=True, tag=True, forbid_unknown_fields=True):
    """The fleet saw a real generation: WARMING becomes READY."""


class Sleep(_Control, frozen=True, tag=True, forbid_unknown_fields=True):
    """READY becomes ASLEEP: nothing is admitted, the KV pool is given back, the weights stay in host memory.

    Refused while requests run. Answered once the memory is given back.
    """


class Wake(_Control, frozen=True, tag=True, forbid_unknown_fields=True):
    """ASLEEP becomes WARMING: the KV pool is made again; :class:`MarkReady` follows a real generation."""


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


ControlCall = Attach | SetShares | AddService | MarkReady | Sleep | Wake | Drain | AbortRequest | GetStatus | GetDump


class Status(_Control, frozen=True, tag=True, forbid_unknown_fields=True):
    """What a replica says of itself. ``progress`` grows whenever work is done; pending work without it is a hang.

    ``memory_bytes`` is the anonymous resident memory of its processes: what only their end, or sleep, gives back.
    ``converted`` says that the version's weights had to be packed for this node first. ``shares_number`` is that of the
    :class:`SetShares` in force, 0 for those of :class:`Attach`; ``tenants`` are no older than that.
    """

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
    memory_bytes: int = 0
    converted: bool = False
    shares_number: int = 0


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
    """One row of the fleet's table: for gateways to route by, and for the console to show.

    ``idle``: its deployment rests by its policy, and the next call starts it from ``tier``. ``eta_ms``: how long that
    start took before (median); on a row that is under way, from ``since_ms`` on. None where it was never measured.
    ``restarts``: how often its start failed before, since one last went well.
    """

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
    idle: bool = False
    tier: Tier | None = None
    eta_ms: int | None = None
    memory_bytes: int = 0


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


class TierCost(msgspec.Struct, frozen=True):
    """What starts of a deployment from ``tier`` took on this node, from the need to READY."""

    tier: Tier
    p50_ms: int
    p95_ms: int
    samples: int


class Device(msgspec.Struct, frozen=True):
    """Something a replica can compute on. ``kind`` is what :class:`EngineSettings` calls it."""

    kind: str
    name: str
    memory_bytes: int


class NodeReport(msgspec.Struct, frozen=True):
    """What the node has, and what its fleet may use. Sleepers hold at most ``asleep_budget_bytes`` together."""

    memory_bytes: int
    available_bytes: int
    devices: tuple[Device, ...]
    asleep_budget_bytes: int
    warm_idle_floor: int
    max_processes: int


class FleetReport(msgspec.Struct, frozen=True):
    """What the fleet posts to ``/internal/replicas``. ``costs`` is keyed by deployment id.

    ``probes`` are those that found more since the report that was taken last.
    """

    table: ReplicaTable
    events: tuple[ReplicaEvent, ...]
    costs: dict[str, tuple[TierCost, ...]] = {}
    resources: NodeReport | None = None
    probes: tuple[ProbeReport, ...] = ()


class Demand(msgspec.Struct, frozen=True):
    """What a gateway posts to the fleet's ``/demand``: how many of its callers wait for a replica, by deployment.

    Posted at once when a count becomes non-zero, every second while any is, and once when none is any more. A later
    ``sequence`` of the same gateway replaces an earlier one whole; ``gateway_id`` names one life of a gateway.
    """

    gateway_id: str
    sequence: int
    waiting: dict[str, int]


class TrialRequest(msgspec.Struct, frozen=True):
    """What validation posts to the fleet's ``/trials``: load ``version`` once, let it answer, end it."""

    version: VersionEntry
    engine: EngineSettings


class TrialState(StrEnum):
    """How a trial stands.

    FAILED is the version's fault. GIVEN_UP is ours and is tried again: no room, no end in time, or files that the store
    or the node's disk did not give.
    """

    RUNNING = "running"
    PASSED = "passed"
    FAILED = "failed"
    GIVEN_UP = "given_up"


class TrialReport(msgspec.Struct, frozen=True):
    """What ``GET /trials/{version_id}`` of the fleet answers. ``cause`` says what it waits for or why it failed."""

    version_id: str
    state: TrialState
    cause: str = ""
    first_token_ms: int = 0
