"""Tells the control plane what runs here: the table and the events, again and again until it has them."""

import asyncio

import httpx
import msgspec
import structlog

from dataplane.contracts.internal_calls import authorization
from dataplane.contracts.replica import FleetReport
from dataplane.fleet import resources
from dataplane.fleet.journal import Journal
from dataplane.fleet.plan import Policy
from dataplane.fleet.probing import Prober
from dataplane.fleet.table import Table
from dataplane.fleet.tier_memory import TierMemory

_EVENTS_PER_REPORT = 500
_TIMEOUT_S = 5.0
_log = structlog.get_logger(__name__)


class Reporter:
    """Posts a :class:`FleetReport` on every change, at least every ``every_s`` seconds."""

    def __init__(
        self,
        *,
        control_url: str,
        internal_secret: str,
        journal: Journal,
        table: Table,
        memory: TierMemory,
        policy: Policy,
        prober: Prober,
        every_s: float = 1.0,
    ) -> None:
        self._client = httpx.AsyncClient(
            base_url=control_url,
            timeout=_TIMEOUT_S,
            trust_env=False,
            headers={"authorization": authorization(internal_secret), "content-type": "application/msgpack"},
        )
        self._journal = journal
        self._table = table
        self._memory = memory
        self._policy = policy
        self._prober = prober
        self._every_s = every_s
        self._reached = True

    async def run(self, until: asyncio.Event) -> None:
        """Report until told, and a last time then. A control plane that is away costs nothing but a line in the log.

        Not to be cancelled: a write of the journal would go on in its thread and meet the next one.
        """
        number = 0
        while not until.is_set():
            number = (await self._table.newer_than(number, self._every_s)).number
            if not await self.report():
                await asyncio.sleep(self._every_s)
        await self.report()
        await self._save()
        await self._client.aclose()

    async def report(self) -> bool:
        """Send one report; return whether the control plane took it."""
        await self._save()
        events = self._journal.sendable(_EVENTS_PER_REPORT)
        report = FleetReport(
            table=self._table.latest,
            events=events,
            costs=dict(self._memory.costs),
            resources=resources.report(self._policy),
            probes=self._prober.unsent(),
        )
        body = msgspec.msgpack.encode(report)
        try:
            answer = await self._client.post("/internal/replicas", content=body)
            answer.raise_for_status()
        except httpx.HTTPError as error:
            if self._reached:
                _log.warning("fleet.report_failed", error=str(error) or type(error).__name__)
            self._reached = False
            return False
        if not self._reached:
            _log.info("fleet.report_taken_again", events=len(events))
        self._reached = True
        self._journal.acknowledge(events)
        self._prober.sent()
        return True

    async def _save(self) -> None:
        snapshot = self._journal.snapshot()
        if snapshot is not None:
            await asyncio.to_thread(self._journal.write, snapshot)
