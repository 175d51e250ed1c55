"""What a worker writes to its spool, through crashes of either process."""

import json
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from worker_process import SLOW_STEPS, TIMEOUT_S, WorkerProcess

from dataplane.contracts import failpoints, headers, ids
from dataplane.contracts.replica import AbortRequest
from dataplane.contracts.usage import Outcome, Phases, RecordKind, Source, UsageRecord


def from_gateway(request_id: str, **more: str) -> dict[str, str]:
    return {
        headers.REQUEST_ID: request_id,
        headers.TENANT: "ten_acme",
        headers.ATTEMPT: "1",
        headers.KEY: "key_a",
        headers.ARM: "stable",
        headers.METER: "1",
    } | more


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": "Once upon", "max_tokens": 100, "temperature": 0, "ignore_eos": True} | fields


@pytest.fixture
def request_id() -> str:
    return ids.new_id(ids.Kind.REQUEST)


@pytest.fixture
def own_worker(short_dir: Path, tiny_model: Path, request: pytest.FixtureRequest) -> Iterator[WorkerProcess]:
    """A worker that the test may crash; the parameter arms failpoints."""
    environment = {failpoints.ENVIRONMENT: request.param} if hasattr(request, "param") else {}
    with WorkerProcess(short_dir, tiny_model, environment=environment) as process:
        yield process


@pytest.fixture(scope="module")
def slow_worker(tiny_model: Path) -> Iterator[WorkerProcess]:
    """A worker whose long answers are not over when the test comes to what should end them."""
    folder = Path(tempfile.mkdtemp(prefix="pgd-", dir="/tmp"))
    with WorkerProcess(folder, tiny_model, environment={failpoints.ENVIRONMENT: SLOW_STEPS}) as process:
        yield process
    shutil.rmtree(folder, ignore_errors=True)


def check_life(records: list[UsageRecord], *, complete: bool = True) -> None:
    """ADMIT first, then growing PROGRESS, at most one FINAL at the end, numbered without a gap."""
    assert [record.sequence for record in records] == list(range(len(records)))
    assert records[0].kind is RecordKind.ADMIT
    assert all(record.kind is RecordKind.PROGRESS for record in records[1:-1])
    assert (records[-1].kind is RecordKind.FINAL) is complete
    counts = [record.completion_tokens for record in records]
    assert counts == sorted(counts)
    assert all(record.source is Source.REPLICA and record.tenant_id == "ten_acme" for record in records)


def meter(text: str) -> list[tuple[int, int, int]]:
    """The counts before each event: completion, prompt and cached tokens."""
    counts = []
    for event in filter(None, text.split("\n\n")):
        comment, _, data = event.partition("\n")
        assert data.startswith("data: ")
        fields = dict(part.split("=") for part in comment.removeprefix(": ").split(" "))
        counts.append((int(fields["t"]), int(fields["p"]), int(fields["c"])))
    return counts


def test_a_billed_stream_leaves_admit_progress_and_final_and_meters_every_event(
    worker: WorkerProcess, request_id: str
) -> None:
    with worker.trusted_client() as client:
        fields = from_gateway(request_id, **{headers.FORCED: "1"})
        answer = client.post("/v1/completions", json=body(stream=True), headers=fields)
    assert answer.headers[headers.PUBLIC_REQUEST_ID] == request_id
    counts = meter(answer.text)
    assert [count[0] for count in counts] == sorted(count[0] for count in counts)
    records = worker.wait_records(request_id, RecordKind.FINAL)
    check_life(records)
    assert all(record.forced for record in records)
    assert len(records) >= 2 + 3  # 100 tokens at 32 a record
    final = records[-1]
    assert (final.completion_tokens, final.prompt_tokens, final.cached_tokens) == counts[-1]
    assert final.completion_tokens == 100
    assert (final.outcome, final.stream, final.endpoint) == (Outcome.LENGTH, True, "completions")
    assert final.phases is not None
    assert final.duration_ms is not None
    known = {name for name in Phases.__struct_fields__ if getattr(final.phases, name) is not None}
    assert known == set(Phases.__struct_fields__) - {"auth_ms", "admission_ms", "cold_ms"}  # those are the gateway's
    assert (final.queue_ms or 0) + (final.phases.decode_ms or 0) <= final.duration_ms + 2  # three roundings
    assert records[0].prompt_tokens == final.prompt_tokens


