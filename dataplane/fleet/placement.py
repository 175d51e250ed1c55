"""Decides what to do next: a pure function of the catalog, what is observed, and a clock.

The rules, each held by a property test:

1. An active deployment gets the replicas it keeps ready, or one while it is in use, never more than ``max_replicas``.
   Its stable arm has them all, a candidate its part of them and one at least
   (:func:`~dataplane.contracts.arms.replicas_for`). Idle, the stable arm steps down as :mod:`.tiers` says. An arm that
   is held asleep keeps one sleeper, which nothing but a lack of memory or processes ends.
2. A version is attached only to a WARM_IDLE process that never held weights. A process that did is stopped, never
   reused: one owner's private weights cannot meet another owner's requests.
3. Waking comes before loading, and both before stepping down. What sleeps stays within the node's memory budget, and
   gives way to what needs a process: the least recently used first.
4. A replica that serves is drained before it stops. An outdated one (version out of every arm, other engine settings,
   new name) is drained, and an arm put to sleep that is held so, only when all of its deployment's wanted replicas are
   READY: no gap in traffic.
5. What failed is not tried again before its back-off ends.
6. The floor of warm idle processes is refilled when nothing is loading: a start does not slow a replacement down.
7. Never more than ``max_processes``.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from dataplane.contracts import arms
from dataplane.contracts.catalog import Arm, Catalog, DeploymentEntry, Hold
from dataplane.contracts.replica import ReplicaState, Tier
from dataplane.fleet import tiers
from dataplane.fleet.plan import (
    Action,
    Assignment,
    Attach,
    Drain,
    Observation,
    Plan,
    Policy,
    Prepare,
    ReplicaView,
    Resting,
    Sleep,
    Start,
    Stop,
    Vacancy,
    Wake,
)
from dataplane.fleet.tiers import Goal, Sleeper, Use

_SERVING_SOON = frozenset({ReplicaState.LOADING, ReplicaState.WARMING})
_LIVE = _SERVING_SOON | {ReplicaState.READY}
_OUTDATED = "replaced by a newer version or other settings"
_GONE = frozenset({ReplicaState.COLD, ReplicaState.STOPPED})


def servable(catalog: Catalog) -> dict[Assignment, tuple[DeploymentEntry, Arm]]:
    """Return every assignment of an active deployment that may have replicas: what is served now or on a call, or held.

    A deployment that names a version the catalog lacks has nothing of it: the entry arrives with a later snapshot. Of
    two arms with one version the one that needs more counts.
    """
    found: dict[Assignment, tuple[DeploymentEntry, Arm]] = {}
    for deployment in catalog.deployments.values():
        if deployment.active and deployment.max_replicas > 0:
            for arm in sorted(deployment.arms, key=lambda arm: arms.replicas_for(arm, 100), reverse=True):
                assignment = _assignment(catalog, deployment, arm)
                if assignment is not None and _has_replicas(arm):
                    found.setdefault(assignment, (deployment, arm))
    return found


def without_weight(catalog: Catalog, assignment: Assignment) -> bool:
    """Say whether an assignment is of an arm without weight: who calls it tries it, and does not use the deployment."""
    deployment = catalog.deployments.get(assignment.deployment_id)
    known = deployment.arms if deployment else ()
    weights = [arm.weight for arm in known if arm.version_id == assignment.version_id]
    return bool(weights) and not any(weights)


def _has_replicas(arm: Arm) -> bool:
    return arms.replicas_for(arm, 1) > 0 or arm.hold is Hold.ASLEEP


def _assignment(catalog: Catalog, deployment: DeploymentEntry, arm: Arm) -> Assignment | None:
    version = catalog.versions.get(arm.version_id)
    if version is None:
        return None
    return Assignment(
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
        self._seen = seen
        self._policy = policy
        self._now_s = now_s
        self._actions: list[Action] = []
        self._vacancies: list[Vacancy] = []
        self._alarms_s: list[float] = []
        servable_now = servable(catalog)
        wholes = {deployment.id: self._goal(deployment) for deployment, _ in servable_now.values()}
        self._goals = {
            assignment: tiers.of_arm(arm, wholes[deployment.id])
            for assignment, (deployment, arm) in servable_now.items()
        }
        self._wanted = {assignment: goal.ready for assignment, goal in self._goals.items() if goal.ready}
        replicas = [replica for replica in seen.replicas if replica.state not in _GONE]
        self._processes = len(replicas)
        staying = [replica for replica in replicas if not replica.ending]
        self._live = [replica for replica in staying if replica.state in _LIVE]
        self._idle = [replica for replica in staying if replica.state is ReplicaState.WARM_IDLE]
        self._starting = sum(replica.state is ReplicaState.STARTING for replica in staying)
        self._asleep = [replica for replica in staying if replica.state is ReplicaState.ASLEEP]

    def _goal(self, deployment: DeploymentEntry) -> Goal:
        pending = sum(
            replica.pending
            for replica in self._seen.replicas
            if replica.assignment is not None
            and replica.assignment.deployment_id == deployment.id
            and not without_weight(self._catalog, replica.assignment)
        )
        use = self._seen.uses.get(deployment.id, Use())
        use = Use(last_s=use.last_s, is_now=use.is_now or pending > 0)
        goal = tiers.goal(deployment, use, self._now_s, self._seen.unix_s)
        if goal.next_at_s is not None:
            self._alarms_s.append(goal.next_at_s)
        return goal

    def plan(self) -> Plan:
        self._stop_used()
        self._wake()
        needs = self._fill()
        self._retire()
        self._step_down()
        self._keep_floor(needs)
        return Plan(
            actions=tuple(self._actions),
            vacancies=tuple(self._vacancies),
            resting=tuple(self._resting()),
            wanted=self._wanted,
            next_at_s=min(self._alarms_s, default=None),
        )

    def _stop_used(self) -> None:
        for replica in self._idle:
            if replica.assignment is not None:
                self._actions.append(Stop(replica.replica_id, "held weights: a process is used for one version only"))
        self._idle = [replica for replica in self._idle if replica.assignment is None]

    def _wake(self) -> None:
        for assignment, count in self._wanted.items():
            missing = max(0, count - len(self._serving(assignment)))
            for replica in [r for r in self._asleep if r.assignment == assignment][:missing]:
                self._actions.append(Wake(replica.replica_id, "callers or the schedule want it"))
                self._asleep.remove(replica)
                self._live.append(replica)

    def _fill(self) -> int:
        """Attach where a replica is missing; return how many wait for a process only.

        The owner with the fewest replicas comes first: the next process is not for one that has taken all the others.
        """
        waiting = 0
        held = Counter(replica.assignment.owner_tenant_id for replica in self._live if replica.assignment)
        hungriest = sorted(self._wanted.items(), key=lambda wanted: held[wanted[0].owner_tenant_id])
        for assignment, count in hungriest:
            missing = count - len(self._serving(assignment))
            if missing <= 0:
                continue
            obstacle = self._obstacle(assignment)
            for _ in range(missing):
                if obstacle is None and self._idle:
                    self._actions.append(Attach(self._idle.pop(0).replica_id, assignment))
                    continue
                waiting += obstacle is None
                cause = obstacle or self._no_process(waiting)
                self._vacancies.append(Vacancy(assignment, cause, self._failures(assignment)))
        return waiting

    def _failures(self, assignment: Assignment) -> int:
        """Count what failed on the way to this assignment: the version's files, its load, a process for it."""
        version = self._seen.versions.get(assignment.version_id)
        histories = [self._seen.failures.get(what) for what in (assignment, None)]
        counts = [history.failures for history in histories if history is not None]
        return max([*counts, 1 if version is not None and version.cause else 0])

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
        if self._processes >= self._policy.max_processes and waiting > self._starting and not self._asleep:
            return f"all {self._policy.max_processes} processes this node may run are taken"
        return "waits for a warm idle process"

    def _retire(self) -> None:
        """End what is outdated (once its successors are READY) and what is too many."""
        for deployment_id in dict.fromkeys(map(_deployment_of, self._live)):
            replicas = [r for r in self._live if _deployment_of(r) == deployment_id]
            if self._lacks_version(deployment_id):
                continue
            succeeded = self._has_all(deployment_id)
            for replica in replicas:
                if replica.assignment not in self._goals and (succeeded or replica.state in _SERVING_SOON):
                    self._end(replica, _OUTDATED if self._serves(deployment_id) else "not wanted")
            for assignment, count in self._targets(deployment_id):
                for replica in _surplus([r for r in replicas if r.assignment == assignment], count):
                    self._end(replica, f"one more than the {count} wanted")

    def _targets(self, deployment_id: str) -> list[tuple[Assignment, int]]:
        return [(a, count) for a, count in self._wanted.items() if a.deployment_id == deployment_id]

    def _has_all(self, deployment_id: str) -> bool:
        """Say whether every replica that is wanted of a deployment is READY."""
        return all(
            sum(replica.state is ReplicaState.READY for replica in self._serving(assignment)) >= count
            for assignment, count in self._targets(deployment_id)
        )

    def _serves(self, deployment_id: str) -> bool:
        return any(assignment.deployment_id == deployment_id for assignment in self._goals)

    def _step_down(self) -> None:
        """Have the idle and the held sleep, or end where their tier is deeper or others need the memory for sleepers.

        A replica that is still starting finishes first: whoever it was started for may come back. One of an arm that is
        held finishes its requests first: none come any more, but those of an arm with weight did until now.
        """
        staying: list[ReplicaView] = []
        for replica in self._asleep:
            one_is_enough = any(other.assignment == replica.assignment for other in staying)
            cause = "one of its kind sleeps already" if one_is_enough else self._why_not_asleep(replica)
            if cause is None:
                staying.append(replica)
            else:
                self._end(replica, cause)
        for assignment, goal in self._goals.items():
            if goal.ready == 0 and (not goal.held or self._has_all(assignment.deployment_id)):
                serving = [r for r in self._serving(assignment) if r.state is ReplicaState.READY]
                serving.sort(key=lambda replica: replica.pending)
                asleep = any(replica.assignment == assignment for replica in staying)
                may_sleep = 1 if goal.tier is Tier.ASLEEP and not asleep else 0
                staying += [replica for replica in serving[:may_sleep] if replica.pending == 0]
                for replica in serving[may_sleep:]:
                    tier = Tier.WARM if goal.tier is Tier.ASLEEP else goal.tier
                    self._end(replica, f"{_reason(goal)}: steps down to {tier}")
        self._fit_into_memory(staying)

    def _why_not_asleep(self, replica: ReplicaView) -> str | None:
        deployment_id = _deployment_of(replica)
        goal = self._goal_of(replica)
        if goal is None:
            if self._lacks_version(deployment_id):
                return None
            return _OUTDATED if self._serves(deployment_id) else "not wanted"
        if goal.ready > 0:
            return f"one more than the {goal.ready} wanted"
        return None if goal.tier is Tier.ASLEEP else f"idle: steps down to {goal.tier}"

    def _fit_into_memory(self, sleepers: list[ReplicaView]) -> None:
        fitting = tiers.within_budget([self._sleeper(r) for r in sleepers], self._policy.asleep_budget_bytes)
        for replica in sleepers:
            why = _reason(self._goal_of(replica))
            if replica.replica_id not in fitting:
                self._end(replica, f"{why}: the node's memory for sleeping replicas is taken by those used later")
            elif replica.state is ReplicaState.READY:
                self._actions.append(Sleep(replica.replica_id, f"{why}: steps down to asleep"))
        self._asleep = [r for r in sleepers if r.replica_id in fitting and r.state is ReplicaState.ASLEEP]

    def _goal_of(self, replica: ReplicaView) -> Goal | None:
        return self._goals.get(replica.assignment) if replica.assignment else None

    def _sleeper(self, replica: ReplicaView) -> Sleeper:
        goal, last_s = self._goal_of(replica), self._seen.uses.get(_deployment_of(replica), Use()).last_s
        return Sleeper(
            replica_id=replica.replica_id,
            memory_bytes=replica.memory_bytes,
            last_s=-math.inf if last_s is None else last_s,
            held=goal is not None and goal.held,
        )

    def _resting(self) -> Iterator[Resting]:
        held = {r.assignment for r in self._seen.replicas if r.state not in _GONE and not r.ending}
        for assignment, goal in self._goals.items():
            if goal.ready == 0 and goal.tier is not None and not goal.held and assignment not in held:
                yield Resting(assignment, Tier.WARM if goal.tier is Tier.ASLEEP else goal.tier)

    def _lacks_version(self, deployment_id: str) -> bool:
        """Say whether an arm names a version of a later snapshot: what is outdated cannot be known before that."""
        deployment = self._catalog.deployments.get(deployment_id)
        if deployment is None or not deployment.active:
            return False
        return any(_has_replicas(arm) and arm.version_id not in self._catalog.versions for arm in deployment.arms)

    def _end(self, replica: ReplicaView, cause: str) -> None:
        kind = Drain if replica.state is ReplicaState.READY else Stop
        self._actions.append(kind(replica.replica_id, cause))

    def _keep_floor(self, waiting: int) -> None:
        busy = waiting > 0 or any(isinstance(action, Attach) for action in self._actions)
        busy = busy or any(replica.state in _SERVING_SOON for replica in self._live)
        reserve = any(resting.tier is Tier.WARM for resting in self._resting())
        floor = max(self._policy.warm_idle_floor, int(reserve))
        goal = waiting if busy else floor
        spare = len(self._idle) + self._starting
        room = self._policy.max_processes - self._processes
        if spare < goal and self._backing_off(None) is None:
            self._actions.extend([Start()] * min(goal - spare, room))
            self._make_room(waiting - spare - room)
        for replica in self._idle[: max(0, spare - max(goal, floor))]:
            self._actions.append(Stop(replica.replica_id, "more warm idle processes than the floor"))

    def _make_room(self, short: int) -> None:
        """End sleepers where callers lack so many processes; those that end already count."""
        short -= sum(replica.ending for replica in self._seen.replicas if replica.state not in _GONE)
        for replica in sorted(self._asleep, key=lambda r: self._sleeper(r).rank)[: max(0, short)]:
            self._end(replica, f"{_reason(self._goal_of(replica))}: its process makes room for one that is needed now")


def _reason(goal: Goal | None) -> str:
    """Say why a replica does not serve."""
    return "held for a way back" if goal is not None and goal.held else "idle"


def _deployment_of(replica: ReplicaView) -> str:
    return replica.assignment.deployment_id if replica.assignment else ""


def _surplus(replicas: Sequence[ReplicaView], count: int) -> Sequence[ReplicaView]:
    """Return those to end: what is not READY first, then the newest."""
    ready_first = sorted(replicas, key=lambda replica: replica.state is not ReplicaState.READY)
    return ready_first[count:]
