"""The writing side of a spool: appends from an event loop, group commit in one thread."""

import asyncio
import threading
import time
from pathlib import Path
from typing import NamedTuple

import structlog

from dataplane.contracts.usage import UsageRecord
from dataplane.spool import folder, segment
from dataplane.spool.segment import SegmentWriter

_SEGMENT_BYTES = 1024 * 1024
_RETRY_S = 0.5
_MEASURE_EVERY_S = 0.5
_log = structlog.get_logger(__name__)


class SpoolFull(Exception):
    """No room for another admission: refuse the request, and say that the service (not the tenant) is at fault."""


class _Entry(NamedTuple):
    frame: bytes
    waiter: asyncio.Future[None] | None


class SpoolWriter:
    """One process's spool.

    ``max_bytes`` bounds everything under ``root``, orphans of crashed writers included, so that a crash loop cannot
    fill the disk. Beyond it nothing new is admitted, but what is already admitted still has a quarter of ``max_bytes``
    to write its records into: usage is never lost to a full spool.

    Args:
        root: the node's spool folder.
        owner: the replica's or gateway's id.
        max_bytes: where admission stops.

    Raises:
        OSError: the spool cannot be made.
    """

    def __init__(self, root: Path, owner: str, max_bytes: int) -> None:
        self._root = root
        self._max_bytes = max_bytes
        self._folder = folder.SpoolFolder.create(root, owner)
        self._segments = SegmentWriter(self._folder.path, min(_SEGMENT_BYTES, max(1, max_bytes // 8)))
        self._changed = threading.Condition()
        self._pending: list[_Entry] = []
        self._pending_bytes = 0
        self._closing = False
        self._disk_error = ""
        self._used_bytes = 0
        self._measured_s = float("-inf")
        self._thread = threading.Thread(target=self._run, name="spool-writer", daemon=True)
        self._thread.start()

    @property
    def full(self) -> bool:
        """Whether admission must stop: over ``max_bytes``, or the disk refuses writes."""
        return bool(self._disk_error) or self._bytes_now() >= self._max_bytes

    def append_nowait(self, record: UsageRecord) -> None:
        """Queue ``record``; it is on the disk a moment later. For what an admitted request still has to say.

        Raises:
            SpoolFull: a quarter over ``max_bytes``: admission should have stopped long before.
            RuntimeError: the writer is closed.
        """
        if self._bytes_now() >= self._max_bytes + self._max_bytes // 4:
            raise SpoolFull(f"the usage spool holds {self._used_bytes} bytes, a quarter over its limit")
        self._push(segment.encode(record), None)

    async def append(self, record: UsageRecord) -> None:
        """Return once ``record`` is on the disk. When this is cancelled, the record may or may not be.

        Raises:
            SpoolFull: over ``max_bytes``, or the disk refused the write.
            RuntimeError: the writer is closed.
        """
        if self.full:
            raise SpoolFull(self._disk_error or f"the usage spool holds {self._used_bytes} bytes, its limit")
        waiter = asyncio.get_running_loop().create_future()
        self._push(segment.encode(record), waiter)
        await waiter

    async def close(self) -> None:
        """Flush what is queued and let go of the spool; records a dead disk refused are named in the log."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        await asyncio.to_thread(self._thread.join)

    def _push(self, frame: bytes, waiter: asyncio.Future[None] | None) -> None:
        with self._changed:
            if self._closing:
                raise RuntimeError("the spool writer is closed")
            self._pending.append(_Entry(frame, waiter))
            self._pending_bytes += len(frame)
            self._changed.notify()

    def _bytes_now(self) -> int:
        now = time.monotonic()
        if now - self._measured_s >= _MEASURE_EVERY_S:
            self._measured_s = now
            self._used_bytes = folder.used_bytes(self._root)
        return self._used_bytes + self._pending_bytes

    def _run(self) -> None:
        while batch := self._take():
            last_try = self._closing
            try:
                self._segments.append(b"".join(entry.frame for entry in batch))
            except OSError as error:
                self._keep(batch, error)
                if last_try:
                    self._give_up()
                    break
                continue
            self._disk_error = ""
            with self._changed:
                self._used_bytes += sum(len(entry.frame) for entry in batch)
                self._pending_bytes -= sum(len(entry.frame) for entry in batch)
            _settle(batch, None)
        self._segments.close()
        self._folder.release()

    def _take(self) -> list[_Entry]:
        """Wait for entries; everything that arrived during the last flush is one group. Empty means closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending or self._closing)
            batch, self._pending = self._pending, []
            return batch

    def _keep(self, batch: list[_Entry], error: OSError) -> None:
        """Refuse the admissions of a failed write, keep the rest, and wait a moment before the next try."""
        self._disk_error = f"the usage spool cannot be written: {error.strerror}"
        _settle(batch, SpoolFull(self._disk_error))
        kept = [entry for entry in batch if entry.waiter is None]
        _log.error("spool_write_failed", error=str(error), records_kept=len(kept))
        with self._changed:
            self._pending = kept + self._pending
            self._pending_bytes = sum(len(entry.frame) for entry in self._pending)
            self._changed.wait_for(lambda: self._closing, timeout=_RETRY_S)

    def _give_up(self) -> None:
        """The disk refused the last try of a closing writer: say what is lost."""
        with self._changed:
            lost, self._pending = self._pending, []
        _settle(lost, SpoolFull(self._disk_error))
        _log.critical("usage_lost", records=len(lost), reason=self._disk_error)


def _settle(batch: list[_Entry], error: Exception | None) -> None:
    """Wake the waiters, all of one loop in one call."""
    by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for entry in batch:
        if entry.waiter is not None:
            by_loop.setdefault(entry.waiter.get_loop(), []).append(entry.waiter)
    for loop, waiters in by_loop.items():
        if not loop.is_closed():
            loop.call_soon_threadsafe(_wake, waiters, error)


def _wake(waiters: list[asyncio.Future[None]], error: Exception | None) -> None:
    for waiter in waiters:
        if waiter.done():
            continue  # its caller was cancelled
        if error is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(error)
