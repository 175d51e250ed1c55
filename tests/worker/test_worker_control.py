"""A worker's life on its control socket, and what `--tenants` does."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from worker_process import SLOW_STEPS, WorkerProcess

from dataplane.contracts import failpoints, headers
from dataplane.contracts.catalog import EngineSettings, Share
from dataplane.contracts.replica import (
    Attach,
    Drain,
    Dump,
    GetDump,
    MarkReady,
    Refused,
    ReplicaState,
    SetShares,
    Status,
)


@pytest.fixture
def warm(short_dir: Path, request: pytest.FixtureRequest) -> Iterator[WorkerProcess]:
    """A worker that waits for a model; the parameter arms failpoints."""
    environment = {failpoints.ENVIRONMENT: request.param} if hasattr(request, "param") else {}
    process = WorkerProcess(short_dir, None, ["--replica-id", "rep_test"], environment)
    process.start()
    try:
        process.wait_ready()
        process.wait_status(lambda status: status.state is ReplicaState.WARM_IDLE)
        yield process
    finally:
        process.kill()


def attach(worker: WorkerProcess, model: Path, **more: Any) -> Attach:
    fields: dict[str, Any] = {
        "deployment_id": "dep_a",
        "version_id": "ver_a",
        "version_digest": "",
        "model_dir": str(model),
        "runtime_dir": str(worker.folder / "runtime"),
        "served_name": "chat",
        "engine": EngineSettings(kv_memory_mb=1, max_model_len=512),
        "tenants": {"ten_a": Share(guarantee_tokens=64)},
        "salt_secret": b"salt",
    }
    return Attach(**(fields | more))


def ask(worker: WorkerProcess, **fields: Any) -> Any:
    names = {headers.DEPLOYMENT: fields.pop("deployment", "dep_a"), headers.VERSION: fields.pop("version", "ver_a")}
    body = {"model": "acme/chat", "prompt": "Hello", "max_tokens": 2, "temperature": 0, "ignore_eos": True}
    with worker.trusted_client() as client:
        return client.post("/v1/completions", json=body | fields, headers=names)


def state(worker: WorkerProcess) -> ReplicaState:
    return worker.status().state


def test_a_replica_is_attached_verified_drained_and_ends(warm: WorkerProcess, tiny_model: Path) -> None:
    assert ask(warm).json()["error"]["code"] == "model_cold"
    assert isinstance(warm.control(MarkReady()), Refused)
    first = warm.control(attach(warm, tiny_model))
    assert isinstance(first, Status)
    assert first.state is ReplicaState.LOADING
    assert isinstance(warm.control(attach(warm, tiny_model)), Refused)
    loaded = warm.wait_status(lambda status: status.state is ReplicaState.WARMING)
    assert (loaded.replica_id, loaded.context_tokens) == ("rep_test", 512)
    assert loaded.kernels
    assert ask(warm).status_code == 200  # the generation that verifies it
    answer = warm.control(MarkReady())
    assert isinstance(answer, Status)
    assert answer.state is ReplicaState.READY
    assert answer.progress > loaded.progress

    served = ask(warm)
    assert served.json()["model"] == "acme/chat"  # the gateway resolved the name; the caller's own is echoed
    assert ask(warm, deployment="dep_b").json()["error"]["code"] == "model_cold"
    assert ask(warm, version="ver_b").json()["error"]["code"] == "model_cold"

    answers: list[Any] = []
    asking = threading.Thread(target=lambda: answers.append(ask(warm, max_tokens=40)))
    with warm.held():
        asking.start()
        warm.wait_status(lambda status: status.pending > 0)
        answer = warm.control(Drain(deadline_s=300))
        assert isinstance(answer, Status)
        assert answer.state is ReplicaState.DRAINING
        refused = ask(warm)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
        assert "retry-after" in refused.headers
    asking.join()
    assert answers[0].json()["usage"]["completion_tokens"] == 40
    assert warm.wait() == 0
    assert not warm.socket.exists()
    assert not warm.control_socket.exists()


def test_a_folder_that_cannot_be_loaded_is_named_in_the_cause(warm: WorkerProcess, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    warm.control(attach(warm, tmp_path))
    stopped = warm.wait_status(lambda status: status.state is ReplicaState.STOPPED)
    assert "mamba" in stopped.cause
    assert warm.wait() == 1


@pytest.mark.parametrize("warm", [SLOW_STEPS], indirect=True)
def test_shares_change_while_it_serves_and_what_runs_at_the_deadline_gets_an_error_event(
    warm: WorkerProcess, tiny_model: Path
) -> None:
    assert isinstance(warm.control(SetShares(tenants={})), Refused)
    warm.control(attach(warm, tiny_model, engine=EngineSettings(kv_memory_mb=4)))
    loaded = warm.wait_status(lambda status: status.state is ReplicaState.WARMING and bool(status.tenants))
    assert [(tenant.tenant_id, tenant.guarantee_blocks) for tenant in loaded.tenants] == [("ten_a", 8)]
    warm.control(MarkReady())
    assert isinstance(warm.control(SetShares(tenants={"ten_b": Share(cap_tokens=80, weight=3)})), Status)
    changed = warm.wait_status(lambda status: any(tenant.tenant_id == "ten_b" for tenant in status.tenants))
    (other,) = [tenant for tenant in changed.tenants if tenant.tenant_id == "ten_b"]
    assert (other.cap_blocks, other.weight) == (10, 3)
    refused = warm.control(SetShares(tenants={"ten_b": Share(guarantee_tokens=10**9)}))
    assert isinstance(refused, Refused)
    assert "guarantee" in refused.message

    body = {"model": "x", "prompt": "Hello", "max_tokens": 2000, "ignore_eos": True, "stream": True}
    with (
        warm.trusted_client() as client,
        client.stream("POST", "/v1/completions", json=body, headers={headers.DEPLOYMENT: "dep_a"}) as stream,
    ):
        lines = stream.iter_lines()
        next(lines)
        dump = warm.control(GetDump())
        assert isinstance(dump, Dump)
        assert [sequence["state"] for sequence in dump.sequences] == ["running"]
        warm.control(Drain(deadline_s=0))
        data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert json.loads(data[-1])["error"]["code"] == "shutting_down"
    assert warm.wait() == 0


def test_tenants_of_the_file_have_their_caps_and_others_the_whole_pool(short_dir: Path, tiny_model: Path) -> None:
    shares = {"acme": {"guarantee_tokens": 100, "cap_tokens": 100, "weight": 2}}
    (short_dir / "tenants.json").write_text(json.dumps(shares))
    arguments = ["--tenants", str(short_dir / "tenants.json"), "--trust-tenant-header", "--kv-memory-mb", "1"]
    with WorkerProcess(short_dir, tiny_model, arguments) as worker, worker.client() as client:

        def ask_as(tenant: str | None, **fields: Any) -> Any:
            body = {"model": "tiny", "prompt": "Hello", "max_tokens": 150, "temperature": 0, "ignore_eos": True}
            names = {headers.TENANT: tenant} if tenant else {}
            return client.post("/v1/completions", json=body | fields, headers=names)

        refused = ask_as("acme")
        assert refused.status_code == 400
        assert refused.json()["error"]["code"] == "request_too_large_for_budget"
        assert ask_as("evil").status_code == 200
        assert ask_as(None).status_code == 200
        filled = ask_as("acme", max_tokens=None).json()
        assert filled["usage"]["total_tokens"] == 100  # absent max_tokens fills the cap
        tenants = {tenant.tenant_id: tenant for tenant in worker.status().tenants}
        assert (tenants["acme"].cap_blocks, tenants["acme"].weight) == (13, 2)  # tokens round up to blocks of 8


@pytest.mark.parametrize(
    ("tenants", "words"),
    [
        ('{"acme": {"guarantee_tokens": 10000000}}', "guarantees add up"),
        ('{"acme": {"guarantee_tokens": 100}, "evil": {}}', "tenant evil: its longest request takes 2048 tokens"),
    ],
    ids=["the pool", "what the longest request needs"],
)
def test_guarantees_that_leave_too_little_refuse_the_start(
    short_dir: Path, tiny_model: Path, tenants: str, words: str
) -> None:
    (short_dir / "tenants.json").write_text(tenants)
    worker = WorkerProcess(
        short_dir, tiny_model, ["--tenants", str(short_dir / "tenants.json"), "--kv-memory-mb", "1"], alone=True
    )
    worker.start()
    assert worker.wait() == 1
    assert words in worker.log_path.read_text()
