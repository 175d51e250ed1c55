"""Weights hold on a real worker with the bundled model, in what its callers are given. ``make soak``."""

import asyncio
import json
import random
from collections import Counter
from pathlib import Path

import httpx
import pytest
from running_stack import MODEL_DIR
from worker_process import TIMEOUT_S, WorkerProcess

from dataplane.contracts import headers, ids

pytestmark = [pytest.mark.slow, pytest.mark.anyio]

WEIGHTS = {"one": 1, "two": 2, "three": 3, "four": 4}
CALLERS = 16
"""Of each tenant: more than its share of the 32 rows, so that a request of each always waits."""
WARM_UP, COUNTED = 6_000, 20_000
"""Pieces of text of all tenants. Whoever calls first has rows before the others are there: 16 calls of the least weight
are worth 4,600 pieces of all together, and until those are given the others are owed them."""


class Callers:
    """Tenants that always have requests waiting; ``pieces`` counts the text that each was given."""

    def __init__(self, worker: WorkerProcess) -> None:
        self.pieces: Counter[str] = Counter()
        self._worker = worker
        self._draw = random.Random(1)
        self._wanted = 0
        self._reached = asyncio.Event()

    async def given(self, count: int) -> Counter[str]:
        """Wait until all tenants together were given so much, and return what each was."""
        self._wanted = count
        self._reached.clear()
        async with asyncio.timeout(TIMEOUT_S * 4):
            await self._reached.wait()
        return self.pieces.copy()

    async def call(self, tenant: str) -> None:
        """Make one request after another."""
        async with self._worker.trusted_async_client(TIMEOUT_S * 4) as client:
            while True:
                await self._one(client, tenant)

    async def _one(self, client: httpx.AsyncClient, tenant: str) -> None:
        prompt = [self._draw.randint(1_000, 40_000) for _ in range(64)]
        body = {
            "model": self._worker.name, "prompt": prompt, "max_tokens": 32, "temperature": 0, "ignore_eos": True,
            "stream": True,
        }  # fmt: skip
        told = {headers.TENANT: tenant, headers.REQUEST_ID: ids.new_id(ids.Kind.REQUEST)}
        async with client.stream("POST", "/v1/completions", json=body, headers=told) as answer:
            assert answer.status_code == httpx.codes.OK, await answer.aread()
            async for line in answer.aiter_lines():
                self.pieces[tenant] += '"text":"' in line and '"text":""' not in line
                if self.pieces.total() >= self._wanted:
                    self._reached.set()


async def test_tenants_that_all_wait_are_given_tokens_by_their_weights(short_dir: Path) -> None:
    tenants = short_dir / "tenants.json"
    tenants.write_text(json.dumps({tenant: {"weight": weight} for tenant, weight in WEIGHTS.items()}))
    with WorkerProcess(short_dir, MODEL_DIR, ["--dtype", "int8", "--tenants", str(tenants)]) as worker:
        callers = Callers(worker)
        async with asyncio.TaskGroup() as group:
            calling = [group.create_task(callers.call(tenant)) for tenant in WEIGHTS for _ in range(CALLERS)]
            before = await callers.given(WARM_UP)
            counted = await callers.given(WARM_UP + COUNTED) - before
            for task in calling:
                task.cancel()
    shares = {tenant: counted[tenant] / counted.total() for tenant in WEIGHTS}
    assert shares == pytest.approx({tenant: weight / 10 for tenant, weight in WEIGHTS.items()}, rel=0.05)
