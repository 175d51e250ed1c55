"""What the label of a probe does on a replica that has work to do, or is told to sleep."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from worker_process import SLOW_STEPS, WorkerProcess

from dataplane.contracts import failpoints, headers, probes
from dataplane.contracts.replica import MarkReady, Refused, ReplicaState, Sleep, Status, Wake

PROBE = {headers.TENANT: probes.STRANGER, headers.PROBE: "1"}
CALL = {headers.TENANT: "ten_acme"}


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": "Once upon", "max_tokens": 1000, "ignore_eos": True, "stream": True} | fields


@pytest.fixture(scope="module")
def slow_worker(tiny_model: Path) -> Iterator[WorkerProcess]:
    """Two slots, of which one request takes the half that is left to probes; no long answer ends by itself."""
    folder = Path(tempfile.mkdtemp(prefix="pgd-", dir="/tmp"))
    environment = {failpoints.ENVIRONMENT: SLOW_STEPS}
    with WorkerProcess(folder, tiny_model, ["--max-num-seqs", "2"], environment) as process:
        yield process
    shutil.rmtree(folder, ignore_errors=True)


def test_a_probe_is_no_work_and_is_given_up_for_any(slow_worker: WorkerProcess) -> None:
    with slow_worker.trusted_client() as client:
        with client.stream("POST", "/v1/completions", json=body(), headers=PROBE) as probe:
            events = probe.iter_lines()
            next(events)
            status = slow_worker.status()
            assert status.load is not None
            assert (status.pending, status.load.num_running, status.load.num_waiting) == (0, 0, 0)
            assert status.load.owned_blocks > 0  # its memory is memory
            with client.stream("POST", "/v1/completions", json=body(), headers=CALL) as call:
                next(call.iter_lines())
                assert "overloaded" in [line for line in events if line][-1]
                slow_worker.wait_status(lambda status: status.load is not None and status.load.num_running == 1)
                assert slow_worker.status().pending == 1
                refused = client.post("/v1/completions", json=body(stream=False), headers=PROBE)
                assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")
        slow_worker.wait_status(lambda status: status.pending == 0)
        page = client.get("/metrics").text
    assert probes.STRANGER not in page
    assert "pagoda_admission_rejections_total{" not in page


def test_a_probe_keeps_no_replica_awake(slow_worker: WorkerProcess) -> None:
    slow_worker.wait_status(lambda status: status.pending == 0)
    with (
        slow_worker.trusted_client() as client,
        client.stream("POST", "/v1/completions", json=body(), headers=PROBE) as probe,
    ):
        events = probe.iter_lines()
        next(events)
        # A request ends a moment after its caller has gone.
        while isinstance(asleep := slow_worker.control(Sleep()), Refused):
            assert "running" in asleep.message
        assert isinstance(asleep, Status)
        assert asleep.state is ReplicaState.ASLEEP
        assert "overloaded" in [line for line in events if line][-1]
        refused = client.post("/v1/completions", json=body(stream=False), headers=PROBE)
        assert refused.json()["error"]["code"] == "model_cold"
    slow_worker.control(Wake())
    slow_worker.control(MarkReady())
    assert slow_worker.status().state is ReplicaState.READY
