"""Decides what to do next: a pure function of the catalog, what is observed, and a clock.

The rules, each held by a property test:

1. An active deployment gets ``min_replicas`` of every version whose arm has weight, never more than ``max_replicas``.
2. A version is attached only to a WARM_IDLE process that never held weights. A process that did is stopped, never
   reused: one owner's private weights cannot meet another owner's requests.
3. A replica that serves is drained before it stops. An outdated one (version out of every arm, other engine settings,
   new name) is drained only when all of its deployment's wanted replicas are READY: no gap in traffic.
4. What failed is not tried again before its back-off ends.
5. The floor of warm idle processes is refilled when nothing is loading: a start does not slow a replacement down.
6. Never more than ``max_processes``.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from dataplane.contracts.catalog import Catalog, DeploymentEntry, EngineSettings
from dataplane.contracts.replica import ReplicaState
from dataplane.fleet.backoff import History

_SERVING_SOON = frozenset({ReplicaState.LOADING, ReplicaState.WARMING})
_LIVE = _SERVING_SOON | {ReplicaState.READY}
_GONE = frozenset({ReplicaState.COLD, ReplicaState.STOPPED})


class Assignment(msgspec.Struct, frozen=True):
    """What a replica serves. Two equal assignments are interchangeable; any difference means a new replica."""

    deployment_id: str
    version_id: str
    version_digest: str
    owner_tenant_id: str
    served_name: str
    engine: EngineSettings


class ReplicaView(msgspec.Struct, frozen=True):
    """A replica as the planner sees it. ``assignment`` None: this process never held weights."""

    replica_id: str
    state: ReplicaState
    assignment: Assignment | None = None
    ending: bool = False


class VersionView(msgspec.Struct, frozen=True):
    """A version's files on this node: verified when ``ready``; else failed with ``cause``, or still being prepared."""

    ready: bool
    cause: str = ""
    retry_at_s: float = 0.0


class Policy(msgspec.Struct, frozen=True):
    """The node's own settings."""

    warm_idle_floor: int = 1
    max_processes: int = 16


class Start(msgspec.Struct, frozen=True):
    """Start one process without weights."""


class Prepare(msgspec.Struct, frozen=True):
    """Bring a version's files to this node and verify them."""

    version_id: str


class Attach(msgspec.Struct, frozen=True):
    """Load a version into a warm idle process."""

    replica_id: str
    assignment: Assignment


class Drain(msgspec.Struct, frozen=True):
    """Finish what runs, take nothing new, then end."""

    replica_id: str
    cause: str


class Stop(msgspec.Struct, frozen=True):
    """End a process that serves nobody."""

    replica_id: str
    cause: str


Action = Start | Prepare | Attach | Drain | Stop


class Vacancy(msgspec.Struct, frozen=True):
    """A wanted replica without a process, and why."""

    assignment: Assignment
    cause: str


class Plan(msgspec.Struct, frozen=True):
    """What to do now, what stays vacant, and when (caller's clock) the answer may change without an event."""

    actions: tuple[Action, ...]
    vacancies: tuple[Vacancy, ...]
    next_at_s: float | None


class Observation(msgspec.Struct, frozen=True):
    """What is there: replicas oldest first, versions by id, failures by assignment (None: of processes without one)."""

    replicas: tuple[ReplicaView, ...]
    versions: Mapping[str, VersionView]
    failures: Mapping[Assignment | None, History]


def wanted(catalog: Catalog) -> dict[Assignment, int]:
    """Return how many replicas the catalog wants of each assignment.

    A deployment that names a version the catalog lacks wants nothing of it: the entry arrives with a later snapshot.
    """
    counts: dict[Assignment, int] = {}
    for deployment in catalog.deployments.values():
        count = min(deployment.min_replicas, deployment.max_replicas)
        if deployment.active and count > 0:
            for assignment in _assignments(catalog, deployment):
                counts[assignment] = count
    return counts


def _assignments(catalog: Catalog, deployment: DeploymentEntry) -> Iterator[Assignment]:
    for arm in deployment.arms:
        version = catalog.versions.get(arm.version_id)
        if arm.weight > 0 and version is not None:
            yield Assignment(
                deployment_id=deployment.id,
                version_id=version.id,
                version_digest=version.digest,
                owner_tenant_id=version.tenant_id,
                served_name=deployment.name,
                engine=deployment.engine,
            )


def plan(catalog: Catalog, seen: Observation, policy: Policy, now_s: float) -> Plan:
    """Return what to do at ``now_s`` to come closer to what ``catalog`` wants."""
    return _Planner(catalog, seen, policy, now_s).plan()


