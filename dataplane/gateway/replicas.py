"""The fleet's table of replicas as this gateway knows it, and who is out on which replica."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Collection

import httpx
import msgspec
import structlog

from dataplane.contracts.internal_calls import authorization
from dataplane.contracts.replica import ReplicaReport, ReplicaState, ReplicaTable
from dataplane.gateway import eta, router, slow_start
from dataplane.gateway.cold_queue import Held
from dataplane.gateway.router import Incarnation, Wanted
from dataplane.gateway.slow_start import Ramp

_LONG_POLL_S = 10.0
_HTTP_TIMEOUT_S = 15.0
_RETRY_S = 0.25
_PAUSE_S = 0.02
"""Between two answers: a table that changes with every step of a replica is not worth reading more often."""
_SUSPECT_S = 5.0
_log = structlog.get_logger(__name__)


class Replicas:
    """Finds a replica for a request.

    The table stays in force while the fleet is away. A replica that hung up on us is avoided until the table shows
    another life of it, or for a few seconds: the next table may be a quarter of a second away.

    ``away`` says whether the fleet answered last time; ``on_change`` is called when another replica may be found.

    Args:
        fleet_url: base URL of the fleet.
        internal_secret: bearer of internal calls.
    """

    def __init__(self, fleet_url: str, internal_secret: str) -> None:
        self._fleet_url = fleet_url
        self._internal_secret = internal_secret
        self._replicas: tuple[ReplicaReport, ...] = ()
        self._outstanding: Counter[Incarnation] = Counter()
        self._ramps: dict[Incarnation, Ramp] = {}
        self._suspected: dict[Incarnation, asyncio.TimerHandle] = {}
        self.on_change: Callable[[], None] = lambda: None
        self.away = False

    @property
    def ready_count(self) -> int:
        """How many replicas the table shows as READY."""
        return sum(report.state is ReplicaState.READY for report in self._replicas)

    def cold(self, key: tuple[str, str]) -> bool:
        """Return whether the table shows no READY replica for requests with ``key``."""
        return not any(
            row.state is ReplicaState.READY and (row.deployment_id, row.version_id) == key for row in self._replicas
        )

    def take(self, table: ReplicaTable) -> None:
        """Put ``table`` in force."""
        self._replicas = table.replicas
        self._ramps = slow_start.ramps(self._ramps, table)
        for life in self._suspected.keys() - {router.incarnation(report) for report in table.replicas}:
            self._suspected.pop(life).cancel()
        self.on_change()

    def suspect(self, report: ReplicaReport) -> None:
        """Avoid a replica that broke off."""
        life = router.incarnation(report)
        if life in self._suspected:
            self._suspected[life].cancel()
        self._suspected[life] = asyncio.get_running_loop().call_later(_SUSPECT_S, self._trust, life)

    def _trust(self, life: Incarnation) -> None:
        del self._suspected[life]
        self.on_change()

    def sent(self, report: ReplicaReport) -> None:
        """Count a request as under way at a replica, until :meth:`ended`."""
        self._outstanding[router.incarnation(report)] += 1

    def ended(self, report: ReplicaReport) -> None:
        """Count a request as under way no longer."""
        life = router.incarnation(report)
        self._outstanding[life] -= 1
        if not self._outstanding[life]:
            del self._outstanding[life]

    def find(self, wanted: Wanted, avoid: Collection[Incarnation], *, paced: bool) -> ReplicaReport | Held:
        """Return a replica for ``wanted``, never one of ``avoid``, of those where slow start allows one more.

        ``paced``: for one that waited, which goes only where it can run. Others go to whatever has come up to its pace.
        """
        ready = self._ready(wanted, avoid)
        if not ready:
            return Held.NO_REPLICA
        open_ = [report for report in ready if self._has_room(report, wanted, paced=paced)]
        return router.choose(open_, wanted, self._outstanding, random.random) or Held.NO_ROOM

    def serve(self, wanted: Wanted, avoid: Collection[Incarnation]) -> bool:
        """Return whether a READY replica could take ``wanted``, at once or in its turn."""
        return bool(self._ready(wanted, avoid))

    def _ready(self, wanted: Wanted, avoid: Collection[Incarnation]) -> list[ReplicaReport]:
        return router.candidates(self._replicas, wanted, lambda life: life in avoid or life in self._suspected)

    def _has_room(self, report: ReplicaReport, wanted: Wanted, *, paced: bool) -> bool:
        life = router.incarnation(report)
        ramp = self._ramps[life]
        if not paced and slow_start.is_over(ramp, wanted):
            return True
        return slow_start.has_room(report, wanted, self._outstanding.get(life, 0), ramp.limit)

    def expected_s(self, wanted: Wanted) -> float | None:
        """Return the seconds until a replica for ``wanted`` should be READY, where the fleet has measured it."""
        rows = [row for row in self._replicas if (row.deployment_id, row.version_id) == wanted.key]
        return eta.expected_s(rows, time.time_ns() // 1_000_000)

    async def run(self) -> None:
        """Follow the fleet's table by long poll until cancelled."""
        headers = {"authorization": authorization(self._internal_secret)}
        after: int | None = None
        async with httpx.AsyncClient(
            base_url=self._fleet_url, headers=headers, timeout=_HTTP_TIMEOUT_S, trust_env=False
        ) as client:
            while True:
                try:
                    after = await self._poll(client, after)
                    self._back()
                    await asyncio.sleep(_PAUSE_S)
                except (httpx.HTTPError, msgspec.DecodeError) as error:
                    # The fleet may be a new process that counts from the start again.
                    after = None
                    self._lost(error)
                    await asyncio.sleep(_RETRY_S)

    async def _poll(self, client: httpx.AsyncClient, after: int | None) -> int:
        query: dict[str, str | float] = {} if after is None else {"after": after, "wait_s": _LONG_POLL_S}
        answer = await client.get("/replicas", params=query)
        answer.raise_for_status()
        table = msgspec.json.decode(answer.content, type=ReplicaTable)
        if table.number != after:
            self.take(table)
        return table.number

    def _back(self) -> None:
        if self.away:
            _log.info("replicas.fleet_back")
        self.away = False

    def _lost(self, error: Exception) -> None:
        if not self.away:
            _log.warning("replicas.fleet_away", error=str(error) or type(error).__name__)
        self.away = True
