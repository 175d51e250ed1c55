"""The node's replica table, numbered so that a reader can wait for the next one."""

import asyncio
import time
from collections.abc import Sequence

from dataplane.contracts.replica import ReplicaReport, ReplicaTable


class Table:
    """The latest table. Numbers start at the clock's milliseconds, so that they grow across lives of the fleet."""

    def __init__(self, node: str) -> None:
        self._changed = asyncio.Event()
        now_ms = time.time_ns() // 1_000_000
        self.latest = ReplicaTable(node=node, number=now_ms, at_ms=now_ms, replicas=())

    def publish(self, rows: Sequence[ReplicaReport]) -> bool:
        """Take ``rows``. Where they differ from the latest the number grows, waiters wake, and True is returned."""
        if tuple(rows) == self.latest.replicas:
            return False
        now_ms = time.time_ns() // 1_000_000
        self.latest = ReplicaTable(
            node=self.latest.node, number=self.latest.number + 1, at_ms=now_ms, replicas=tuple(rows)
        )
        self._changed.set()
        self._changed = asyncio.Event()
        return True

    async def newer_than(self, number: int, wait_s: float) -> ReplicaTable:
        """Return the latest table once its number is not ``number``, or after ``wait_s`` seconds as it is.

        A number from the future comes from a life whose clock was ahead: it is answered at once.
        """
        try:
            async with asyncio.timeout(wait_s):
                while self.latest.number == number:
                    await self._changed.wait()
        except TimeoutError:
            pass
        return self.latest