class _Planner:
    """One planning: the state that its rules share."""

    def __init__(self, catalog: Catalog, seen: Observation, policy: Policy, now_s: float) -> None:
        self._catalog = catalog
        self._wanted = wanted(catalog)
        self._seen = seen
        self._policy = policy
        self._now_s = now_s
        replicas = [replica for replica in seen.replicas if replica.state not in _GONE]
        self._processes = len(replicas)
        staying = [replica for replica in replicas if not replica.ending]
        self._live = [replica for replica in staying if replica.state in _LIVE]
        self._idle = [replica for replica in staying if replica.state is ReplicaState.WARM_IDLE]
        self._starting = sum(replica.state is ReplicaState.STARTING for replica in staying)
        self._actions: list[Action] = []
        self._vacancies: list[Vacancy] = []
        self._alarms_s: list[float] = []

    def plan(self) -> Plan:
        self._stop_used()
        needs = self._fill()
        self._retire()
        self._keep_floor(needs)
        return Plan(
            actions=tuple(self._actions),
            vacancies=tuple(self._vacancies),
            next_at_s=min(self._alarms_s, default=None),
        )

    def _stop_used(self) -> None:
        for replica in self._idle:
            if replica.assignment is not None:
                self._actions.append(Stop(replica.replica_id, "held weights: a process is used for one version only"))
        self._idle = [replica for replica in self._idle if replica.assignment is None]

    def _fill(self) -> int:
        """Attach where a replica is missing; return how many wait for a process only."""
        waiting = 0
        for assignment, count in self._wanted.items():
            missing = count - len(self._serving(assignment))
            if missing <= 0:
                continue
            obstacle = self._obstacle(assignment)
            for _ in range(missing):
                if obstacle is None and self._idle:
                    self._actions.append(Attach(self._idle.pop(0).replica_id, assignment))
                    continue
                waiting += obstacle is None
                self._vacancies.append(Vacancy(assignment, obstacle or self._no_process(waiting)))
        return waiting

    def _serving(self, assignment: Assignment) -> list[ReplicaView]:
        return [replica for replica in self._live if replica.assignment == assignment]

    def _obstacle(self, assignment: Assignment) -> str | None:
        """Say what stands between a warm idle process and this assignment; begin to remove it."""
        version = self._seen.versions.get(assignment.version_id)
        if version is None or (version.cause and version.retry_at_s <= self._now_s):
            prepare = Prepare(assignment.version_id)
            if prepare not in self._actions:  # two deployments may want one version
                self._actions.append(prepare)
            return version.cause if version else "the version's files are being verified"
        if not version.ready:
            if version.cause:
                self._alarms_s.append(version.retry_at_s)
            return version.cause or "the version's files are being verified"
        return self._backing_off(assignment)

    def _backing_off(self, what: Assignment | None) -> str | None:
        history = self._seen.failures.get(what)
        if history is None or history.retry_at_s <= self._now_s:
            return None
        self._alarms_s.append(history.retry_at_s)
        return f"failed {history.failures} times in a row, waits before the next try: {history.cause}"

    def _no_process(self, waiting: int) -> str:
        starts = self._seen.failures.get(None)
        if starts is not None and not self._starting:
            return f"a worker process cannot be started: {starts.cause}"
        if self._processes >= self._policy.max_processes and waiting > self._starting:
            return f"all {self._policy.max_processes} processes this node may run are taken"
        return "waits for a warm idle process"

    def _retire(self) -> None:
        """End what is outdated (once its successors are READY) and what is too many."""
        for deployment_id in dict.fromkeys(r.assignment.deployment_id for r in self._live if r.assignment):
            replicas = [r for r in self._live if r.assignment and r.assignment.deployment_id == deployment_id]
            targets = {a: n for a, n in self._wanted.items() if a.deployment_id == deployment_id}
            if self._lacks_version(deployment_id):
                continue
            succeeded = all(
                sum(r.assignment == a and r.state is ReplicaState.READY for r in replicas) >= n
                for a, n in targets.items()
            )
            for replica in replicas:
                if replica.assignment not in targets and (succeeded or replica.state in _SERVING_SOON):
                    self._end(replica, "replaced by a newer version or other settings" if targets else "not wanted")
            for assignment, count in targets.items():
                for replica in _surplus([r for r in replicas if r.assignment == assignment], count):
                    self._end(replica, f"one more than the {count} wanted")

    def _lacks_version(self, deployment_id: str) -> bool:
        """Say whether an arm names a version of a later snapshot: what is outdated cannot be known before that."""
        deployment = self._catalog.deployments.get(deployment_id)
        if deployment is None or not deployment.active:
            return False
        return any(arm.weight > 0 and arm.version_id not in self._catalog.versions for arm in deployment.arms)

    def _end(self, replica: ReplicaView, cause: str) -> None:
        kind = Drain if replica.state is ReplicaState.READY else Stop
        self._actions.append(kind(replica.replica_id, cause))

    def _keep_floor(self, waiting: int) -> None:
        busy = waiting > 0 or any(isinstance(action, Attach) for action in self._actions)
        busy = busy or any(replica.state in _SERVING_SOON for replica in self._live)
        goal = waiting if busy else self._policy.warm_idle_floor
        spare = len(self._idle) + self._starting
        room = self._policy.max_processes - self._processes
        if spare < goal and self._backing_off(None) is None:
            self._actions.extend([Start()] * min(goal - spare, room))
        for replica in self._idle[: max(0, spare - max(goal, self._policy.warm_idle_floor))]:
            self._actions.append(Stop(replica.replica_id, "more warm idle processes than the floor"))


def _surplus(replicas: Sequence[ReplicaView], count: int) -> Sequence[ReplicaView]:
    """Return those to end: what is not READY first, then the newest."""
    ready_first = sorted(replicas, key=lambda replica: replica.state is not ReplicaState.READY)
    return ready_first[count:]
