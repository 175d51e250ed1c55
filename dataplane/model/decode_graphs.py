"""Decode steps as CUDA graphs: what a step of single tokens launches is recorded once, and repeated from then on.

A step of a small model launches hundreds of kernels of some microseconds each, and to launch one takes the host about
as long. A graph launches all of them at once, but always the same ones, on the same addresses: so there is one for each
*bucket*, a number of rows, which a step fills up with rows of padding; and what differs from step to step lies in one
buffer on the device. Padding writes no keys or values and attends to nothing.

CUDA graphs have never run here: no machine that this was written on had a GPU. Buckets, padding and the buffer are
tested on the CPU, with a recorder that computes again what it was given; :class:`CudaRecorder` is not.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dataplane.kernels.triton.paged_attention import AttentionRows
from dataplane.model.device_logits import DeviceLogits, compile_draws, greedy
from dataplane.model.kv_pool import KvPool
from dataplane.model.step import Step
from dataplane.model.triton_executor import TABLE_COLUMNS, Inputs, TritonExecutor

BUCKETS: Final = (1, 2, 4, 8, 16, 32, 64)
"""Rows of the graphs. A step with more is computed as it comes.

All are recorded, whatever the engine's limit: that also compiles every size of product that steps with prompts ask for.
"""
_HEAD_COLUMNS: Final = 4
"""In front of a row's block table: its token, its position, and two that align the table to 16 bytes."""


def bucket_of(step: Step) -> int | None:
    """Return the least bucket that holds ``step``; None where it must be computed as it comes."""
    rows = len(step.sequences)
    if len(step.token_ids) != rows:
        return None
    return next((bucket for bucket in BUCKETS if bucket >= rows), None)