def test_usage_that_is_told_is_usage_that_is_billed_when_a_stop_string_cuts(
    worker: WorkerProcess, request_id: str
) -> None:
    with worker.trusted_client() as client:
        text = client.post("/v1/completions", json=body()).json()["choices"][0]["text"]
        stop = next(character for character in text[10:] if character != "\ufffd")
        answer = client.post("/v1/completions", json=body(stop=stop), headers=from_gateway(request_id)).json()
    final = worker.wait_records(request_id, RecordKind.FINAL)[-1]
    assert final.outcome is Outcome.STOP
    assert final.completion_tokens == answer["usage"]["completion_tokens"]
    assert final.phases is not None
    assert final.phases.kv_blocks


@pytest.mark.parametrize("missing", [headers.REQUEST_ID, headers.TENANT])
def test_what_nobody_pays_for_leaves_no_record(worker: WorkerProcess, request_id: str, missing: str) -> None:
    known = len(worker.records())
    fields = {name: value for name, value in from_gateway(request_id).items() if name != missing}
    with worker.trusted_client() as client:
        assert client.post("/v1/completions", json=body(max_tokens=2), headers=fields).status_code == 200
    assert len(worker.records()) == known


def test_a_request_that_is_refused_before_admission_leaves_no_record(worker: WorkerProcess, request_id: str) -> None:
    with worker.trusted_client() as client:
        refused = client.post("/v1/completions", json=body(n=99), headers=from_gateway(request_id))
    assert refused.status_code == 400
    assert refused.json()["error"]["request_id"] == request_id
    assert worker.records(request_id) == []


def test_a_caller_that_leaves_is_billed_for_what_was_generated(slow_worker: WorkerProcess, request_id: str) -> None:
    with (
        slow_worker.trusted_client() as client,
        client.stream(
            "POST", "/v1/completions", json=body(stream=True, max_tokens=1900), headers=from_gateway(request_id)
        ) as stream,
    ):
        lines = stream.iter_lines()
        seen = [next(lines) for _ in range(9)]
    delivered = meter("\n".join(seen))[-1][0]
    records = slow_worker.wait_records(request_id, RecordKind.FINAL)
    check_life(records)
    assert records[-1].outcome is Outcome.ABORTED
    assert delivered <= records[-1].completion_tokens < 1900


def test_two_attempts_of_one_request_are_counted_apart(worker: WorkerProcess, request_id: str) -> None:
    with worker.trusted_client() as client:
        for attempt in ("1", "2"):
            fields = from_gateway(request_id, **{headers.ATTEMPT: attempt})
            client.post("/v1/completions", json=body(max_tokens=3), headers=fields)
    worker.wait_records(request_id, RecordKind.FINAL, count=2)
    assert sorted(record.attempt for record in worker.records(request_id)) == [1, 1, 2, 2]


def test_the_fleet_can_end_one_request(slow_worker: WorkerProcess, request_id: str) -> None:
    with (
        slow_worker.trusted_client() as client,
        client.stream(
            "POST", "/v1/completions", json=body(stream=True, max_tokens=1900), headers=from_gateway(request_id)
        ) as stream,
    ):
        lines = stream.iter_lines()
        next(lines)
        slow_worker.control(AbortRequest(request_id=request_id))
        last = [line for line in lines if line.startswith("data: ")][-1]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "request_failed"
    assert slow_worker.wait_records(request_id, RecordKind.FINAL)[-1].error_code == "request_failed"


def test_a_request_without_a_token_in_time_is_a_504_that_says_why_and_costs_nothing(
    slow_worker: WorkerProcess, request_id: str
) -> None:
    """The engine's next step begins later than it may wait."""
    asked = from_gateway(request_id, **{headers.QUEUE_WAIT_S: "0.010"})
    with slow_worker.trusted_client() as client:
        answer = client.post("/v1/completions", json=body(stream=True), headers=asked)
    assert answer.status_code == 504
    error = answer.json()["error"]
    assert error["code"] == "queue_timeout"
    assert "its turn among the tenants" in error["message"]
    final = slow_worker.wait_records(request_id, RecordKind.FINAL)[-1]
    assert (final.outcome, final.error_code, final.completion_tokens) == (Outcome.FAILED, "queue_timeout", 0)
    slow_worker.wait_status(lambda status: status.load is not None and status.load.owned_blocks == 0)


