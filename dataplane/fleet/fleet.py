"""Joins the parts: looks at catalog and replicas, asks the planner, carries its actions out, tells what happened."""

import asyncio
import random
import time
from collections import deque

import structlog

from dataplane.catalog.follower import Follower
from dataplane.contracts.catalog import Catalog
from dataplane.contracts.ids import Kind, new_id
from dataplane.contracts.replica import Attach as AttachMessage
from dataplane.contracts.replica import Demand, ReplicaEvent, ReplicaReport, ReplicaState, Tier, TrialRequest
from dataplane.fleet import placement, probing, shares, trials
from dataplane.fleet.backends import Backend, WorkerSpec
from dataplane.fleet.backoff import STABLE_S, History, after_failure
from dataplane.fleet.demand import Demands
from dataplane.fleet.journal import Journal
from dataplane.fleet.metrics import Metrics
from dataplane.fleet.plan import (
    Action,
    Assignment,
    Attach,
    Drain,
    Observation,
    Plan,
    Prepare,
    Sleep,
    Start,
    Stop,
    Wake,
)
from dataplane.fleet.preparation import Preparation
from dataplane.fleet.probing import Prober
from dataplane.fleet.replica import Patience, Replica
from dataplane.fleet.reporter import Reporter
from dataplane.fleet.rows import Rows
from dataplane.fleet.settings import Settings
from dataplane.fleet.starts import Starts
from dataplane.fleet.table import Table
from dataplane.fleet.tier_memory import TierMemory
from dataplane.fleet.tiers import Use
from dataplane.fleet.trials import Trials
from dataplane.fleet.versions import Source, Versions

_STOPPED_ROWS = 20
_TICK_S = 0.25
_WELL = frozenset({ReplicaState.READY, ReplicaState.ASLEEP, ReplicaState.WARM_IDLE})
_log = structlog.get_logger(__name__)


