"""What the planner is told and what it answers."""

from collections.abc import Mapping

import msgspec

from dataplane.contracts.catalog import EngineSettings
from dataplane.contracts.replica import ReplicaState, Tier
from dataplane.fleet.backoff import History
from dataplane.fleet.tiers import Use


class Assignment(msgspec.Struct, frozen=True):
    """What a replica serves. Two equal assignments are interchangeable; any difference means a new replica."""

    deployment_id: str
    version_id: str
    version_digest: str
    owner_tenant_id: str
    served_name: str
    engine: EngineSettings


class ReplicaView(msgspec.Struct, frozen=True):
    """A replica as the planner sees it. ``assignment`` None: this process never held weights.

    ``memory_bytes`` is what it holds now; asleep it holds no more than that.
    """

    replica_id: str
    state: ReplicaState
    assignment: Assignment | None = None
    ending: bool = False
    pending: int = 0
    memory_bytes: int = 0


class VersionView(msgspec.Struct, frozen=True):
    """A version's files on this node: verified when ``ready``; else failed with ``cause``, or still being prepared."""

    ready: bool
    cause: str = ""
    retry_at_s: float = 0.0


class Policy(msgspec.Struct, frozen=True):
    """The node's own settings."""

    warm_idle_floor: int = 1
    max_processes: int = 16
    asleep_budget_bytes: int = 0


class Start(msgspec.Struct, frozen=True):
    """Start one process without weights."""


class Prepare(msgspec.Struct, frozen=True):
    """Bring a version's files to this node and verify them."""

    version_id: str


class Attach(msgspec.Struct, frozen=True):
    """Load a version into a warm idle process."""

    replica_id: str
    assignment: Assignment


class Wake(msgspec.Struct, frozen=True):
    """Have a sleeping replica serve again."""

    replica_id: str
    cause: str


class Sleep(msgspec.Struct, frozen=True):
    """Have an idle replica give back its KV memory and keep its weights."""

    replica_id: str
    cause: str


class Drain(msgspec.Struct, frozen=True):
    """Finish what runs, take nothing new, then end."""

    replica_id: str
    cause: str


class Stop(msgspec.Struct, frozen=True):
    """End a process that serves nobody."""

    replica_id: str
    cause: str


Action = Start | Prepare | Attach | Wake | Sleep | Drain | Stop


class Vacancy(msgspec.Struct, frozen=True):
    """A wanted replica without a process, and why; ``failures`` counts the tries since the last that went well."""

    assignment: Assignment
    cause: str
    failures: int = 0


class Resting(msgspec.Struct, frozen=True):
    """A version of an idle deployment that no process holds, and the tier it rests in."""

    assignment: Assignment
    tier: Tier


class Plan(msgspec.Struct, frozen=True):
    """What to do now, what stays vacant or rests, and when (caller's clock) the answer may change without an event.

    ``wanted``: how many READY replicas of each assignment the catalog and the callers want at this moment.
    """

    actions: tuple[Action, ...]
    vacancies: tuple[Vacancy, ...]
    resting: tuple[Resting, ...]
    wanted: Mapping[Assignment, int]
    next_at_s: float | None


class Observation(msgspec.Struct, frozen=True):
    """What is there: replicas oldest first, versions by id, failures by assignment (None: of processes without one).

    ``uses`` is by deployment, on the clock that the plan is made by; ``unix_s`` is the time for schedules.
    """

    replicas: tuple[ReplicaView, ...]
    versions: Mapping[str, VersionView]
    failures: Mapping[Assignment | None, History]
    uses: Mapping[str, Use] = {}
    unix_s: float = 0.0
