"""Sleep and wake on the control socket of a real worker: what is given back, what stays, and what is refused."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_models import make_tiny_llama
from worker_process import TIMEOUT_S, WorkerProcess

from dataplane.contracts import headers
from dataplane.contracts.catalog import EngineSettings, Share
from dataplane.contracts.generation import PoolChanged, ReleasePool, RestorePool
from dataplane.contracts.replica import (
    Attach,
    ControlAnswer,
    ControlCall,
    MarkReady,
    Refused,
    ReplicaState,
    SetShares,
    Sleep,
    Status,
    Wake,
)
from dataplane.engine.config import EngineConfig
from dataplane.engine.engine import Engine
from dataplane.worker.doors import DEFAULT_TENANT
from dataplane.worker.engine_process import LoadedEngine, Stopwatch
from dataplane.worker.masks import Masks

MIB = 2**20
LONG_PROMPT = "q7" * 900
"""About 1,800 tokens, and 16 KiB of keys and values for each in the model below."""


@pytest.fixture(scope="module")
def wide_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Little to compute, much to remember."""
    folder = tmp_path_factory.mktemp("models") / "wide"
    return make_tiny_llama(folder, num_layers=8, num_kv_heads=4, head_dim=64, context_tokens=2048)


@pytest.fixture
def ready(short_dir: Path, wide_model: Path) -> Iterator[WorkerProcess]:
    """A worker that serves the model under the deployment ``dep_a``."""
    process = WorkerProcess(short_dir, None, ["--replica-id", "rep_test"])
    process.start()
    try:
        process.wait_ready()
        process.wait_status(lambda status: status.state is ReplicaState.WARM_IDLE)
        call = Attach(
            deployment_id="dep_a",
            version_id="ver_a",
            version_digest="",
            model_dir=str(wide_model),
            runtime_dir=str(wide_model.parent / "runtime"),
            served_name="chat",
            engine=EngineSettings(kv_memory_mb=40),
            tenants={},
            salt_secret=b"salt",
        )
        told(process, call)
        process.wait_status(lambda status: status.state is ReplicaState.WARMING)
        told(process, MarkReady())
        yield process
    finally:
        process.kill()


def told(worker: WorkerProcess, call: ControlCall) -> Status:
    answer = worker.control(call)
    assert isinstance(answer, Status), answer
    return answer


def put_to_sleep(worker: WorkerProcess) -> Status:
    """Say it as the fleet does, again when it is refused: a request ends a moment after its caller has the answer."""
    deadline = time.monotonic() + TIMEOUT_S
    while isinstance(answer := worker.control(Sleep()), Refused):
        assert time.monotonic() < deadline, answer
        time.sleep(0.01)
    assert isinstance(answer, Status), answer
    return answer


def ask(worker: WorkerProcess, **fields: Any) -> Any:
    body = {"model": "chat", "prompt": LONG_PROMPT, "max_tokens": 4, "temperature": 0, "ignore_eos": True}
    with worker.trusted_client() as client:
        return client.post("/v1/completions", json=body | fields, headers={headers.DEPLOYMENT: "dep_a"})


def test_asleep_the_kv_memory_is_given_back_and_the_weights_answer_the_same_after_waking(ready: WorkerProcess) -> None:
    before = ask(ready).json()
    awake = ready.status()
    assert awake.load is not None
    assert awake.load.cached_blocks > 200

    asleep = put_to_sleep(ready)
    assert asleep.state is ReplicaState.ASLEEP
    assert asleep.memory_bytes <= awake.memory_bytes - 24 * MIB
    refused = ask(ready)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "model_cold")
    assert isinstance(ready.control(Sleep()), Refused)
    assert isinstance(ready.control(MarkReady()), Refused)
    told(ready, SetShares(tenants={"ten_b": Share(cap_tokens=80)}))

    waking = told(ready, Wake())
    assert waking.state is ReplicaState.WARMING
    assert isinstance(ready.control(Wake()), Refused)
    after = ask(ready).json()
    assert after["choices"] == before["choices"]
    assert after["usage"]["prompt_tokens_details"]["cached_tokens"] == 0  # the memory is new: no prefix is known
    assert told(ready, MarkReady()).state is ReplicaState.READY
    again = ready.status()
    assert [tenant.cap_blocks for tenant in again.tenants if tenant.tenant_id == "ten_b"] == [10]
    assert ask(ready).json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    told(ready, SetShares(tenants={DEFAULT_TENANT: Share(cache_epoch=1)}))
    assert ask(ready).json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0  # nor after a change of the salt
    put_to_sleep(ready)
    assert ready.stop() == 0


def test_a_replica_does_not_fall_asleep_under_a_request_and_ends_when_its_engine_dies_asleep(
    ready: WorkerProcess,
) -> None:
    answers: list[Any] = []
    asking = threading.Thread(target=lambda: answers.append(ask(ready)))
    with ready.held():
        asking.start()
        ready.wait_status(lambda status: status.pending > 0)
        refused = ready.control(Sleep())
    asking.join()
    assert isinstance(refused, Refused)
    assert "1 requests are running" in refused.message
    assert answers[0].json()["usage"]["completion_tokens"] == 4

    put_to_sleep(ready)
    ready.child("dataplane.worker.engine_process").kill()
    assert ready.wait() == 70


class Recorder:
    def __init__(self) -> None:
        self.sent: list[ControlAnswer] = []

    def send(self, message: Any) -> None:
        self.sent.append(message)


class FullMachine:
    """A pool that cannot be made again."""

    released = False

    def release(self) -> None:
        self.released = True

    def restore(self) -> None:
        raise MemoryError("no memory for a KV pool of 16 blocks of 8 tokens")


def test_an_engine_whose_pool_cannot_be_made_again_says_why() -> None:
    recorder, pool, stopwatch = Recorder(), FullMachine(), Stopwatch(None)  # type: ignore[arg-type]
    config = EngineConfig(num_blocks=16, max_model_len=64)
    engine = Engine(config, stopwatch, {}, salt_secret=b"s", version_digest="v", eos_token_ids=(2,))
    loaded = LoadedEngine(recorder, engine, stopwatch, pool, Masks(Path(), 0, ()))  # type: ignore[arg-type]
    loaded.take(ReleasePool())
    loaded.take(RestorePool())
    assert pool.released
    assert recorder.sent == [PoolChanged(), PoolChanged(error="no memory for a KV pool of 16 blocks of 8 tokens")]
