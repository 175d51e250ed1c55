"""Decode steps in buckets: what a graph is told, what padding leaves alone, and when it is recorded.

Recordings here compute again what they were given; a real graph needs a GPU (tests/gpu).
"""

from collections.abc import Callable
from dataclasses import fields

import numpy as np
import pytest
import torch
from driven_executor import BLOCK_SIZE, CONTEXT, Drive, random_tokens, uneven_model
from hypothesis import given, settings
from hypothesis import strategies as st

from dataplane.model import decode_graphs
from dataplane.model.decode_graphs import BUCKETS, Decoded, DecodeRows, GraphedExecutor, bucket_of
from dataplane.model.device_weights import on_device
from dataplane.model.kv_pool import KvPool
from dataplane.model.loader import LoadedModel
from dataplane.model.program import Cache, Program
from dataplane.model.reference import ReferenceExecutor
from dataplane.model.triton_executor import TritonExecutor, inputs_of

NO_MODEL = Program((Cache("heads", 0, None),), {"logits": 320}, 4, 2, 8)
"""What a :class:`Drive` needs to lay out steps."""


class Repeated:
    """A recording that computes again, and leaves its results where they were."""

    def __init__(self, work: Callable[[], Decoded]) -> None:
        self._work = work
        self.result = work()

    def replay(self) -> None:
        found = self._work()
        for field in fields(Decoded):
            getattr(self.result, field.name).copy_(getattr(found, field.name))


class Recorder:
    """Counts what it records."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, work: Callable[[], Decoded]) -> Repeated:
        self.count += 1
        return Repeated(work)


@pytest.fixture
def _few_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_graphs, "BUCKETS", (1, 3))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return uneven_model("llama", tmp_path_factory.mktemp("llama"), num_layers=1, num_heads=2, num_kv_heads=1)


def graphed(model: LoadedModel, pool: KvPool, recorder: Recorder) -> GraphedExecutor:
    executor = TritonExecutor(model.program, on_device(model.program, model.weights, "cpu"), "cpu")
    return GraphedExecutor(executor, pool, CONTEXT, lambda: recorder)


def prompts(rows: int) -> dict[str, list[int]]:
    return {str(row): random_tokens(1 + row % 3, row) for row in range(rows)}


def singles(rows: int, seed: int) -> dict[str, list[int]]:
    return {str(row): random_tokens(1, seed + row) for row in range(rows)}


@pytest.mark.parametrize(("rows", "bucket"), [(1, 1), (2, 2), (3, 4), (33, 64), (64, 64), (65, None)])
def test_a_decode_step_takes_the_least_bucket_that_holds_it(rows: int, bucket: int | None) -> None:
    drive = Drive(None, NO_MODEL, "fp32")
    assert bucket_of(drive.step(singles(rows, 0))) == bucket


def test_a_step_with_a_longer_chunk_has_no_bucket() -> None:
    assert bucket_of(Drive(None, NO_MODEL, "fp32").step({"a": [1], "b": [2, 3]})) is None


@settings(max_examples=25)
@given(positions=st.lists(st.integers(0, 9), min_size=1, max_size=9), more=st.integers(0, 3))
def test_a_graph_is_told_what_the_step_says_and_padding_behind_it(positions: list[int], more: int) -> None:
    drive = Drive(None, NO_MODEL, "fp32")
    rows = DecodeRows(CONTEXT, BLOCK_SIZE, "cpu")
    rows.fill(drive.step({f"before {row}": [7] for row in range(more + len(positions))}), BUCKETS[-1])  # to be replaced
    if any(positions):
        drive.step({str(row): [0] * count for row, count in enumerate(positions) if count})
    step = drive.step({str(row): [row + 1] for row in range(len(positions))})
    bucket = bucket_of(step)
    assert bucket is not None
    rows.fill(step, bucket)
    found, expected = rows.inputs(bucket), inputs_of(step, BLOCK_SIZE, 2, "cpu")
    count = len(positions)
    assert torch.equal(found.token_ids[:count], expected.token_ids)
    assert torch.equal(found.slots[:count], expected.slots)
    assert torch.equal(found.rows.positions[:count], expected.rows.positions)
    assert torch.equal(found.rows.tiles[:count], expected.rows.tiles)
    for row, table in enumerate(step.tables):
        assert found.rows.block_tables[row, : len(table)].tolist() == list(table)
    assert set(found.slots[count:].tolist()) <= {-1}
    assert set(found.rows.positions[count:].tolist()) <= {-1}
    assert set(found.rows.tiles[count:, 2].tolist()) <= {0}


@pytest.mark.usefixtures("_few_buckets")
def test_graphs_and_steps_with_prompts_compute_what_plain_torch_does(model: LoadedModel) -> None:
    drives = []
    for reference in (False, True):
        drive = Drive(ReferenceExecutor(model.program, model.weights), model.program, "fp32")
        if not reference:
            drive.executor = graphed(model, drive.pool, Recorder())
        drives.append(drive)
    for chunks in (prompts(2), singles(3, 20), {"0": [4, 5], "2": [5]}, singles(2, 40), singles(4, 60)):
        found, expected = (drive.run(chunks) for drive in drives)
        for name in chunks:
            torch.testing.assert_close(found[name], expected[name], atol=2e-4, rtol=2e-4)


@pytest.mark.usefixtures("_few_buckets")
def test_padding_writes_nothing(model: LoadedModel) -> None:
    drive = Drive(None, model.program, "fp32")
    drive.executor = graphed(model, drive.pool, Recorder())
    assert drive.pool.data.isnan().all()  # recording wrote nothing either
    drive.run(singles(2, 1))
    written = {table[0] for table in drive.tables.values()}
    touched = ~drive.pool.data.isnan().flatten(3).all(-1)  # [layers, blocks, slots]
    assert {block for _, block, slot in touched.nonzero().tolist()} == written
    assert {slot for _, block, slot in touched.nonzero().tolist()} == {0}


@pytest.mark.usefixtures("_few_buckets")
def test_a_pool_taken_anew_is_recorded_anew_and_computed_on(model: LoadedModel) -> None:
    recorder = Recorder()
    drive = Drive(None, model.program, "fp32")
    drive.executor = graphed(model, drive.pool, recorder)
    assert recorder.count == 2
    expected = drive.run(singles(2, 1))
    assert recorder.count == 2
    kept = drive.pool.data  # so that the new memory cannot lie where the old did
    drive.pool.release()
    drive.pool.restore()
    for name in list(drive.tables):
        drive.forget(name)
    found = drive.run(singles(2, 1))
    assert recorder.count == 4
    assert kept.data_ptr() != drive.pool.data.data_ptr()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.usefixtures("_few_buckets")
def test_some_rows_of_a_graph_can_be_asked_for(model: LoadedModel) -> None:
    drive = Drive(None, model.program, "fp32")
    drive.executor = graphed(model, drive.pool, Recorder())
    whole = drive.run(singles(3, 1))
    some = drive.executor.logits(np.array([2, 0], np.int32))
    assert torch.equal(some.values, torch.cat((whole["2"], whole["0"])))
    assert some.greedy == [int(rows.argmax()) for rows in (whole["2"], whole["0"])]
