"""The fleet's table of replicas as this gateway knows it, who is out on which replica, and the wait for a cold one."""

import asyncio
import random
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager

import httpx
import msgspec
import structlog

from dataplane.contracts.errors import ApiError, Code
from dataplane.contracts.internal_calls import authorization
from dataplane.contracts.replica import ReplicaReport, ReplicaState, ReplicaTable
from dataplane.gateway import router
from dataplane.gateway.router import Incarnation, Wanted

_LONG_POLL_S = 10.0
_HTTP_TIMEOUT_S = 15.0
_RETRY_S = 0.25
_PAUSE_S = 0.02
"""Between two answers: a table that changes with every step of a replica is not worth reading more often."""
_SUSPECT_S = 5.0
_DEFAULT_START_S = 5.0
_log = structlog.get_logger(__name__)


class Replicas:
    """Finds a replica for a request, waiting in a bounded queue while none is READY.

    The table stays in force while the fleet is away. A replica that hung up on us is avoided until the table shows
    another life of it, or for a few seconds: the next table may be a quarter of a second away.

    ``away`` says whether the fleet answered last time.

    Args:
        fleet_url: base URL of the fleet.
        internal_secret: bearer of internal calls.
        cold_wait_s: how long a request may wait for a replica.
        max_cold: how many may wait, for each deployment.
    """

    def __init__(self, fleet_url: str, internal_secret: str, *, cold_wait_s: float, max_cold: int) -> None:
        self._fleet_url = fleet_url
        self._internal_secret = internal_secret
        self._cold_wait_s = cold_wait_s
        self._max_cold = max_cold
        self._replicas: tuple[ReplicaReport, ...] = ()
        self._outstanding: Counter[Incarnation] = Counter()
        self._suspect_until_s: dict[Incarnation, float] = {}
        self._waiting: Counter[str] = Counter()
        self._changed = asyncio.Event()
        self.away = False

    @property
    def ready_count(self) -> int:
        """How many replicas the table shows as READY."""
        return sum(report.state is ReplicaState.READY for report in self._replicas)

    @property
    def waiting_count(self) -> int:
        """How many requests wait for a replica."""
        return self._waiting.total()

    def take(self, table: ReplicaTable) -> None:
        """Put ``table`` in force and wake who waits for a replica."""
        self._replicas = table.replicas
        living = {router.incarnation(report) for report in table.replicas}
        self._suspect_until_s = {life: until for life, until in self._suspect_until_s.items() if life in living}
        # Each waiter took hold of the event that was current when it looked, so none can miss this change.
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def suspect(self, report: ReplicaReport) -> None:
        """Avoid a replica that broke off."""
        self._suspect_until_s[router.incarnation(report)] = asyncio.get_running_loop().time() + _SUSPECT_S

    @contextmanager
    def on(self, report: ReplicaReport) -> Iterator[None]:
        """Count a request as outstanding on a replica while the block runs."""
        life = router.incarnation(report)
        self._outstanding[life] += 1
        try:
            yield
        finally:
            self._outstanding[life] -= 1
            if not self._outstanding[life]:
                del self._outstanding[life]

    async def find(self, wanted: Wanted, avoid: Collection[Incarnation] = ()) -> ReplicaReport:
        """Return a replica for ``wanted``, never one of ``avoid``.

        Raises:
            ApiError: MODEL_COLD when none became READY in time, OVERLOADED when too many wait already.
        """
        found = self._choose(wanted, avoid)
        if found is not None:
            return found
        if self._waiting[wanted.deployment_id] >= self._max_cold:
            raise ApiError(
                Code.OVERLOADED,
                f"{self._max_cold} requests already wait for this model to start. Try again later.",
                retry_after_s=self._start_s(wanted),
            )
        self._waiting[wanted.deployment_id] += 1
        try:
            async with asyncio.timeout(self._cold_wait_s):
                return await self._wait(wanted, avoid)
        except TimeoutError:
            raise ApiError(
                Code.MODEL_COLD,
                f"No replica of this model became ready in {self._cold_wait_s:.0f} s. It may still be starting.",
                retry_after_s=self._start_s(wanted),
            ) from None
        finally:
            self._waiting[wanted.deployment_id] -= 1

    async def _wait(self, wanted: Wanted, avoid: Collection[Incarnation]) -> ReplicaReport:
        while True:
            changed = self._changed
            found = self._choose(wanted, avoid)
            if found is not None:
                return found
            try:
                async with asyncio.timeout(self._next_suspect_s()):
                    await changed.wait()
            except TimeoutError:
                continue  # a suspicion lapsed

    def _next_suspect_s(self) -> float | None:
        if not self._suspect_until_s:
            return None
        return max(0.0, min(self._suspect_until_s.values()) - asyncio.get_running_loop().time())

    def _choose(self, wanted: Wanted, avoid: Collection[Incarnation]) -> ReplicaReport | None:
        now_s = asyncio.get_running_loop().time()
        for life in [life for life, until_s in self._suspect_until_s.items() if until_s <= now_s]:
            del self._suspect_until_s[life]
        ready = router.candidates(self._replicas, wanted, lambda life: life in avoid or life in self._suspect_until_s)
        return router.choose(ready, wanted, self._outstanding, random.random)

    def _start_s(self, wanted: Wanted) -> float:
        """Return when a cold caller should ask again: how long a load took before, spread."""
        loads_ms = [r.loaded_in_ms for r in self._replicas if r.deployment_id == wanted.deployment_id]
        start_s = max(loads_ms, default=0) / 1000 or _DEFAULT_START_S
        return start_s * random.uniform(1.0, 1.5)  # noqa: S311 - spreads retries, hides nothing

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

    async def _poll(self, client: httpx.AsyncClient, after: int | None) -> int | None:
        query: dict[str, str | float] = {} if after is None else {"after": after, "wait_s": _LONG_POLL_S}
        answer = await client.get("/replicas", params=query)
        if answer.status_code == httpx.codes.NOT_MODIFIED:
            return after
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
