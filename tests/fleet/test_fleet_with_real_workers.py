"""The fleet and the real worker on a tiny random model: what scripted workers cannot prove."""

import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from control_double import ControlDouble
from fleet_harness import FleetProcess, Home, deployment, processes_of, ready, rows
from tiny_models import make_tiny_llama

from dataplane.contracts.catalog import EngineSettings, Share
from dataplane.contracts.replica import ReplicaReport, ReplicaState
from stack.redis import Redis

REAL = (sys.executable, "-m", "dataplane.fleet")
SMALL = EngineSettings(kv_memory_mb=8, max_num_seqs=4)


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    with tempfile.TemporaryDirectory(prefix="pgd-", dir="/tmp") as folder:
        yield Home(Path(folder))


@pytest.fixture(scope="module")
def fleet(home: Home, redis_server: Redis) -> Iterator[FleetProcess]:
    with ControlDouble() as control, FleetProcess(home, redis_server.url, control, REAL, PAGODA_HANG_S="4") as process:
        yield process
    assert processes_of(home) == []


def tiny_files(home: Home) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in make_tiny_llama(home.path / "model").iterdir()}


def generate(row: ReplicaReport) -> str:
    """Call a replica as a gateway does."""
    with httpx.Client(transport=httpx.HTTPTransport(uds=row.socket), base_url="http://replica", timeout=60) as client:
        answer = client.post(
            "/v1/completions",
            json={"model": "tiny", "prompt": "once", "max_tokens": 8, "temperature": 0, "ignore_eos": True},
            headers={"x-pagoda-deployment": row.deployment_id, "x-pagoda-tenant": "acme"},
        )
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["text"]


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_real_replicas_serve_hang_die_and_come_back(home: Home, fleet: FleetProcess) -> None:
    version = home.version("ver-1", tiny_files(home))
    chat = deployment("tiny", version, engine=SMALL, grants={"acme": Share(guarantee_tokens=64)})
    fleet.publish(chat, versions=[version])
    fleet.wait(lambda table: ready(table) != [])
    (first,) = ready(fleet.table())
    assert first.kernels
    assert first.context_tokens == 512
    text = generate(first)
    table = fleet.wait(lambda table: ready(table)[0].load.generation_tokens >= 8)
    assert [tenant.tenant_id for tenant in ready(table)[0].tenants if tenant.guarantee_blocks] == ["acme"]

    fleet.wait(lambda table: rows(table, state=ReplicaState.WARM_IDLE) != [])
    family = psutil.Process(first.pid).children(recursive=True)
    os.kill(first.pid, signal.SIGKILL)
    table = fleet.wait(lambda table: ready(table) != [] and ready(table)[0].pid != first.pid)
    (second,) = ready(table)
    assert generate(second) == text
    assert not any(is_alive(process) for process in family)

    (engine,) = [p for p in psutil.Process(second.pid).children() if "dataplane.worker.engine_process" in p.cmdline()]
    engine.suspend()  # its server still answers
    # The worker is killed while this waits for its first token: no answer, not even a clean end.
    with pytest.raises(httpx.RemoteProtocolError):
        generate(second)
    table = fleet.wait(lambda table: rows(table, pid=second.pid, state=ReplicaState.STOPPED) != [])
    assert "no progress with 1 requests pending" in rows(table, pid=second.pid)[0].cause


def test_a_model_that_cannot_be_loaded_is_named_by_the_real_worker(home: Home, fleet: FleetProcess) -> None:
    version = home.version("ver-bad", tiny_files(home) | {"config.json": b"{}"})
    fleet.publish(deployment("bad", version, engine=SMALL), versions=[version])
    table = fleet.wait(lambda table: rows(table, version_id="ver-bad", state=ReplicaState.STOPPED) != [])
    assert "model_type" in rows(table, version_id="ver-bad", state=ReplicaState.STOPPED)[0].cause
