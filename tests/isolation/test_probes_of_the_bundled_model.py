"""The promise of caches that are apart, on the model that comes with the product, with as many probes as it names."""

from pathlib import Path

import pytest
from running_stack import MODEL_DIR
from worker_process import WorkerProcess

from dataplane.fleet import probes

SAMPLES = 2000


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_stranger_cannot_tell_a_prompt_that_another_sent_and_its_sender_can(short_dir: Path) -> None:
    with WorkerProcess(short_dir, MODEL_DIR, ["--dtype", "int8"]) as worker:
        found = probes.summary(await probes.of_worker(worker.socket, SAMPLES))["worker"]
    within, across = found["within"], found["across"]
    assert min(across["num_slow"], across["num_fast"]) >= SAMPLES
    assert across["cached_tokens"] == 0
    assert across["high"] <= 0.55, found
    assert within["auc"] >= 0.9, found
    assert found["paced"]["auc"] < found["batch"]["auc"], found
