"""Where worker processes come from: one small interface, an implementation per kind of cluster."""

from pathlib import Path
from typing import Protocol

import msgspec


class StartError(Exception):
    """A process could not be started; the sentence says why."""


class WorkerSpec(msgspec.Struct, frozen=True):
    """One worker to start, without a model. Sockets are made by the worker itself."""

    replica_id: str
    http_socket: Path
    control_socket: Path


class Process(Protocol):
    """A started worker."""

    @property
    def pid(self) -> int:
        """Its process id on its node."""

    async def wait(self) -> str:
        """Return how it ended, once it has; nothing of it runs after that."""

    def terminate(self) -> None:
        """Ask it to end."""

    def kill(self) -> None:
        """End it and everything it started, now."""


class Backend(Protocol):
    """Starts workers on one node."""

    async def start(self, spec: WorkerSpec) -> Process:
        """Start a worker.

        Raises:
            StartError: the node could not.
        """

    async def sweep(self) -> int:
        """End what an earlier fleet of this node left behind; return how many processes that were."""
