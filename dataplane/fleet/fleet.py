"""Joins the parts: looks at catalog and replicas, asks the planner, carries its actions out, tells what happened."""

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable

import structlog

from dataplane.catalog.follower import Follower
from dataplane.contracts.catalog import Catalog, Share
from dataplane.contracts.ids import Kind, new_id
from dataplane.contracts.replica import Attach as AttachMessage
from dataplane.contracts.replica import ReplicaEvent, ReplicaReport, ReplicaState
from dataplane.fleet import placement, shares
from dataplane.fleet.backends import Backend, WorkerSpec
from dataplane.fleet.backoff import STABLE_S, History, after_failure
from dataplane.fleet.journal import Journal
from dataplane.fleet.metrics import Metrics
from dataplane.fleet.placement import Action, Assignment, Attach, Drain, Observation, Prepare, Start, Stop
from dataplane.fleet.preparation import Preparation
from dataplane.fleet.replica import Patience, Replica
from dataplane.fleet.reporter import Reporter
from dataplane.fleet.rows import cold_row, row
from dataplane.fleet.settings import Settings
from dataplane.fleet.table import Table

_STOPPED_ROWS = 20
_TICK_S = 0.25
_WELL = frozenset({ReplicaState.READY, ReplicaState.WARM_IDLE})
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
        self._vacancies: tuple[placement.Vacancy, ...] = ()
        self._cold: dict[tuple[Assignment, int], ReplicaReport] = {}
        self.journal = Journal(settings.home / "fleet-events.json", settings.hostname)
        self.table = Table(self.journal.node)
        self.metrics = Metrics(lambda: self.table.latest)
        self.reconciled_at_s = time.monotonic()
        self._preparation = Preparation(settings.home, self._wake.set)
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
        )

    async def run(self, until: asyncio.Event) -> None:
        """Keep what runs equal to what is wanted, until told; then drain everything."""
        await self._backend.sweep()
        self.journal.end_of_former_life(_now_ms(), "the fleet was started anew")
        drained = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._reporter.run(drained))
            work = (self.follower.run(), self._preparation.run(), self._reconcile_forever())
            background = [tasks.create_task(each) for each in work]
            await until.wait()
            await self._drain_everything()
            drained.set()
            for task in background:
                task.cancel()

    def drain(self, replica_id: str, cause: str) -> bool:
        """Drain one replica by order; False: there is none of that name that serves."""
        replica = self._replicas.get(replica_id)
        if replica is None or replica.state is not ReplicaState.READY:
            return False
        replica.drain(cause)
        return True

    # --- deciding

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
        catalog = self.follower.catalog
        self._forgive_stable()
        seen = Observation(
            replicas=tuple(replica.view for replica in self._replicas.values()),
            versions=self._preparation.views,
            failures=self._failures,
        )
        plan = placement.plan(catalog, seen, self._settings.policy, time.monotonic())
        for action in plan.actions:
            self._carry_out(action, catalog)
        self._vacancies = plan.vacancies
        self._send_shares(catalog)
        self._publish()
        self.reconciled_at_s = time.monotonic()
        return plan.next_at_s

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
        message = AttachMessage(
            deployment_id=assignment.deployment_id,
            version_id=assignment.version_id,
            version_digest=assignment.version_digest,
            model_dir=str(self._preparation.folder(assignment.version_digest)),
            runtime_dir=str(self._settings.home / "runtime"),
            served_name=assignment.served_name,
            engine=assignment.engine,
            tenants=self._shares_of(assignment, catalog),
            salt_secret=shares.salt_secret(self._settings.cache_salt_secret, assignment.version_digest),
        )
        history = self._failures.get(assignment)
        replica.attach(message, assignment, restarts=history.failures if history else 0)

    def _shares_of(self, assignment: Assignment, catalog: Catalog) -> dict[str, Share]:
        total = sum(n for a, n in placement.wanted(catalog).items() if a.deployment_id == assignment.deployment_id)
        return shares.split(catalog.deployments[assignment.deployment_id].grants, total)

    def _send_shares(self, catalog: Catalog) -> None:
        for replica in self._replicas.values():
            assignment = replica.assignment
            if replica.state is not ReplicaState.READY or assignment is None:
                continue
            if assignment.deployment_id in catalog.deployments:
                wanted = self._shares_of(assignment, catalog)
                if wanted != replica.shares:
                    replica.set_shares(wanted)

    # --- hearing

    def _take_catalog(self, catalog: Catalog) -> None:
        in_use = {replica.assignment.version_digest for replica in self._replicas.values() if replica.assignment}
        self._preparation.keep(catalog.versions, in_use)
        remembered = {None, *placement.wanted(catalog)}
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
        if replica.state is ReplicaState.READY:
            self.metrics.attach_seconds.observe(replica.loaded_in_ms / 1000)
        if replica.state is ReplicaState.STOPPED:
            self._bury(replica, old)
        self._publish()
        self._wake.set()

    def _bury(self, replica: Replica, old: ReplicaState) -> None:
        del self._replicas[replica.replica_id]
        self._ended.append(row(replica, self.journal.node))
        if replica.ending:
            return
        self.metrics.failures.labels(state=old.value).inc()
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

    def _publish(self) -> None:
        node = self.journal.node
        rows = [row(replica, node) for replica in self._replicas.values()]
        self.table.publish([*rows, *self._cold_rows(), *self._ended])

    def _cold_rows(self) -> list[ReplicaReport]:
        """Rows of wanted replicas that have no process; each keeps its id and its moment as long as it is missing."""
        known, self._cold = self._cold, {}
        for vacancy in self._vacancies:
            key = (vacancy.assignment, sum(assignment == vacancy.assignment for assignment, _ in self._cold))
            old = known.get(key)
            replica_id, since_ms = (old.replica_id, old.since_ms) if old else (new_id(Kind.REPLICA), _now_ms())
            self._cold[key] = cold_row(vacancy, self.journal.node, replica_id, since_ms)
            if old is None or old.cause != vacancy.cause:
                _log.info("fleet.vacancy", deployment_id=vacancy.assignment.deployment_id, cause=vacancy.cause)
        return list(self._cold.values())

    # --- ending

    async def _drain_everything(self) -> None:
        """Drain what serves, stop the rest, and wait until nothing runs."""
        self._closing = True
        self._vacancies = ()
        for replica in list(self._replicas.values()):
            if not replica.ending:
                end: Callable[[str], None] = replica.drain if replica.state is ReplicaState.READY else replica.stop
                end("the fleet shuts down")
        if self._lives:
            await asyncio.wait(self._lives)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