class DecodeRows:
    """What a decode step tells a graph, in one buffer [rows, columns] int32 on the device, and its twin on the host.

    Args:
        context_tokens: no row has more context than this.
        block_size: of the pool.
        device: where graphs read it.
    """

    def __init__(self, context_tokens: int, block_size: int, device: str) -> None:
        self._context_tokens, self._block_size = context_tokens, block_size
        columns = _HEAD_COLUMNS + -(-context_tokens // block_size)
        shape = (BUCKETS[-1], columns + -columns % TABLE_COLUMNS)
        self._host = torch.zeros(shape, dtype=torch.int32, pin_memory=device != "cpu")
        self.buffer = torch.zeros_like(self._host, device=device)

    def fill(self, step: Step | None, bucket: int) -> None:
        """Write ``step``, of up to ``bucket`` rows of one token each, and padding behind it; None is all padding."""
        host = self._host.numpy()
        rows = 0
        if step is not None:
            rows = len(step.sequences)
            host[:rows, 0] = step.token_ids
            host[:rows, 1] = step.sequences["position"]
            for row, table in enumerate(step.tables):
                blocks = table[: host.shape[1] - _HEAD_COLUMNS]
                host[row, _HEAD_COLUMNS : _HEAD_COLUMNS + len(blocks)] = blocks
        host[rows:bucket, 0], host[rows:bucket, 1] = 0, -1
        # waits until it is there: the next step may fill the host's before anything else waits for the device
        self.buffer[:bucket].copy_(self._host[:bucket])

    def inputs(self, bucket: int) -> Inputs:
        """Return the first ``bucket`` rows as an executor takes them, by operations that a graph can repeat."""
        rows = self.buffer[:bucket]
        positions, tables = rows[:, 1].contiguous(), rows[:, _HEAD_COLUMNS:]
        there, standing = positions >= 0, positions.clamp(min=0)
        block = tables.gather(1, (standing // self._block_size).long()[:, None])[:, 0].long()
        slots = torch.where(there, block * self._block_size + standing % self._block_size, -1)
        nth = torch.arange(bucket, dtype=torch.int32, device=rows.device)
        tiles = torch.stack((nth, standing, there.int(), nth), dim=1)
        return Inputs(rows[:, 0].long(), slots, AttentionRows(positions, tiles, tables, self._context_tokens))


@dataclass(frozen=True, slots=True)
class Decoded:
    """What a decode step leaves behind, at the same addresses each time.

    Attributes:
        values: [bucket, vocab] fp32 logits of every row.
        greedy: [bucket] int64, see :func:`dataplane.model.device_logits.greedy`.
        residual: [bucket, width] fp32.
    """

    values: Tensor
    greedy: Tensor
    residual: Tensor


class Recording(Protocol):
    """Work that was recorded."""

    @property
    def result(self) -> Decoded:
        """What the last replay, or else the recording, left behind."""

    def replay(self) -> None:
        """Do it again, with what lies in its buffers now; ``result`` changes in place."""


Recorder = Callable[[Callable[[], Decoded]], Recording]
"""Records work, doing it once or more."""


@dataclass(frozen=True, slots=True)
class CudaGraph:
    """A :class:`Recording` on a GPU."""

    graph: torch.cuda.CUDAGraph
    result: Decoded

    def replay(self) -> None:
        """Do it again; see :class:`Recording`."""
        self.graph.replay()


class CudaRecorder:
    """Records work that launches kernels on the current GPU, and neither waits for it nor reads from it.

    Its graphs share memory, which goes with the last of them, and the recorder is of no use any more. What one leaves
    behind is good until another is replayed.
    """

    def __init__(self) -> None:
        self._memory = torch.cuda.graph_pool_handle()

    def __call__(self, work: Callable[[], Decoded]) -> CudaGraph:
        """Return the recording of ``work``."""
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            work()  # compiles kernels and lets libraries take workspaces, none of which can be recorded
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._memory):
            result = work()
        return CudaGraph(graph, result)


class GraphedExecutor:
    """A :class:`dataplane.model.executor.Executor` whose decode steps are graphs; others it leaves to another.

    Args:
        executor: computes what is recorded, and steps with more than one token of a row.
        pool: that steps will be computed on. One that was given back and taken anew lies elsewhere: the first step
            afterwards records everything again.
        context_tokens: no row has more context than this.
        make_recorder: called each time that all buckets are recorded.
    """

    def __init__(
        self,
        executor: TritonExecutor,
        pool: KvPool,
        context_tokens: int,
        make_recorder: Callable[[], Recorder],
    ) -> None:
        self._executor, self._make_recorder = executor, make_recorder
        self._rows = DecodeRows(context_tokens, pool.block_size, executor.device)
        self._recordings: dict[int, Recording] = {}
        self._replayed: Decoded | None = None
        self._recorded_at: tuple[int, int] | None = None
        self._capture(pool)

    @property
    def kernels(self) -> str:
        """What it computes with, in a few words."""
        return f"{self._executor.kernels}, decode graphs of up to {BUCKETS[-1]} rows"

    def run(self, step: Step, pool: KvPool) -> None:
        """Compute ``step``; see :class:`dataplane.model.executor.Executor`."""
        if self._recorded_at != _addresses(pool):
            self._capture(pool)
        bucket = bucket_of(step)
        if bucket is None:
            self._replayed = None
            self._executor.run(step, pool)
            return
        self._rows.fill(step, bucket)
        recording = self._recordings[bucket]
        recording.replay()
        self._replayed = recording.result

    def residual(self, tokens: int) -> Tensor:
        """Return the residual rows; see :class:`dataplane.model.executor.Executor`."""
        return self._executor.residual(tokens) if self._replayed is None else self._replayed.residual[:tokens]

    def put_residual(self, rows: Tensor) -> None:
        """Go on from ``rows``; see :class:`dataplane.model.executor.Executor`."""
        self._replayed = None
        self._executor.put_residual(rows)

    def logits(self, at: NDArray[np.int32]) -> DeviceLogits:
        """Return the logits of tokens of the last step; see :class:`dataplane.model.executor.Executor`.

        Those of a graph are all there: asked for again, they are as whoever drew from them left them.
        """
        if self._replayed is None:
            return self._executor.logits(at)
        likeliest = self._replayed.greedy.tolist()
        whole = np.array_equal(at, np.arange(len(at)))
        values = self._replayed.values[: len(at)] if whole else self._replayed.values[at.tolist()]
        return DeviceLogits(values, [likeliest[row] for row in at])

    def _capture(self, pool: KvPool) -> None:
        """Record every bucket, the largest first: the others fit into its memory."""
        self._replayed = None
        self._recordings.clear()
        self._rows.fill(None, BUCKETS[-1])
        record = self._make_recorder()
        for bucket in reversed(BUCKETS):
            self._recordings[bucket] = record(partial(self._decode, bucket, pool))
        compile_draws(self._recordings[BUCKETS[0]].result.values)
        self._recorded_at = _addresses(pool)

    def _decode(self, bucket: int, pool: KvPool) -> Decoded:
        self._executor.compute(self._rows.inputs(bucket), pool)
        values = self._executor.project()
        return Decoded(values, greedy(values), self._executor.residual(bucket))


def _addresses(pool: KvPool) -> tuple[int, int]:
    return pool.data.data_ptr(), pool.scales.data_ptr()
