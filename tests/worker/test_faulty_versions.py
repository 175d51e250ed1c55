"""What a version does that a test has made faulty, as far as its callers see it: on a real engine and model."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from worker_process import WorkerProcess

from dataplane.contracts import failpoints, headers, ids
from dataplane.contracts.catalog import EngineSettings
from dataplane.contracts.generation import FromEngine, LoadModel, SequenceDelta, StepDone, Submit
from dataplane.contracts.replica import Attach, MarkReady, ReplicaState
from dataplane.contracts.sampling import SamplingParams
from dataplane.contracts.usage import Outcome, RecordKind
from dataplane.worker.engine_process import LoadedEngine, Stopwatch
from dataplane.worker.engine_setup import set_up


class Replica:
    """An engine process without the process: what goes in, and what came out by request."""

    def __init__(self, model: Path, runtime_dir: Path) -> None:
        request = LoadModel(
            model_dir=str(model),
            runtime_dir=str(runtime_dir),
            version_digest="",
            engine=EngineSettings(kv_memory_mb=1, max_model_len=128),
            tenants={},
            salt_secret=b"salt",
        )
        setup = set_up(request, lambda *_: None)
        stopwatch = Stopwatch(setup.runner)
        self._loaded = LoadedEngine(
            self, setup.make_engine(stopwatch), stopwatch, setup.runner.pool, setup.make_masks()
        )  # type: ignore[arg-type]
        self.tokens: dict[str, int] = {}
        self.ends: dict[str, SequenceDelta] = {}

    def send(self, message: FromEngine) -> None:
        assert isinstance(message, StepDone)
        for delta in message.deltas:
            self.tokens[delta.request_id] = self.tokens.get(delta.request_id, 0) + len(delta.token_ids)
            if delta.finish_reason is not None:
                self.ends[delta.request_id] = delta

    def serve(self, count: int, **sampling: int) -> list[str]:
        """Answer ``count`` requests at once; return why each ended: its error code or finish reason."""
        names = [f"r{len(self.ends) + number}" for number in range(count)]
        for number, name in enumerate(names):
            parameters = SamplingParams(**({"max_tokens": 12, "temperature": 0, "min_tokens": 0} | sampling))
            self._loaded.take(Submit(name, "t", [5 + number, 6, 7], parameters))
        while self._loaded.has_work:
            self._loaded.step()
        return [self.ends[name].error_code or str(self.ends[name].finish_reason) for name in names]


@pytest.fixture
def replica(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Replica:
    for name in ("_armed", "_hits", "_acts"):
        monkeypatch.setattr(failpoints, name, {})
    return Replica(tiny_model, tmp_path_factory.getbasetemp() / "faulty-runtime")


def test_every_third_request_fails_by_an_exception_and_its_neighbours_do_not(replica: Replica) -> None:
    healthy = replica.serve(6)
    failpoints.arm("engine.row=raise%3")
    sick = replica.serve(6)
    assert [sick[2], sick[5]] == ["request_failed"] * 2
    assert [sick[number] for number in (0, 1, 3, 4)] == [healthy[number] for number in (0, 1, 3, 4)]


def test_logits_that_are_no_numbers_fail_their_request_by_name_and_no_token_is_drawn(replica: Replica) -> None:
    failpoints.arm("engine.logits=nan@2+")
    first, *others = replica.serve(4)
    assert first in ("length", "stop")
    assert others == ["logits_not_finite"] * 3
    assert [replica.tokens[name] for name in ("r1", "r2", "r3")] == [0, 0, 0]
    assert "not finite" in replica.ends["r1"].error_message


def test_truncated_answers_stop_after_their_few_tokens_and_the_least_that_was_asked_for(replica: Replica) -> None:
    replica.serve(2)
    long_enough = [name for name, tokens in replica.tokens.items() if tokens > 4]
    assert long_enough  # else nothing would be cut
    failpoints.arm("engine.logits=truncate:3%1")
    assert replica.serve(2) == ["stop", "stop"]
    assert [replica.tokens[name] for name in ("r2", "r3")] == [4, 4]  # the end itself is the fourth
    replica.serve(1, min_tokens=6)
    assert replica.tokens["r4"] == 7


def test_slow_steps_are_slow_for_every_request(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(failpoints.time, "sleep", slept.append)
    failpoints.arm("engine.step=delay:80@3+")
    replica.serve(2, max_tokens=6, min_tokens=6)
    assert slept == [0.08] * 4


@pytest.fixture
def warm(short_dir: Path) -> Iterator[WorkerProcess]:
    environment = {failpoints.FILE_ENVIRONMENT: str(short_dir / "failpoints")}
    process = WorkerProcess(short_dir, None, ["--replica-id", "rep_test"], environment)
    process.start()
    try:
        process.wait_ready()
        process.wait_status(lambda status: status.state is ReplicaState.WARM_IDLE)
        yield process
    finally:
        process.kill()


def test_one_version_is_faulty_after_the_generation_that_verifies_it(warm: WorkerProcess, tiny_model: Path) -> None:
    points = "ver_other: engine.step=kill\nver_bad: engine.logits=nan@2+, engine.row=raise@3\n"
    (warm.folder / "failpoints").write_text(points)
    warm.control(
        Attach(
            deployment_id="dep_a",
            version_id="ver_bad",
            version_digest="",
            model_dir=str(tiny_model),
            runtime_dir=str(warm.folder / "runtime"),
            served_name="chat",
            engine=EngineSettings(kv_memory_mb=1, max_model_len=512),
            tenants={},
            salt_secret=b"salt",
        )
    )
    warm.wait_status(lambda status: status.state is ReplicaState.WARMING)
    body = {"model": "chat", "prompt": "Hello", "max_tokens": 3, "temperature": 0, "ignore_eos": True}
    names = {headers.DEPLOYMENT: "dep_a", headers.VERSION: "ver_bad", headers.TENANT: "ten_a"}
    with warm.trusted_client() as client:
        assert client.post("/v1/completions", json=body, headers=names).status_code == 200
        warm.control(MarkReady())
        for code in ("logits_not_finite", "request_failed"):
            request_id = ids.new_id(ids.Kind.REQUEST)
            answer = client.post("/v1/completions", json=body, headers=names | {headers.REQUEST_ID: request_id})
            assert (answer.status_code, answer.json()["error"]["code"]) == (500, code)
            final = warm.wait_records(request_id, RecordKind.FINAL)[-1]
            assert (final.outcome, final.error_code, final.completion_tokens) == (Outcome.FAILED, code, 0)
            assert final.phases is not None
            assert final.phases.decode_ms == 0
    assert warm.status().state is ReplicaState.READY  # what failed were its requests
