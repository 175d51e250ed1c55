"""A rank other than the first: ``python -m dataplane.model.parallel.rank_process --fd N``, started by rank 0.

It attaches its part of the weights, keeps its part of the KV pool, and computes its part of every step that it is told
of. It ends when rank 0 does: by the end of the stream, and by the kernel's word (PDEATHSIG) where it waits for another.
"""

import argparse
import os
import signal
import socket
from pathlib import Path

import structlog
import torch

from dataplane import logs, sandbox
from dataplane.contracts.generation import LoadFailed, LoadProgress, PoolChanged, ReleasePool, RestorePool
from dataplane.contracts.ranks import AllMet, ComputeStep, FromRank, LoadPart, MakePool, PartLoaded, ToRank
from dataplane.contracts.wire import FrameReader, frame
from dataplane.model import loader
from dataplane.model.kv_pool import KvPool
from dataplane.model.loader import LoadedModel, LoadError
from dataplane.model.parallel.group import Group, RankLost
from dataplane.model.parallel.stage import Stage, from_message
from dataplane.model.program import RESIDUAL

_READ_BYTES = 1 << 20
_log = structlog.get_logger(__name__)


class Rank:
    """One conversation with rank 0, over a blocking socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._model: LoadedModel
        self._group: Group
        self._stage: Stage
        self._pool: KvPool

    def serve(self) -> None:
        """Do what rank 0 says until it closes the socket."""
        frames: FrameReader[ToRank] = FrameReader(ToRank)
        while data := self._connection.recv(_READ_BYTES):
            for message in frames.feed(data):
                self._take(message)

    def _take(self, message: ToRank) -> None:
        match message:
            case ComputeStep():
                self._stage.compute(from_message(message), self._pool, message.micro_batches)
            case LoadPart():
                self._load(message)
            case MakePool():
                self._make_pool(message)
            case ReleasePool():
                self._pool.release()
                self._send(PoolChanged())
            case RestorePool():
                self._restore_pool()

    def _send(self, message: FromRank) -> None:
        self._connection.sendall(frame(message))

    def _load(self, part: LoadPart) -> None:
        def progress(phase: str, done_bytes: int, total_bytes: int) -> None:
            self._send(LoadProgress(phase=phase, done_bytes=done_bytes, total_bytes=total_bytes))

        try:
            self._model = loader.load(
                Path(part.model_dir), Path(part.runtime_dir), part.engine, progress,
                version_digest=part.version_digest, place=part.place,
            )  # fmt: skip
        except LoadError as error:
            self._send(LoadFailed(message=str(error)))
            return
        self._group = Group(part.place, Path(part.meeting_dir), part.engine.device)
        self._send(PartLoaded())

    def _make_pool(self, what: MakePool) -> None:
        torch.set_num_threads(what.threads)
        try:
            executor, self._pool = self._model.make_executor(what, self._group.all_reduce)
        except LoadError as error:
            self._send(PoolChanged(error=str(error)))
            return
        self._stage = Stage(executor, self._group, self._model.program.widths[RESIDUAL])
        self._send(PoolChanged())
        self._group.join()
        self._send(AllMet())

    def _restore_pool(self) -> None:
        try:
            self._pool.restore()
        except MemoryError as error:
            self._send(PoolChanged(error=str(error)))
        else:
            self._send(PoolChanged())


def main() -> None:
    """Entry point of the process."""
    arguments = argparse.ArgumentParser(description="A rank of a replica; started by rank 0.")
    arguments.add_argument("--fd", type=int, required=True, help="the socket to rank 0")
    # what reaches the whole group of processes is for the server to follow
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sandbox.die_with_parent()
    logs.configure()
    try:
        Rank(socket.socket(fileno=arguments.parse_args().fd)).serve()
    except (RankLost, ConnectionError) as error:
        _log.error("rank_left_alone", reason=str(error))
        os._exit(1)
    os._exit(0)  # nothing is left to save, and the others may have gone already


if __name__ == "__main__":
    main()
