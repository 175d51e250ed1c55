"""The events of this node, numbered, kept on disk until the control plane has them.

An event is on disk before it is first sent, so a number is never used twice and sending again is safe. The file also
knows which replicas were alive: after a crash of the fleet their end is still told.
"""

import secrets
from collections.abc import Iterable
from pathlib import Path

import msgspec
import structlog

from dataplane import atomic_file
from dataplane.contracts.replica import ReplicaEvent, ReplicaState

_MAX_PENDING = 10_000
_log = structlog.get_logger(__name__)


class _Saved(msgspec.Struct):
    """The file's content. ``alive`` maps a replica to its latest event."""

    node: str
    sequence: int = 0
    pending: list[ReplicaEvent] = []
    alive: dict[str, ReplicaEvent] = {}


class Journal:
    """Records events in memory at once; :meth:`save` makes them durable.

    Args:
        path: the file; a new one means a new node name, since its numbers start again.
        hostname: what the node's name begins with.
    """

    def __init__(self, path: Path, hostname: str) -> None:
        self._path = path
        self._saved = self._load(hostname)
        self._dirty = True
        self._durable_sequence = 0

    def _load(self, hostname: str) -> _Saved:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=_Saved)
        except FileNotFoundError:
            pass
        except (OSError, msgspec.DecodeError) as error:
            _log.error("fleet.journal_unreadable", path=str(self._path), error=str(error))
        return _Saved(node=f"{hostname}-{secrets.token_hex(3)}")

    @property
    def node(self) -> str:
        """The node's name, as long as the file lives."""
        return self._saved.node

    def end_of_former_life(self, at_ms: int, cause: str) -> None:
        """Record the end of every replica that the file believes alive."""
        for event in list(self._saved.alive.values()):
            self.record(
                msgspec.structs.replace(event, at_ms=at_ms, old=event.new, new=ReplicaState.STOPPED, cause=cause)
            )

    def record(self, event: ReplicaEvent) -> None:
        """Append ``event`` under the next number."""
        self._saved.sequence += 1
        event = msgspec.structs.replace(event, sequence=self._saved.sequence)
        self._saved.pending.append(event)
        if event.new is ReplicaState.STOPPED:
            self._saved.alive.pop(event.replica_id, None)
        else:
            self._saved.alive[event.replica_id] = event
        self._dirty = True
        excess = len(self._saved.pending) - _MAX_PENDING
        if excess > 0:
            _log.error("fleet.events_dropped", count=excess, first=self._saved.pending[0].sequence)
            del self._saved.pending[:excess]

    def snapshot(self) -> tuple[bytes, int] | None:
        """Return what :meth:`write` needs, or None when the file is up to date."""
        if not self._dirty:
            return None
        self._dirty = False
        return msgspec.json.encode(self._saved), self._saved.sequence

    def write(self, snapshot: tuple[bytes, int]) -> bool:
        """Make a snapshot durable; for a thread. False: the disk refused, and a later save tries again."""
        content, sequence = snapshot
        try:
            atomic_file.write(self._path, content)
        except OSError as error:
            _log.error("fleet.journal_unwritable", path=str(self._path), error=str(error))
            self._dirty = True
            return False
        self._durable_sequence = sequence
        return True

    def sendable(self, limit: int) -> tuple[ReplicaEvent, ...]:
        """Return the oldest durable events, at most ``limit``."""
        return tuple(event for event in self._saved.pending[:limit] if event.sequence <= self._durable_sequence)

    def acknowledge(self, events: Iterable[ReplicaEvent]) -> None:
        """Forget events that the control plane has."""
        known = {event.sequence for event in events}
        if known:
            self._saved.pending = [event for event in self._saved.pending if event.sequence not in known]
            self._dirty = True