class Fleet:
    """The fleet of this node.

    Args:
        settings: what the environment says; the folder for sockets is there.
        backend: where processes come from.
        patience: how long replicas may go without progress.
    """

    def __init__(self, settings: Settings, backend: Backend, patience: Patience) -> None:
        self._settings = settings
        self._backend = backend
        self._patience = patience
        self._wake = asyncio.Event()
        self._closing = False
        self._replicas: dict[str, Replica] = {}
        self._lives: set[asyncio.Task[None]] = set()
        self._ended: deque[ReplicaReport] = deque(maxlen=_STOPPED_ROWS)
        self._failures: dict[Assignment | None, History] = {}
        self._plan = Plan(actions=(), vacancies=(), resting=(), wanted={}, next_at_s=None)
        self._demands = Demands()
        self._starts = Starts()
        self._sharing = shares.Sharing()
        self._memory = TierMemory(settings.home / "fleet-tiers.json")
        self.trials = Trials()
        self.prober = Prober(
            lambda: probing.targets(self.follower.catalog.deployments, self._replicas.values()),
            share=settings.probe_share,
        )
        self.journal = Journal(settings.home / "fleet-events.json", settings.hostname)
        self.table = Table(self.journal.node)
        self.metrics = Metrics(lambda: self.table.latest)
        self.reconciled_at_s = time.monotonic()
        self._preparation = Preparation(
            Versions(settings.home, settings.blobs_dir, _source(settings)), on_change=self._wake.set
        )
        self._rows = Rows(self.journal.node, self._memory, self._starts, self._preparation.is_here)
        self.follower = Follower(
            redis_url=settings.redis_url,
            control_url=settings.control_url,
            internal_secret=settings.internal_secret,
            last_good=settings.home / "fleet-catalog.json",
            on_change=self._take_catalog,
        )
        self._reporter = Reporter(
            control_url=settings.control_url,
            internal_secret=settings.internal_secret,
            journal=self.journal,
            table=self.table,
            memory=self._memory,
            policy=settings.policy,
            prober=self.prober,
        )

    async def run(self, until: asyncio.Event) -> None:
        """Keep what runs equal to what is wanted, until told; then drain everything."""
        await self._backend.sweep()
        self.journal.end_of_former_life(_now_ms(), "the fleet was started anew")
        drained = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._reporter.run(drained))
            tasks.create_task(self._memory.run(drained))
            work = (self.follower.run(), self._preparation.run(), self._reconcile_forever(), self.prober.run())
            background = [tasks.create_task(each) for each in work]
            await until.wait()
            await self._drain_everything()
            drained.set()
            for task in background:
                task.cancel()

    def drain(self, replica_id: str, cause: str) -> bool:
        """Drain one replica by order, or end one that sleeps; False: there is none of that name that does either."""
        replica = self._replicas.get(replica_id)
        if replica is None or replica.state not in {ReplicaState.READY, ReplicaState.ASLEEP}:
            return False
        _end(replica, cause)
        return True

    def take_demand(self, demand: Demand) -> None:
        """Hear from a gateway who waits for what."""
        self._demands.take(demand, time.monotonic())
        self._wake.set()

    def try_out(self, request: TrialRequest) -> None:
        """Begin a trial, unless one of the same version runs. What kept the last one from its files may be mended."""
        self._preparation.retry(request.version.id)
        self.trials.begin(request, time.monotonic())
        self._wake.set()

    # --- deciding

    @property
    def _catalog(self) -> Catalog:
        return self.trials.overlay(self.follower.catalog)

    async def _reconcile_forever(self) -> None:
        while not self._closing:
            self._wake.clear()
            next_at_s = self._reconcile()
            wait_s = _TICK_S if next_at_s is None else min(_TICK_S, max(0.0, next_at_s - time.monotonic()))
            try:
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()
            except TimeoutError:
                pass

    def _reconcile(self) -> float | None:
        now_s = time.monotonic()
        self.trials.expire(now_s)
        catalog = self._catalog
        self._forgive_stable()
        seen = Observation(
            replicas=tuple(replica.view for replica in self._replicas.values()),
            versions=self._preparation.views,
            failures=self._failures,
            uses=self._uses(catalog, now_s),
            unix_s=time.time(),
        )
        plan = self._plan = placement.plan(catalog, seen, self._settings.policy, now_s)
        for action in plan.actions:
            self._carry_out(action, catalog)
        missing = [vacancy.assignment for vacancy in plan.vacancies]
        self._starts.missing(missing, Tier.WARM if self._has_spare else Tier.DISK, now_s)
        self._tell_trials()
        self._sharing.round(catalog.deployments, self._replicas.values())
        self._publish()
        self.reconciled_at_s = time.monotonic()
        return plan.next_at_s

    def _uses(self, catalog: Catalog, now_s: float) -> dict[str, Use]:
        """Note what is used now, and return when each deployment was used last."""
        waiting = self._demands.waiting(now_s)
        used = waiting.keys() & catalog.deployments.keys()
        ready = [replica for replica in self._replicas.values() if replica.state is ReplicaState.READY]
        for replica in ready:
            worked = replica.has_worked()
            if worked and replica.assignment and not placement.without_weight(catalog, replica.assignment):
                used.add(replica.assignment.deployment_id)
        for deployment_id in used:
            self._memory.used(deployment_id, now_s)
        return {
            deployment_id: Use(self._memory.last_use_s(deployment_id), is_now=deployment_id in waiting)
            for deployment_id in catalog.deployments
        }

    def _tell_trials(self) -> None:
        for vacancy in self._plan.vacancies:
            deployment_id, version_id = vacancy.assignment.deployment_id, vacancy.assignment.version_id
            if trials.is_trial(deployment_id):
                version = self._preparation.views.get(version_id)
                if version is not None and version.cause:
                    # The control plane has just read these very files: what is wrong is between its store and here.
                    self.trials.given_up(deployment_id, version.cause)
                else:
                    self.trials.waits(deployment_id, vacancy.cause)

    def _forgive_stable(self) -> None:
        for replica in self._replicas.values():
            if replica.state in _WELL and replica.in_state_s >= STABLE_S:
                self._failures.pop(replica.assignment, None)

    def _carry_out(self, action: Action, catalog: Catalog) -> None:
        match action:
            case Start():
                self._start()
            case Prepare(version_id):
                self._preparation.prepare(catalog.versions[version_id])
            case Attach(replica_id, assignment):
                self._attach(self._replicas[replica_id], assignment, catalog)
            case Wake(replica_id, cause):
                self._wake_up(self._replicas[replica_id], cause)
            case Sleep(replica_id, cause):
                self._replicas[replica_id].sleep(cause)
            case Drain(replica_id, cause):
                self._replicas[replica_id].drain(cause)
            case Stop(replica_id, cause):
                self._replicas[replica_id].stop(cause)

    def _start(self) -> None:
        replica_id = new_id(Kind.REPLICA)
        run = self._settings.run_dir
        spec = WorkerSpec(replica_id, run / f"{replica_id}.sock", run / f"{replica_id}.ctl")
        replica = Replica(spec, self._backend, self._patience, self._take_change)
        self._replicas[replica_id] = replica
        life = asyncio.create_task(replica.live(), name=replica_id)
        self._lives.add(life)
        life.add_done_callback(self._lives.discard)

    def _attach(self, replica: Replica, assignment: Assignment, catalog: Catalog) -> None:
        deployment = catalog.deployments[assignment.deployment_id]
        wanted = self._plan.wanted.get(assignment, 1)
        message = AttachMessage(
            deployment_id=assignment.deployment_id,
            version_id=assignment.version_id,
            version_digest=assignment.version_digest,
            model_dir=str(self._preparation.folder(assignment.version_digest)),
            runtime_dir=str(self._settings.home / "runtime"),
            served_name=assignment.served_name,
            engine=assignment.engine,
            tenants=deployment.grants,
            leases=self._sharing.begin(replica.replica_id, assignment, deployment, wanted),
            salt_secret=shares.salt_secret(self._settings.cache_salt_secret, assignment.version_digest),
        )
        need = self._starts.answered(assignment, Tier.WARM, time.monotonic())
        history = self._failures.get(assignment)
        if history is None:
            replica.attach(message, assignment, restarts=0, need=need)
        else:  # its waits between two tries are no measure of a start
            replica.attach(message, assignment, restarts=history.failures, need=None)

    def _wake_up(self, replica: Replica, cause: str) -> None:
        if replica.assignment is not None:
            replica.wake(cause, self._starts.answered(replica.assignment, Tier.ASLEEP, time.monotonic()))

    # --- hearing

    def _take_catalog(self, _: Catalog) -> None:
        catalog = self._catalog
        in_use = {replica.assignment.version_digest for replica in self._replicas.values() if replica.assignment}
        self._preparation.keep(catalog.versions, in_use | self.trials.digests(time.monotonic()))
        self._memory.keep(catalog.deployments)
        remembered = {None, *placement.servable(catalog)}
        self._failures = {what: history for what, history in self._failures.items() if what in remembered}
        self._wake.set()

    def _take_change(self, replica: Replica, old: ReplicaState) -> None:
        assignment = replica.assignment
        event = ReplicaEvent(
            sequence=0,
            replica_id=replica.replica_id,
            at_ms=replica.since_ms,
            old=old,
            new=replica.state,
            cause=replica.cause,
            deployment_id=assignment.deployment_id if assignment else "",
            version_id=assignment.version_id if assignment else "",
        )
        self.journal.record(event)
        self.metrics.changes.labels(new=replica.state.value).inc()
        _log.info(
            "replica.state",
            replica_id=replica.replica_id,
            old=old.value,
            new=replica.state.value,
            cause=replica.cause,
            deployment_id=event.deployment_id,
            version_id=event.version_id,
            pid=replica.pid,
        )
        if assignment is not None and trials.is_trial(assignment.deployment_id):
            self.trials.waits(assignment.deployment_id, replica.cause)
        if replica.state is ReplicaState.READY:
            self._take_ready(replica)
        if replica.state is ReplicaState.STOPPED:
            self._bury(replica, old)
        self._publish()
        self._wake.set()

    def _take_ready(self, replica: Replica) -> None:
        assignment, need, now_s = replica.assignment, replica.need, time.monotonic()
        if assignment is None:
            return
        if trials.is_trial(assignment.deployment_id):
            self.trials.passed(assignment.deployment_id, replica.first_token_ms, now_s)
            return
        if not placement.without_weight(self._catalog, assignment):
            self._memory.used(assignment.deployment_id, now_s)  # its idle time begins here
        if need is None:
            return
        replica.need, tier = None, need.tier
        if tier is not Tier.ASLEEP:
            self.metrics.attach_seconds.observe(replica.loaded_in_ms / 1000)
            converted = replica.status is not None and replica.status.converted
            if converted or self._preparation.worked_since(assignment.version_id, need.since_s):
                tier = Tier.STORE
        self._memory.started(assignment.deployment_id, tier, round((now_s - need.since_s) * 1000))

    def _bury(self, replica: Replica, old: ReplicaState) -> None:
        del self._replicas[replica.replica_id]
        self._ended.append(self._rows.of(replica))
        if replica.ending:
            return
        self.metrics.failures.labels(state=old.value).inc()
        if replica.assignment is not None and trials.is_trial(replica.assignment.deployment_id):
            self.trials.failed(replica.assignment.deployment_id, replica.cause)  # tried once
            return
        self._failures[replica.assignment] = after_failure(
            self._failures.get(replica.assignment),
            cause=replica.cause,
            healthy_s=replica.healthy_s,
            now_s=time.monotonic(),
            draw=random.random(),  # noqa: S311 - jitter
        )
        if replica.assignment and old is ReplicaState.LOADING:
            self._preparation.doubt(replica.assignment.version_id)

    # --- telling

    @property
    def _has_spare(self) -> bool:
        """Whether a process without weights waits to be given some."""
        return any(r.state is ReplicaState.WARM_IDLE and r.assignment is None for r in self._replicas.values())

    def _publish(self) -> None:
        rows = [self._rows.of(replica) for replica in self._replicas.values()]
        self.table.publish([*rows, *self._rows.without_process(self._plan, spare=self._has_spare), *self._ended])

    # --- ending

    async def _drain_everything(self) -> None:
        """Drain what serves, stop the rest, and wait until nothing runs."""
        self._closing = True
        self._plan = Plan(actions=(), vacancies=(), resting=(), wanted={}, next_at_s=None)
        for replica in list(self._replicas.values()):
            if not replica.ending:
                _end(replica, "the fleet shuts down")
        if self._lives:
            await asyncio.wait(self._lives)


def _end(replica: Replica, cause: str) -> None:
    if replica.state is ReplicaState.READY:
        replica.drain(cause)
    else:
        replica.stop(cause)


def _source(settings: Settings) -> Source | None:
    """Return where blobs come from that this machine does not have."""
    if settings.bucket is None:
        return None
    from dataplane.fleet.bucket import Bucket  # noqa: PLC0415 - its client takes long to import

    return Bucket(settings.bucket)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
