"""What goes between ranks, by torch.distributed: sums across a layer's ranks, rows from stage to stage."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor

from dataplane.contracts.parallel import Place

PATIENCE_S: Final = 60.0
"""For a rank that is there and does not answer. One that has ended is noticed at once, by its connections."""
_INTERFACES: Final = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
_LOOPBACK: Final = "lo"
_MEETING: Final = "ranks"


class RankLost(BaseException):
    """A rank has ended, or does not answer.

    No ``Exception``: no row is to blame, and none of the replica's steps can be computed any more.
    """


class Group:
    """All ranks of a replica, as one of them sees them.

    gloo for tensors on CPU, NCCL for those of GPUs. The ranks meet by a file, and listen on the loopback address alone.

    Attributes:
        place: of this rank.
        waited_s: how long it has waited for others so far, in steps.

    Args:
        place: of this rank.
        meeting_dir: a folder that all ranks can write to and nobody else.
        device: of the engine settings.
        patience_s: for one that does not answer.
    """

    def __init__(self, place: Place, meeting_dir: Path, device: str, patience_s: float = PATIENCE_S) -> None:
        self.place = place
        self.waited_s = 0.0
        self._meeting = meeting_dir / _MEETING
        self._patience = timedelta(seconds=patience_s)
        self._device, self._backend = ("cuda", "nccl") if device == "cuda" else ("cpu", "gloo")
        self._across: Any = None
        self._sent: list[tuple[Any, Tensor]] = []

    def join(self) -> None:
        """Wait until all ranks are there.

        Raises:
            RankLost: one does not come.
        """
        os.environ.update(dict.fromkeys(_INTERFACES, _LOOPBACK))
        parallel = self.place.parallel
        with self._waiting():
            dist.init_process_group(
                self._backend,
                store=dist.FileStore(str(self._meeting), parallel.ranks),
                rank=self.place.rank,
                world_size=parallel.ranks,
                timeout=self._patience,
            )
            if parallel.tensor > 1 and parallel.pipeline > 1:  # every rank has to call for every group
                firsts = range(0, parallel.ranks, parallel.tensor)
                stages = [dist.new_group([*range(first, first + parallel.tensor)], self._patience) for first in firsts]
                self._across = stages[self.place.stage]

    def leave(self) -> None:
        """Close the connections to the others."""
        if dist.is_initialized():
            dist.destroy_process_group()

    def all_reduce(self, part: Tensor) -> None:
        """Replace ``part``, which every rank of this stage has, by the sum of them all.

        Of two ranks the sum is the same bits in any order; of more, the order may depend on where a row stands.

        Raises:
            RankLost: one has ended.
        """
        with self._waiting():
            dist.all_reduce(part, group=self._across)

    def hand_on(self, rows: Tensor) -> None:
        """Send ``rows`` to the next stage, or from the last to rank 0; they may change as soon as this returns.

        Raises:
            RankLost: that rank has ended.
        """
        parallel, last = self.place.parallel, self.place.stage == self.place.parallel.pipeline - 1
        if last and self.place.slice:
            return  # every rank of a stage has the same rows, and rank 0 needs them once
        copy = rows.clone()
        with self._waiting():
            self._sent.append((dist.isend(copy, 0 if last else self.place.rank + parallel.tensor), copy))

    def take_over(self, tokens: int, width: int) -> Tensor:
        """Return the rows [tokens, width] of the stage before, to rank 0 those of the last.

        Raises:
            RankLost: that rank has ended.
        """
        parallel = self.place.parallel
        rows = torch.empty(tokens, width, device=self._device)
        with self._waiting():
            dist.recv(rows, (self.place.rank - parallel.tensor) % parallel.ranks)
        return rows

    def settle(self) -> None:
        """Wait until everything sent has been taken.

        Raises:
            RankLost: who was to take it has ended.
        """
        with self._waiting():
            for work, _ in self._sent:
                work.wait()
        self._sent.clear()

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        started_s = time.perf_counter()
        try:
            yield
        except RuntimeError as error:
            raise RankLost(f"rank {self.place.rank} was left alone: {error}") from error
        finally:
            self.waited_s += time.perf_counter() - started_s