@pytest.mark.parametrize("own_worker", [SLOW_STEPS], indirect=True)
def test_a_killed_engine_gives_every_stream_an_error_event_and_every_request_its_final_record(
    own_worker: WorkerProcess,
) -> None:
    streams = [ids.new_id(ids.Kind.REQUEST) for _ in range(3)]
    with own_worker.trusted_client() as client:
        open_streams = [
            client.stream(
                "POST", "/v1/completions", json=body(stream=True, max_tokens=2000), headers=from_gateway(name)
            )
            for name in streams
        ]
        lines = [stream.__enter__().iter_lines() for stream in open_streams]
        seen = [[next(line) for _ in range(5)] for line in lines]
        own_worker.child("dataplane.worker.engine_process").kill()
        for stream, line, before in zip(open_streams, lines, seen, strict=True):
            received = [*before, *line]
            data = [text.removeprefix("data: ") for text in received if text.startswith("data: ")]
            error = json.loads(data[-1])["error"]
            assert error["code"] == "replica_lost"
            assert "[DONE]" not in data
            stream.__exit__(None, None, None)
    assert own_worker.wait() == 70
    for name in streams:
        records = own_worker.records(name)
        check_life(records)
        assert (records[-1].outcome, records[-1].error_code) == (Outcome.FAILED, "replica_lost")
        assert records[-1].completion_tokens >= 1


@pytest.mark.parametrize("own_worker", ["worker.admitted=kill"], indirect=True)
def test_a_crash_right_after_admission_leaves_the_admission(own_worker: WorkerProcess, request_id: str) -> None:
    engine = own_worker.child("dataplane.worker.engine_process")
    with own_worker.trusted_client() as client, pytest.raises(httpx.TransportError):
        client.post("/v1/completions", json=body(), headers=from_gateway(request_id))
    own_worker.wait()
    engine.wait(timeout=TIMEOUT_S)  # no child outlives its server
    records = own_worker.records(request_id)
    assert [record.kind for record in records] == [RecordKind.ADMIT]
    assert records[0].prompt_tokens > 0


@pytest.mark.parametrize("own_worker", ["worker.finishing=kill, engine.step=stop@101"], indirect=True)
def test_a_crash_before_the_last_word_costs_at_most_what_came_after_the_last_progress(
    own_worker: WorkerProcess, request_id: str
) -> None:
    with own_worker.trusted_client() as client, ThreadPoolExecutor(1) as calls:
        answer = calls.submit(client.post, "/v1/completions", json=body(), headers=from_gateway(request_id))
        own_worker.wait_stopped("dataplane.worker.engine_process")
        own_worker.wait_records(request_id, RecordKind.PROGRESS, 3)  # what waits for the disk would be lost, too
        own_worker.child("dataplane.worker.engine_process").resume()
        with pytest.raises(httpx.TransportError):
            answer.result()
    own_worker.wait()
    records = own_worker.records(request_id)
    check_life(records, complete=False)
    assert 100 - 32 <= records[-1].completion_tokens <= 100


def test_an_engine_that_hangs_makes_the_worker_unhealthy_though_it_is_alive(short_dir: Path, tiny_model: Path) -> None:
    environment = {failpoints.ENVIRONMENT: "engine.step=stop@30"}
    with WorkerProcess(short_dir, tiny_model, ["--stall-seconds", "0.3"], environment) as process:
        with process.trusted_client() as client:
            stream = client.stream("POST", "/v1/completions", json=body(stream=True, max_tokens=500))
            with stream as answer:
                lines = answer.iter_lines()
                next(lines)
                process.wait_stopped("dataplane.worker.engine_process")
                process.wait_health(503)
                health = client.get("/health").json()
                assert health["pending"] == 1
                assert health["state"] == "ready"
                assert client.get("/health").json()["progress"] == health["progress"]
        process.kill()
