from pathlib import Path

import msgspec
import pytest

from dataplane.contracts.errors import ApiError, Code
from dataplane.contracts.generation import FinishReason, SequenceDelta
from dataplane.contracts.usage import Outcome, Phases, RecordKind, UsageRecord
from dataplane.spool import segment
from dataplane.spool.writer import SpoolWriter
from dataplane.worker.doors import Caller
from dataplane.worker.meter import Meter
from dataplane.worker.metrics import Metrics

pytestmark = pytest.mark.anyio
PHASES = Phases(own_budget_ms=1, fair_share_ms=0, memory_ms=2, prefill_ms=5, decode_ms=40, kv_blocks=2, batch_rows=1.5)
CALLER = Caller(request_id="req_1", trusted=True, tenant_id="ten_a", billed=True)


def meter(spool: SpoolWriter | None, metrics: Metrics | None = None) -> Meter:
    return Meter(CALLER, spool, metrics or Metrics(), endpoint="completions", stream=False, replica_id="rep_1")


def records(root: Path) -> list[UsageRecord]:
    return [record for path in root.glob("*/*.seg") for record in segment.read(path, 0, 1000).records]


def tokens(count: int, cached_tokens: int = 0) -> SequenceDelta:
    return SequenceDelta(request_id="req_1.1", token_ids=[7] * count, cached_tokens=cached_tokens, phases=PHASES)


async def test_progress_is_recorded_every_32_tokens(tmp_path: Path) -> None:
    spool = SpoolWriter(tmp_path, "rep_1", 1 << 20)
    counted = meter(spool)
    await counted.admit(5)
    for _ in range(100):
        counted.observe(tokens(1, cached_tokens=3))
    counted.finish(Outcome.LENGTH)
    await spool.close()
    found = records(tmp_path)
    assert [(record.kind, record.completion_tokens) for record in found] == [
        (RecordKind.ADMIT, 0),
        (RecordKind.PROGRESS, 32),
        (RecordKind.PROGRESS, 64),
        (RecordKind.PROGRESS, 96),
        (RecordKind.FINAL, 100),
    ]
    assert [record.sequence for record in found] == [0, 1, 2, 3, 4]
    assert (found[-1].prompt_tokens, found[-1].cached_tokens, found[-1].queue_ms) == (5, 3, 3)


async def test_choices_count_together_and_the_first_says_what_was_cached_and_where_its_time_went(
    tmp_path: Path,
) -> None:
    spool = SpoolWriter(tmp_path, "rep_1", 1 << 20)
    counted = meter(spool)
    await counted.admit(5)
    counted.observe(tokens(2), first_choice=True)
    other = msgspec.structs.replace(PHASES, kv_blocks=99)
    counted.observe(msgspec.structs.replace(tokens(3, cached_tokens=4), phases=other), first_choice=False)
    counted.finish(Outcome.LENGTH)
    await spool.close()
    final = records(tmp_path)[-1]
    assert (final.completion_tokens, final.cached_tokens) == (5, 0)
    assert final.phases is not None
    assert final.phases.kv_blocks == PHASES.kv_blocks


async def test_the_last_word_has_the_phases_that_the_engine_told_with_the_end(tmp_path: Path) -> None:
    spool = SpoolWriter(tmp_path, "rep_1", 1 << 20)
    counted = meter(spool)
    await counted.admit(5)
    counted.observe(tokens(1))
    whole = msgspec.structs.replace(PHASES, decode_ms=1_000_000)
    counted.observe(SequenceDelta("req_1.1", [7], finish_reason=FinishReason.STOP, phases=whole))
    counted.finish(Outcome.STOP)
    await spool.close()
    assert records(tmp_path)[-1].phases == whole


async def test_an_end_that_the_engine_did_not_see_ends_the_decode(tmp_path: Path) -> None:
    spool = SpoolWriter(tmp_path, "rep_1", 1 << 20)
    counted = meter(spool)
    await counted.admit(5)
    counted.observe(tokens(1))
    counted.observe(SequenceDelta("req_1.1", [7]))
    counted.finish(Outcome.ABORTED)
    unseen = meter(spool)
    await unseen.admit(5)
    unseen.finish(Outcome.ABORTED)
    await spool.close()
    known, unknown = (record.phases for record in records(tmp_path) if record.kind is RecordKind.FINAL)
    assert known is not None
    assert known.decode_ms is not None
    assert known.decode_ms >= 40
    assert msgspec.structs.replace(known, decode_ms=40) == PHASES
    assert unknown is None


async def test_a_full_spool_refuses_the_request_and_says_that_it_is_our_fault(tmp_path: Path) -> None:
    spool = SpoolWriter(tmp_path, "rep_1", 1)
    first = meter(spool)
    await first.admit(5)
    refused = meter(spool)
    with pytest.raises(ApiError) as caught:
        await refused.admit(5)
    assert (caught.value.code, caught.value.code.status) == (Code.SPOOL_FULL, 503)
    refused.finish(Outcome.REFUSED, error=caught.value)
    await spool.close()
    assert [record.kind for record in records(tmp_path)] == [RecordKind.ADMIT]


async def test_a_tenant_beyond_the_first_hundred_is_counted_as_other() -> None:
    metrics = Metrics()
    for number in range(150):
        metrics.ended(f"ten_{number}", "stop")
    page = metrics.render(None, [], step_s=0, model_s=0).decode()
    assert 'pagoda_request_success_total{finished_reason="stop",tenant="other"} 50.0' in page
    assert page.count("pagoda_request_success_total{") == 101
