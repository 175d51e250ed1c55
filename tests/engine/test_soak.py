"""Ten thousand requests of all kinds: nothing of them is left behind. ``make soak``."""

import gc
import random
import tracemalloc
from collections.abc import Sequence

import pytest
import soak_requests

from dataplane.contracts.catalog import Share
from dataplane.contracts.generation import FinishReason
from dataplane.engine.config import EngineConfig
from dataplane.engine.engine import Engine
from dataplane.engine.intake import Refusal
from dataplane.engine.runner import Row, RowFailure, RowResult
from dataplane.engine.sequence import Sequence as EngineSequence

WARM_UP, REQUESTS, REST_EVERY = 2_000, 10_000, 500
TABLE_BYTES = 2_048
"""What is larger is the table of a list or a dict; no object of an engine is."""
EOS = 0
SHARE_SETS = (
    {"alpha": Share(guarantee_tokens=4_000, weight=2), "beta": Share(cap_tokens=2_000), "gamma": Share()},
    {"alpha": Share(guarantee_tokens=2_000), "beta": Share(guarantee_tokens=1_000, cap_tokens=4_000, weight=3)},
)


class RandomRunner:
    """Draws tokens at random; a row fails now and then, and sometimes a whole step."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw

    def execute(self, rows: Sequence[Row]) -> list[RowResult]:
        if len(rows) > 1 and self.draw.random() < 0.001:
            raise RuntimeError("the model raised")
        return [self._row(row) for row in rows]

    def _row(self, row: Row) -> RowResult:
        if self.draw.random() < 0.0003:
            return RowFailure("not numbers")
        if not row.sample:
            return None
        token_id = self.draw.randrange(soak_requests.VOCABULARY)
        return 50 if token_id in row.ban_token_ids else token_id


class Soak:
    """An engine and what goes on with it."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.config = EngineConfig(
            num_blocks=2_000,
            max_num_seqs=192,
            step_token_budget=512,
            max_model_len=700,
            queue_limit_per_tenant=150,
            watermark_fraction=0.03,  # less than by default: what runs is preempted more often
        )
        self.now_s = 0.0
        self.engine = Engine(
            self.config,
            RandomRunner(self.draw),
            SHARE_SETS[0],
            salt_secret=b"salt",
            version_digest="v",
            eos_token_ids=(EOS,),
            clock=lambda: self.now_s,
        )
        self.drawn = self.submitted = 0
        self.open: dict[str, None] = {}
        self.ends = dict.fromkeys(["refused", "aborted", FinishReason.STOP, FinishReason.LENGTH, FinishReason.ERROR], 0)

    def submit(self) -> None:
        self.drawn += 1
        request = soak_requests.drawn(self.draw, self.drawn)
        try:
            self.engine.submit(request)
        except Refusal:
            self.ends["refused"] += 1
        else:
            self.submitted += 1
            self.open.update(dict.fromkeys(request.sequence_ids()))

    def abort(self) -> None:
        request_id = self.draw.choice(list(self.open))
        del self.open[request_id]
        if self.engine.abort(request_id):
            self.ends["aborted"] += 1

    def step(self) -> None:
        self.now_s += 0.01
        for delta in self.engine.step():
            if delta.finish_reason is not None:
                self.ends[delta.finish_reason] += 1
                self.open.pop(delta.request_id, None)

    def run(self, until: int) -> None:
        """Go on until so many requests were submitted, then until all have ended."""
        while self.submitted < until:
            for _ in range(self._arrivals()):
                self.submit()
            if self.open and self.draw.random() < 0.1:
                self.abort()
            if self.draw.random() < 0.002:
                self.engine.set_tenants(self.draw.choice(SHARE_SETS))
            self.step()
        while self.engine.has_work:
            self.step()
        self.open.clear()

    def _arrivals(self) -> int:
        if self.drawn == 0 or self.draw.random() < 0.002:
            return 1_000  # too many at once
        return self.draw.choice([1, 2, 8]) if len(self.open) < 300 else 0

    def bytes_at_rest(self) -> tuple[int, int]:
        """Empty the cache, have accounts closed; return the bytes of objects, and of tables.

        Apart, for tables double as keys come and go, so that at rest they differ by half without anything being left
        behind. What is left behind is an object.
        """
        self.engine.clear_cache()
        for _ in range(2 * len(self.engine._queue.tenants)):
            self.step()
        gc.collect()
        ours = tracemalloc.Filter(inclusive=True, filename_pattern="*/dataplane/*")  # not what pytest keeps of the log
        sizes_bytes = [trace.size for trace in tracemalloc.take_snapshot().filter_traces([ours]).traces]
        objects_bytes = sum(size for size in sizes_bytes if size < TABLE_BYTES)
        return objects_bytes, sum(sizes_bytes) - objects_bytes

    def check_idle(self) -> None:
        self.engine.check_integrity()
        load = self.engine.load()
        assert load.owned_blocks == load.num_running == load.num_waiting == 0
        assert load.free_blocks + load.cached_blocks == load.total_blocks
        assert not any(each.within_guarantee_preemptions for each in self.engine.tenant_loads())


@pytest.mark.slow
def test_ten_thousand_requests_leave_every_block_and_all_memory_behind() -> None:
    tracemalloc.start()
    try:
        soak = Soak(1)
        soak.run(WARM_UP)
        soak.check_idle()
        before = soak.bytes_at_rest()
        for until in range(WARM_UP, WARM_UP + REQUESTS + 1, REST_EVERY):
            soak.run(until)
            soak.check_idle()
        # A stranger's account stays while blocks of its are cached, and nobody takes those while others cache more.
        known = soak.engine._queue.tenants.values()
        assert sum(tenant.budget.held_blocks == 0 for tenant in known) < 20, "strangers pile up"
        after = soak.bytes_at_rest()
    finally:
        tracemalloc.stop()
    assert after[0] == pytest.approx(before[0], rel=0.05)
    assert sum(after) <= 1.05 * sum(before)
    assert not [each for each in gc.get_objects() if isinstance(each, EngineSequence)]
    assert soak.engine.load().num_preemptions > 100
    assert all(count > 20 for count in soak.ends.values()), soak.ends


def test_a_thousand_requests_leave_every_block_behind() -> None:
    soak = Soak(3)
    soak.run(1_000)
    soak.check_idle()
    assert sum(soak.ends.values()) >= 1_000
