"""Starts a fleet as a process of its own, feeds it catalogs, and reads its table as a gateway does."""

import hashlib
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
import msgspec
import psutil
import redis
from control_double import SECRET, ControlDouble
from ports import free_port

from dataplane.contracts import catalog as contract
from dataplane.contracts.catalog import (
    Arm,
    Catalog,
    DeploymentEntry,
    EngineSettings,
    IdlePolicy,
    Limits,
    Share,
    TenantEntry,
    VersionEntry,
    VersionFile,
)
from dataplane.contracts.replica import Demand, ReplicaReport, ReplicaState, ReplicaTable
from dataplane.contracts.verdict import version_digest

_ON_FAKES = (sys.executable, str(Path(__file__).with_name("fleet_on_fakes.py")))
ON_FAKES, IMPATIENT = (*_ON_FAKES, "patient"), (*_ON_FAKES, "impatient")
_DEADLINE_S = 90.0
"""For a broken fleet, not for a slow machine."""
ROOT = Path(__file__).parent.parent.parent
BEARER = {"authorization": f"Bearer {SECRET}"}


class Home:
    """A state folder with a store."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def put(self, content: bytes) -> str:
        """Store a blob; return its digest."""
        digest = hashlib.sha256(content).hexdigest()
        self.blob(digest).parent.mkdir(parents=True, exist_ok=True)
        self.blob(digest).write_bytes(content)
        return digest

    def blob(self, digest: str) -> Path:
        return self.path / "store" / "sha256" / digest[:2] / digest

    def version(self, version_id: str, files: dict[str, bytes], owner: str = "acme") -> VersionEntry:
        """Store ``files`` and return the version they make."""
        entries = tuple(
            VersionFile(name=name, sha256=self.put(content), size_bytes=len(content)) for name, content in files.items()
        )
        return VersionEntry(
            id=version_id,
            tenant_id=owner,
            model="m",
            number=1,
            digest=version_digest(entries),
            files=entries,
            context_tokens=64,
            created_at_ms=0,
        )

    def fake(self, version_id: str, owner: str = "acme", **behaviour: object) -> VersionEntry:
        """A version whose scripted worker behaves so."""
        text = json.dumps(behaviour | {"name": version_id})
        return self.version(version_id, {"behaviour.json": text.encode(), "config.json": b"{}"}, owner)


def deployment(
    name: str,
    version: VersionEntry,
    *others: Arm,
    owner: str = "acme",
    count: int = 1,
    active: bool = True,
    grants: dict[str, Share] | None = None,
    engine: EngineSettings | None = None,
    idle: IdlePolicy | None = None,
) -> DeploymentEntry:
    return DeploymentEntry(
        id=f"dep-{name}",
        tenant_id=owner,
        name=name,
        active=active,
        arms=(Arm(version.id, 100 - sum(arm.weight for arm in others)), *others),
        grants={owner: Share()} if grants is None else grants,
        engine=engine or EngineSettings(),
        min_replicas=count,
        max_replicas=max(1, count),
        idle=idle or IdlePolicy(),
    )


class FleetProcess:
    """A running fleet. ``publish`` gives it a catalog; ``wait`` reads its table until a condition holds."""

    def __init__(
        self, home: Home, redis_url: str, control: ControlDouble, command: Sequence[str] = ON_FAKES, **environ: str
    ) -> None:
        self.home = home
        self.control = control
        self.port = free_port()
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", headers=BEARER, timeout=_DEADLINE_S)
        self.redis = redis.Redis.from_url(redis_url)
        self._command = command
        self.environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(home.path),
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "DATABASE_URL": "postgresql://not-for-workers/",
            "PAGODA_HOME": str(home.path),
            "REDIS_URL": redis_url,
            "PAGODA_CONTROL_URL": control.url,
            "PAGODA_INTERNAL_SECRET": SECRET,
            "PAGODA_CACHE_SALT_SECRET": "ab" * 32,
            "PAGODA_FLEET_PORT": str(self.port),
        } | environ
        self._process: subprocess.Popen[bytes] | None = None
        self.log = home.path / "fleet.log"
        self._known = contract.empty()
        self._demands = itertools.count(1)

    def __enter__(self) -> Self:
        self.redis.delete(contract.REDIS_KEY)
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.end()
        self.http.close()
        self.redis.delete(contract.REDIS_KEY)
        self.redis.close()
        if error is not None:
            sys.stderr.write(self.log.read_text())

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self._command, env=self.environ, stdout=log, stderr=log, cwd="/")
        deadline = time.monotonic() + _DEADLINE_S
        while True:
            try:
                self.http.get("/health")
            except httpx.TransportError:
                assert self._process.poll() is None, self.log.read_text()
                assert time.monotonic() < deadline, "the fleet does not answer"
                time.sleep(0.02)
            else:
                return

    def end(self) -> int:
        """SIGTERM, and the exit status; a fleet that cannot end fails the test."""
        assert self._process is not None
        if self._process.poll() is None:
            self._process.terminate()
        try:
            return self._process.wait(timeout=_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def publish(
        self, *deployments: DeploymentEntry, versions: Sequence[VersionEntry], tenants: Sequence[str] = ("acme", "evil")
    ) -> Catalog:
        """Publish as the control plane does: the key, then the delta; and behind the poll."""
        catalog = Catalog(
            number=self._known.number + 1,
            published_at_ms=time.time_ns() // 1_000_000,
            tenants={name: TenantEntry(id=name, name=name, active=True, limits=Limits()) for name in tenants},
            keys={},
            deployments={entry.id: entry for entry in deployments},
            versions={entry.id: entry for entry in versions},
        )
        self.control.catalog = catalog
        self.redis.set(contract.REDIS_KEY, contract.encode(catalog))
        self.redis.publish(contract.REDIS_CHANNEL, contract.encode(contract.diff(self._known, catalog)))
        self._known = catalog
        return catalog

    def table(self, **query: float) -> ReplicaTable:
        answer = self.http.get("/replicas", params=query)
        assert answer.status_code == 200, answer.text
        return msgspec.json.decode(answer.content, type=ReplicaTable)

    def call(self, gateway_id: str = "gateway", **waiting: int) -> None:
        """Say, as a gateway does, how many callers wait for which deployment, by its name."""
        demand = Demand(gateway_id, next(self._demands), {f"dep-{name}": count for name, count in waiting.items()})
        assert self.http.post("/demand", content=msgspec.json.encode(demand)).status_code == 204

    def wait(self, condition: Callable[[ReplicaTable], bool], timeout_s: float = _DEADLINE_S) -> ReplicaTable:
        """Follow the table by long polls until ``condition`` holds."""
        deadline = time.monotonic() + timeout_s
        table = self.table()
        while not condition(table):
            assert time.monotonic() < deadline, [msgspec.to_builtins(row) for row in table.replicas]
            table = self.table(after=table.number, wait_s=1)
        return table

    def wait_ready(self, count: int = 1, **fields: object) -> list[ReplicaReport]:
        """Wait until exactly ``count`` replicas with these fields are READY, and return their rows."""
        table = self.wait(lambda table: len(ready(table, **fields)) == count)
        return ready(table, **fields)

    def wait_called(self, name: str) -> ReplicaReport:
        """Have a caller wait for a deployment, its gateway say so again and again, and return the row that is READY."""

        def is_ready(table: ReplicaTable) -> bool:
            self.call(**{name: 1})
            return ready(table, deployment_id=f"dep-{name}") != []

        table = self.wait(is_ready)
        return ready(table, deployment_id=f"dep-{name}")[0]

    def wait_idle(self, count: int = 1) -> list[ReplicaReport]:
        return rows(
            self.wait(lambda table: len(rows(table, state=ReplicaState.WARM_IDLE)) == count),
            state=ReplicaState.WARM_IDLE,
        )


def rows(table: ReplicaTable, **fields: object) -> list[ReplicaReport]:
    return [row for row in table.replicas if all(getattr(row, name) == value for name, value in fields.items())]


def ready(table: ReplicaTable, **fields: object) -> list[ReplicaReport]:
    return rows(table, state=ReplicaState.READY, **fields)


def living(table: ReplicaTable) -> list[ReplicaState]:
    return [row.state for row in table.replicas if row.state is not ReplicaState.STOPPED]


def ask(row: ReplicaReport, method: str, path: str) -> dict:
    """Call a replica through its Unix socket."""
    with httpx.Client(
        transport=httpx.HTTPTransport(uds=row.socket), base_url="http://replica", timeout=_DEADLINE_S
    ) as client:
        return client.request(method, path).json()


def processes_of(home: Home) -> list[psutil.Process]:
    """Every process that runs for this state folder, the fleet's grandchildren included."""
    found = []
    for process in psutil.process_iter():
        try:
            if (
                process.environ().get("PAGODA_FLEET_HOME") == str(home.path)
                and process.status() != psutil.STATUS_ZOMBIE
            ):
                found.append(process)
        except psutil.Error:
            continue
    return found
