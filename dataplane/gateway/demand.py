"""Tells the fleet which deployments are waited for, so that it wakes them and keeps them awake."""

import asyncio
from collections import Counter

import httpx
import msgspec
import structlog

from dataplane.contracts.internal_calls import authorization
from dataplane.contracts.replica import Demand

_EVERY_S = 1.0
_PAUSE_S = 0.05
"""Between two posts, however fast callers come and go."""
_RETRY_S = 0.25
_HTTP_TIMEOUT_S = 5.0
_log = structlog.get_logger(__name__)


class Ledger:
    """How many wait for each deployment, and what the fleet was told of it. Pure.

    What is told is the most that waited since the last time: a request that may not wait at all wakes its model too.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, int] = {}
        self._most: Counter[str] = Counter()
        self._told: dict[str, int] = {}

    def set(self, deployment_id: str, waiting: int) -> None:
        """Note that ``waiting`` requests wait for a deployment now."""
        if waiting:
            self._most[deployment_id] = max(self._most[deployment_id], waiting)
            self._waiting[deployment_id] = waiting
        else:
            self._waiting.pop(deployment_id, None)

    @property
    def is_urgent(self) -> bool:
        """Whether a deployment is waited for of which the fleet does not know it."""
        return bool(self._most.keys() - self._told.keys())

    @property
    def is_due(self) -> bool:
        """Whether there is anything to tell within the second.

        That nobody waits any more is not urgent: a fleet that is told so at once may not have seen that anybody did.
        """
        return bool(self._most or self._told)

    def message(self) -> dict[str, int]:
        """Return what to tell: every deployment that is waited for, and with 0 those that no longer are."""
        return {name: self._most[name] for name in self._most.keys() | self._told.keys()}

    def told(self, message: dict[str, int]) -> None:
        """Note that the fleet has taken ``message``; what came after it was made is still to be told."""
        for name, most in message.items():
            if self._most[name] <= most:
                self._most[name] = self._waiting.get(name, 0)
        self._most = +self._most  # drops zeros
        self._told = {name: most for name, most in message.items() if most}


class DemandPost:
    """Posts the ledger: at once for a deployment that was not waited for, else each second; again if the fleet is away.

    Args:
        fleet_url: base URL of the fleet.
        internal_secret: bearer of internal calls.
        gateway_id: this life of this gateway.
    """

    def __init__(self, fleet_url: str, internal_secret: str, gateway_id: str) -> None:
        self._fleet_url = fleet_url
        self._internal_secret = internal_secret
        self._gateway_id = gateway_id
        self._ledger = Ledger()
        self._changed = asyncio.Event()
        self._sequence = 0
        self._away = False

    def set(self, deployment_id: str, waiting: int) -> None:
        """Note that ``waiting`` requests wait for a deployment now."""
        self._ledger.set(deployment_id, waiting)
        if self._ledger.is_urgent:
            self._changed.set()

    async def run(self) -> None:
        """Post until cancelled."""
        headers = {"authorization": authorization(self._internal_secret)}
        async with httpx.AsyncClient(
            base_url=self._fleet_url, headers=headers, timeout=_HTTP_TIMEOUT_S, trust_env=False
        ) as client:
            while True:
                await self._due()
                await asyncio.sleep(_PAUSE_S if await self._post(client) else _RETRY_S)

    async def _due(self) -> None:
        try:
            async with asyncio.timeout(_EVERY_S if self._ledger.is_due else None):
                while not self._ledger.is_urgent:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            pass

    async def _post(self, client: httpx.AsyncClient) -> bool:
        message = self._ledger.message()
        self._sequence += 1
        try:
            demand = Demand(gateway_id=self._gateway_id, sequence=self._sequence, waiting=message)
            answer = await client.post("/demand", content=msgspec.json.encode(demand))
            answer.raise_for_status()
        except httpx.HTTPError as error:
            if not self._away:
                _log.warning("demand.fleet_away", error=str(error) or type(error).__name__)
            self._away = True
            return False
        self._away = False
        self._ledger.told(message)
        return True
