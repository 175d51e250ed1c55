import socket
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from dataplane.contracts.generation import (
    AbortSequence,
    FinishReason,
    FromEngine,
    SequenceDelta,
    StepDone,
    Submit,
)
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

    def send(self, message: FromEngine) -> None:
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


def test_waiting_for_messages_ends_when_the_server_is_gone() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        threading.Thread(target=ours.close).start()
        with pytest.raises(ServerGone):
            Channel(theirs).receive(wait_s=None)
