import socket
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from dataplane.contracts.catalog import Share
from dataplane.contracts.generation import (
    AbortSequence,
    CountService,
    FinishReason,
    FromEngine,
    SequenceDelta,
    SetTenants,
    StepDone,
    Submit,
    TenantsSet,
)
from dataplane.contracts.leases import Lease
from dataplane.contracts.sampling import SamplingParams
from dataplane.engine.config import EngineConfig
from dataplane.engine.engine import Engine
from dataplane.engine.runner import Row
from dataplane.worker.engine_process import Channel, LoadedEngine, ServerGone, Stopwatch
from dataplane.worker.masks import Masks


class Counting:
    """Draws 7 for every sequence."""

    def execute(self, rows: Sequence[Row]) -> list[int | None]:
        return [7 if row.sample else None for row in rows]


class Recorder:
    def __init__(self) -> None:
        self.sent: list[StepDone] = []
        self.set: list[TenantsSet] = []

    def send(self, message: FromEngine) -> None:
        if isinstance(message, TenantsSet):
            self.set.append(message)
            return
        assert isinstance(message, StepDone)
        self.sent.append(message)

    @property
    def deltas(self) -> list[SequenceDelta]:
        return [delta for step in self.sent for delta in step.deltas]


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def loaded(recorder: Recorder) -> LoadedEngine:
    stopwatch = Stopwatch(Counting())
    config = EngineConfig(num_blocks=16, max_model_len=64, queue_limit_per_tenant=2)
    engine = Engine(config, stopwatch, {}, salt_secret=b"s", version_digest="v", eos_token_ids=(2,))
    return LoadedEngine(recorder, engine, stopwatch, None, Masks(Path(), 0, ()))  # type: ignore[arg-type]


def submit(request_id: str, max_tokens: int = 40) -> Submit:
    sampling = SamplingParams(max_tokens=max_tokens)
    return Submit(request_id=request_id, tenant_id="t", prompt_token_ids=[5, 6, 7], sampling=sampling)


@pytest.mark.parametrize("steps_before", [0, 1, 5])
def test_an_aborted_sequence_is_free_in_the_next_report(
    loaded: LoadedEngine, recorder: Recorder, steps_before: int
) -> None:
    loaded.take(submit("a"))
    for _ in range(steps_before):
        loaded.step()
    loaded.take(AbortSequence(request_id="a"))
    loaded.step()
    load = recorder.sent[-1].load
    assert load.owned_blocks == load.num_running == load.num_waiting == 0
    assert load.free_blocks + load.cached_blocks == load.total_blocks
    assert not loaded.has_work


def test_a_refused_sequence_is_reported_though_nothing_runs(loaded: LoadedEngine, recorder: Recorder) -> None:
    loaded.take(submit("a", max_tokens=500))
    loaded.step()
    assert [(delta.finish_reason, delta.error_code) for delta in recorder.deltas] == [
        (FinishReason.ERROR, "context_length_exceeded")
    ]


def test_phases_come_with_the_first_token_and_with_the_end(loaded: LoadedEngine, recorder: Recorder) -> None:
    loaded.take(submit("a", max_tokens=3))
    while loaded.has_work:
        loaded.step()
    assert [delta.phases is not None for delta in recorder.deltas] == [True, False, True]


def test_an_idle_engine_reports_tenants_and_then_says_nothing(loaded: LoadedEngine, recorder: Recorder) -> None:
    loaded.take(submit("a", max_tokens=1))
    loaded.step()
    assert recorder.sent[-1].tenants is not None
    reports = len(recorder.sent)
    loaded.step()
    assert len(recorder.sent) == reports


def test_shares_are_acknowledged_once_they_are_in_force_and_before_any_step(
    loaded: LoadedEngine, recorder: Recorder
) -> None:
    loaded.take(SetTenants({"t": Share(cap_tokens=64)}, {"t": Lease(0, 3)}, 9))
    [told] = recorder.set
    assert told.number == 9
    assert [(tenant.tenant_id, tenant.cap_blocks) for tenant in told.tenants] == [("t", 3)]
    loaded.take(SetTenants({"t": Share(guarantee_tokens=10**6)}, number=10))
    assert recorder.set == [told], "what the pool cannot keep is not in force"


def test_an_engine_that_waits_for_a_lease_rests_until_one_comes(loaded: LoadedEngine, recorder: Recorder) -> None:
    assert loaded.wait_s is None
    loaded.take(SetTenants({"t": Share(cap_tokens=64)}, {"t": Lease(0, 0)}, 1))
    loaded.take(submit("a", max_tokens=2))
    assert loaded.wait_s == 0
    loaded.step()
    assert loaded.wait_s > 0
    loaded.take(SetTenants({"t": Share(cap_tokens=64)}, {"t": Lease(0, 2)}, 2))
    loaded.step()
    assert loaded.wait_s == 0
    while loaded.has_work:
        loaded.step()
    assert [delta.token_ids for delta in recorder.deltas] == [[7], [7]]
    assert loaded.wait_s is None


def test_service_of_other_replicas_reaches_the_counters(loaded: LoadedEngine, recorder: Recorder) -> None:
    loaded.take(SetTenants({"t": Share(), "u": Share(weight=2)}))
    loaded.take(CountService({"t": 10.0, "u": 10.0}))
    loaded.step()
    assert {tenant.tenant_id: tenant.service for tenant in recorder.sent[-1].tenants} == {"t": 10.0, "u": 5.0}


def test_waiting_for_messages_ends_in_time_or_when_the_server_is_gone() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert Channel(theirs).receive(wait_s=0.001) == []
        threading.Thread(target=ours.close).start()
        with pytest.raises(ServerGone):
            Channel(theirs).receive(wait_s=None)
