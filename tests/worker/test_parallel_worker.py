"""A worker whose model is on several processes: one replica to its callers, whatever becomes of a part of it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tiny_models import make_tiny_llama
from worker_process import SLOW_STEPS, TIMEOUT_S, WorkerProcess

from dataplane.contracts import failpoints
from dataplane.contracts.replica import MarkReady, Refused, ReplicaState, Sleep, Wake

RANK = "dataplane.model.parallel.rank_process"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("models") / "tiny", num_kv_heads=4, num_layers=4)


@pytest.fixture
def worker(request: pytest.FixtureRequest, short_dir: Path, model: Path) -> Iterator[WorkerProcess]:
    environment = {failpoints.ENVIRONMENT: SLOW_STEPS}
    process = WorkerProcess(short_dir, model, [*request.param, "--kv-memory-mb", "4"], environment)
    process.start()
    try:
        process.wait_ready()
        yield process
    finally:
        process.kill()


def processes(worker: WorkerProcess) -> list[psutil.Process]:
    return [worker.child("dataplane.worker.engine_process"), *ranks(worker)]


def ranks(worker: WorkerProcess) -> list[psutil.Process]:
    children = psutil.Process(worker.process.pid).children(recursive=True)
    return [child for child in children if RANK in child.cmdline()]


def ask(worker: WorkerProcess) -> str:
    body = {"model": worker.name, "prompt": "tell me", "max_tokens": 4, "temperature": 0, "ignore_eos": True}
    with worker.trusted_client() as client:
        answer: dict[str, Any] = client.post("/v1/completions", json=body).json()
    return str(answer["choices"][0]["text"])


def put_to_sleep(worker: WorkerProcess) -> None:
    while isinstance(worker.control(Sleep()), Refused):  # a request ends a moment after its caller has the answer
        assert worker.status().state is ReplicaState.READY


@pytest.mark.parametrize("worker", [["--tensor-parallel", "2"]], indirect=True, ids=["tensor"])
def test_it_listens_to_nobody_else_sleeps_and_wakes_and_ends_with_an_error_when_a_rank_is_killed(
    worker: WorkerProcess,
) -> None:
    listening = [
        connection.laddr.ip
        for process in processes(worker)
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert listening
    assert set(listening) == {"127.0.0.1"}
    assert "2 x 1 ranks" in worker.status().kernels

    before = ask(worker)
    put_to_sleep(worker)
    worker.control(Wake())
    assert ask(worker) == before
    worker.control(MarkReady())

    body = {"model": worker.name, "prompt": "go on", "max_tokens": 400, "stream": True, "ignore_eos": True}
    (rank,) = ranks(worker)
    with worker.trusted_client(TIMEOUT_S) as client, client.stream("POST", "/v1/completions", json=body) as stream:
        events = (json.loads(line[6:]) for line in stream.iter_lines() if line.startswith("data: {"))
        assert next(events)["choices"]
        rank.kill()
        *_, last = events
    assert last["error"]["code"] == "replica_lost"
    assert worker.wait() == 70


@pytest.mark.slow
@pytest.mark.parametrize(
    "worker",
    [["--pipeline-parallel", "2"], ["--tensor-parallel", "2", "--pipeline-parallel", "2"]],
    indirect=True,
    ids=["pipeline", "both"],
)
def test_all_of_its_processes_end_with_it(worker: WorkerProcess) -> None:
    ask(worker)
    children = processes(worker)
    assert worker.stop() == 0
    _, left = psutil.wait_procs(children, TIMEOUT_S)
    assert not left
