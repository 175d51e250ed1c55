"""Probes of a real worker: what they see, and that nothing else is seen of them."""

import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_models import make_tiny_llama
from worker_process import WorkerProcess

from dataplane.contracts import failpoints
from dataplane.contracts.probes import ProbeKind
from dataplane.fleet import probe_trials, probes, probing
from dataplane.fleet.probe_trials import Card, Target

pytestmark = pytest.mark.anyio
CACHE = (ProbeKind.WITHIN, ProbeKind.ACROSS)
SAMPLES = 3
LONG_PROMPT_TOKENS = 520
"""Three steps of the engine, of which a cached one needs only the last."""


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    """Its steps take so long that one can see how many there were, on a machine that is busy with other things, too."""
    model = make_tiny_llama(tmp_path_factory.mktemp("models") / "tiny", context_tokens=1024)
    environment = {failpoints.ENVIRONMENT: "engine.step=delay:30@1+"}
    folder = Path(tempfile.mkdtemp(prefix="pgd-", dir="/tmp"))
    with WorkerProcess(folder, model, environment=environment) as process:
        yield process
    shutil.rmtree(folder, ignore_errors=True)


async def test_probes_see_their_own_cache_and_no_other_and_leave_no_trace(
    worker: WorkerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe_trials, "PROMPT_TOKENS", LONG_PROMPT_TOKENS)
    monkeypatch.setattr(probing, "_IN_A_DECK", dict.fromkeys(ProbeKind, 1) | dict.fromkeys(CACHE, SAMPLES))
    before = worker.status().load
    assert before is not None
    found = probes.summary(await probes.of_worker(worker.socket, SAMPLES))["worker"]
    within, across = found["within"], found["across"]
    whole_blocks = (LONG_PROMPT_TOKENS - 1) // before.block_size * before.block_size
    assert within["cached_tokens"] == within["num_fast"] * whole_blocks
    assert within["num_fast"] == SAMPLES
    assert within["auc"] > 0.75
    assert across["cached_tokens"] == 0
    assert across["prompt_tokens"] == across["num_fast"] * LONG_PROMPT_TOKENS
    assert {"batch", "paced"} <= set(found)

    status = worker.status()
    assert status.load is not None
    assert status.load.step > before.step
    for counted in ("prompt_tokens", "generation_tokens", "prefix_cache_queries_tokens", "prefix_cache_hits_tokens"):
        assert getattr(status.load, counted) == getattr(before, counted)
    assert (status.load.num_running, status.load.num_waiting, status.pending) == (0, 0, 0)
    assert not any("probe" in tenant.tenant_id for tenant in status.tenants)
    assert worker.records() == []
    with worker.trusted_client() as client:
        assert "probe" not in client.get("/metrics").text


async def test_a_paced_answer_comes_no_faster_than_its_pace(worker: WorkerProcess) -> None:
    target = Target("worker", worker.socket, worker.name)
    gap = await probe_trials.run(target, Card(ProbeKind.PACED, slow=False), random.Random(1), pace_ms=100)
    assert gap.seconds > 0.095


async def test_what_cannot_be_probed_is_said(worker: WorkerProcess) -> None:
    with pytest.raises(probe_trials.Unfit, match="model_not_found"):
        await probe_trials.run(Target("worker", worker.socket, "other"), Card(ProbeKind.WITHIN, True), random.Random(1))
    with pytest.raises(probe_trials.GivenUp):
        await probe_trials.run(
            Target("worker", worker.folder / "nothing.sock", "tiny"), Card(ProbeKind.WITHIN, True), random.Random(1)
        )
