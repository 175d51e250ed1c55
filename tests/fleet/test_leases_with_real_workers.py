"""Two real replicas and a share that both need: what scripted workers and models of replicas cannot prove."""

import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from control_double import ControlDouble
from fleet_harness import FleetProcess, Home, deployment, ready
from test_fleet_with_real_workers import REAL, tiny_files

from dataplane.contracts.catalog import EngineSettings, Share
from dataplane.contracts.replica import ReplicaReport, ReplicaTable
from stack.redis import Redis

pytestmark = pytest.mark.slow
BLOCK = 8


@pytest.fixture
def home() -> Iterator[Home]:
    with tempfile.TemporaryDirectory(prefix="pgd-", dir="/tmp") as folder:
        yield Home(Path(folder))


@pytest.fixture
def fleet(home: Home, redis_server: Redis) -> Iterator[FleetProcess]:
    with ControlDouble() as control, FleetProcess(home, redis_server.url, control, REAL) as process:
        yield process


class Callers:
    """Send one request after the other to a replica until told to stop; keep what they were answered."""

    def __init__(self, row: ReplicaReport, max_tokens: int, count: int = 1) -> None:
        self.answers: list[tuple[int, str | None]] = []
        self._row, self._max_tokens = row, max_tokens
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._call, daemon=True) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def _call(self) -> None:
        transport = httpx.HTTPTransport(uds=self._row.socket)
        with httpx.Client(transport=transport, base_url="http://replica", timeout=90) as client:
            while not self._stop.is_set():
                answer = client.post(
                    "/v1/completions",
                    json={"model": "tiny", "prompt": "once", "max_tokens": self._max_tokens, "ignore_eos": True},
                    headers={"x-pagoda-deployment": self._row.deployment_id, "x-pagoda-tenant": "acme"},
                )
                self.answers.append((answer.status_code, answer.json().get("error", {}).get("code")))

    def stop(self) -> list[tuple[int, str | None]]:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        return self.answers


def cap(row: ReplicaReport) -> int:
    return sum(tenant.cap_blocks for tenant in row.tenants if tenant.tenant_id == "acme")


def owned(row: ReplicaReport) -> int:
    return sum(tenant.owned_blocks + tenant.cached_blocks for tenant in row.tenants if tenant.tenant_id == "acme")


def test_a_share_follows_its_callers_and_a_lowered_one_is_obeyed(
    home: Home, fleet: FleetProcess, record_property: Callable[[str, object], None]
) -> None:
    version = home.version("ver-1", tiny_files(home))
    engine = EngineSettings(kv_memory_mb=8, max_num_seqs=8)

    def publish(cap_blocks: int) -> None:
        grants = {"acme": Share(cap_tokens=cap_blocks * BLOCK)}
        fleet.publish(deployment("tiny", version, engine=engine, grants=grants, count=2), versions=[version])

    def wait(condition: Callable[[ReplicaReport, ReplicaReport], bool]) -> None:
        def both(table: ReplicaTable) -> bool:
            rows = {row.replica_id: row for row in ready(table)}
            return len(rows) == 2 and condition(rows[here.replica_id], rows[there.replica_id])

        fleet.wait(both)

    publish(60)
    here, there = fleet.wait_ready(2)
    wait(lambda one, other: cap(one) == cap(other) == 30)
    many = Callers(here, max_tokens=100, count=8)  # 13 blocks each: four of them fill the share
    wait(lambda one, other: cap(one) >= 45 and cap(one) + cap(other) <= 60)
    few = Callers(there, max_tokens=100)
    wait(lambda one, other: len(few.answers) > 1 and cap(one) + cap(other) <= 60)
    lowered_at_s = time.monotonic()
    publish(30)
    wait(lambda one, other: cap(one) + cap(other) <= 30 and owned(one) + owned(other) <= 30)
    record_property("lowered_in_force_ms", round((time.monotonic() - lowered_at_s) * 1000))
    publish(60)
    wait(lambda one, other: 30 < cap(one) + cap(other) <= 60)
    assert {*many.stop(), *few.stop()} == {(200, None)}, "a request within the share was refused"
    wait(lambda one, other: cap(one) + cap(other) == 60)
