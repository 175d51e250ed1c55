"""Rank 0's side of the others: starts them, leads them through every step, and does not outlive them."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import numpy as np
import structlog
from numpy.typing import NDArray
from torch import Tensor

from dataplane.contracts.generation import (
    LoadFailed,
    LoadModel,
    LoadProgress,
    PoolChanged,
    ReleasePool,
    RestorePool,
)
from dataplane.contracts.parallel import Parallel, Place
from dataplane.contracts.ranks import FromRank, LoadPart, MakePool, ToRank
from dataplane.contracts.wire import FrameReader, frame
from dataplane.model.executor import Executor
from dataplane.model.kv_pool import KvPool
from dataplane.model.logits import Logits
from dataplane.model.parallel.group import PATIENCE_S, Group, RankLost
from dataplane.model.parallel.stage import Stage, as_message, micro_batches
from dataplane.model.step import Step

_READ_BYTES = 1 << 16
_END_WAIT_S = 5.0
_log = structlog.get_logger(__name__)


class RankFailed(RuntimeError):
    """A rank cannot do what it was told; the sentence is its own."""


def end_process(reason: str) -> None:
    """End this process at once: a replica without all of its ranks computes nothing any more."""
    _log.error("rank_lost", reason=reason)
    os._exit(1)


class _Child:
    """One rank as rank 0 sees it."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._connection, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "dataplane.model.parallel.rank_process", "--fd", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr,
            )
        self._frames: FrameReader[FromRank] = FrameReader(FromRank)

    def limit(self, patience_s: float) -> None:
        """Wait no longer than that for it from now on."""
        self._connection.settimeout(patience_s)

    def send(self, raw: bytes) -> None:
        with self._listening():
            self._connection.sendall(raw)

    def answer(self, progress: Callable[[str, int, int], None] = lambda *figures: None) -> None:
        """Wait for the answer to what was told last.

        Raises:
            RankFailed: it could not.
            RankLost: it has ended.
        """
        while data := self._received():
            for message in self._frames.feed(data):
                match message:
                    case LoadProgress(phase, done_bytes, total_bytes):
                        progress(phase, done_bytes, total_bytes)
                    case LoadFailed(reason):
                        raise RankFailed(f"rank {self.place.rank}: {reason}")
                    case PoolChanged(error) if error:
                        raise RankFailed(f"rank {self.place.rank}: {error}")
                    case _:
                        return
        raise RankLost(f"rank {self.place.rank} has ended")

    def _received(self) -> bytes:
        with self._listening():
            return self._connection.recv(_READ_BYTES)

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        try:
            yield
        except (ConnectionError, TimeoutError) as error:
            raise RankLost(f"rank {self.place.rank} has ended, or does not answer: {error}") from error

    def end(self) -> None:
        self._connection.close()
        try:
            self.process.wait(_END_WAIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Ranks:
    """The children of rank 0, all ranks but that.

    A thread for each waits for its end: a rank may be lost while rank 0 sleeps, or waits for another.

    Attributes:
        place: of rank 0.
        group: all ranks; joined once the pools are made.

    Args:
        parallel: how many ranks.
        device: of the engine settings.
        lost: called from another thread when a child has ended that was not told to; it gets the reason.
        patience_s: for one that does not answer, once the weights are attached: a load may take as long as it likes.
    """

    def __init__(
        self,
        parallel: Parallel,
        device: str,
        lost: Callable[[str], None] = end_process,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.place = Place.of(0, parallel)
        self._meeting_dir = Path(tempfile.mkdtemp(prefix="pagoda-ranks-"))  # for this user alone
        self.group = Group(self.place, self._meeting_dir, device, patience_s)
        self._lost, self._patience_s = lost, patience_s
        self._ending = threading.Event()
        self._children = [_Child(Place.of(rank, parallel)) for rank in range(1, parallel.ranks)]
        for child in self._children:
            threading.Thread(target=self._watch, args=(child,), daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def pids(self) -> list[int]:
        """The children's process ids, by rank."""
        return [child.process.pid for child in self._children]

    def begin_load(self, request: LoadModel) -> None:
        """Have every child attach its part of the weights."""
        for child in self._children:
            part = LoadPart(
                child.place, request.model_dir, request.runtime_dir, request.version_digest, request.engine,
                str(self._meeting_dir),
            )  # fmt: skip
            child.send(frame(part))

    def end_load(self, progress: Callable[[str, int, int], None]) -> None:
        """Wait until every part is attached.

        Raises:
            RankFailed: one cannot be.
        """
        for child in self._children:
            child.answer(progress)
            child.limit(self._patience_s)

    def make_pools(self, what: MakePool) -> None:
        """Have every child make its part of the pool, and meet all of them.

        Raises:
            RankFailed: no memory for one.
            RankLost: one has ended.
        """
        self.tell(what)
        self.group.join()
        for child in self._children:
            child.answer()
        shutil.rmtree(self._meeting_dir, ignore_errors=True)

    def tell(self, message: MakePool | ReleasePool | RestorePool) -> None:
        """Have every child do something, and wait until all have.

        Raises:
            RankFailed: one cannot.
        """
        self.send(message)
        for child in self._children:
            child.answer()

    def send(self, message: ToRank) -> None:
        """Send every child the same."""
        raw = frame(message)
        for child in self._children:
            child.send(raw)

    def close(self) -> None:
        """End all children."""
        self._ending.set()
        self.group.leave()
        for child in self._children:
            child.end()
        shutil.rmtree(self._meeting_dir, ignore_errors=True)

    def _watch(self, child: _Child) -> None:
        status = child.process.wait()
        if not self._ending.is_set():
            self._lost(f"rank {child.place.rank} ended with status {status}")


class LeadingExecutor:
    """A :class:`dataplane.model.executor.Executor` of all ranks: rank 0 tells the others of every step.

    Logits are rank 0's own work: it has the residual rows of all layers, and the whole matrix.
    """

    def __init__(self, own: Executor, ranks: Ranks, width: int) -> None:
        self._own, self._ranks = own, ranks
        self._stage = Stage(own, ranks.group, width)
        parallel = ranks.place.parallel
        self._stages = parallel.pipeline
        self.kernels = f"{own.kernels} on {parallel.tensor} x {parallel.pipeline} ranks"

    def run(self, step: Step, pool: KvPool) -> None:
        """Compute ``step``; see :class:`dataplane.model.executor.Executor`.

        Raises:
            RankLost: one has ended, or this one has failed in the middle, which leaves the others waiting.
        """
        count = micro_batches(len(step.token_ids), self._stages)
        self._ranks.send(as_message(step, count))
        try:
            self._stage.compute(step, pool, count)
        except Exception as error:
            raise RankLost(f"rank 0 failed in a step that the others are in: {error}") from error

    def residual(self, tokens: int) -> Tensor:
        """Return the residual rows; see :class:`dataplane.model.executor.Executor`."""
        return self._own.residual(tokens)

    def put_residual(self, rows: Tensor) -> None:
        """Go on from ``rows``; see :class:`dataplane.model.executor.Executor`."""
        self._own.put_residual(rows)

    def logits(self, at: NDArray[np.int32]) -> Logits:
        """Return the logits of tokens of the last step; see :class:`dataplane.model.executor.Executor`."""
        return self._own.logits(at)


class SpreadPool:
    """The KV pool of all ranks: what sleep gives back and waking takes again."""

    def __init__(self, own: KvPool, ranks: Ranks) -> None:
        self._own, self._ranks = own, ranks

    def release(self) -> None:
        """Give every part's memory back; see :meth:`dataplane.model.kv_pool.KvPool.release`."""
        self._own.release()
        self._ranks.tell(ReleasePool())

    def restore(self) -> None:
        """Take memory for every part.

        Raises:
            MemoryError: the machine refuses it to this process.
            RankFailed: it refuses it to another.
        """
        self._own.restore()
        self._ranks.tell(RestorePool())
