"""What the fleet says of the tenants' shares here, and of their service elsewhere, on its way to the engine."""

import math

from dataplane.contracts import probes
from dataplane.contracts.catalog import Share
from dataplane.contracts.generation import CountService, SetTenants
from dataplane.contracts.replica import AddService, SetShares
from dataplane.engine.tenant_budget import check_shares
from dataplane.worker.engine_client import EngineClient


class Sharing:
    """Passes on what is news. What is late or repeated changes nothing: a lost connection's last words may come so.

    Attributes:
        shares: the tenants' shares of the deployment; how much of them is here the engine says.
    """

    def __init__(self, engine: EngineClient) -> None:
        self.shares: dict[str, Share] = {}
        self._engine = engine
        self._number = 0
        self._served_elsewhere: dict[str, float] = {}

    def take(self, call: SetShares | AddService) -> None:
        """Act on one call.

        Raises:
            ValueError: no model is loaded, the guarantees do not fit the pool, or service is negative.
        """
        match call:
            case SetShares():
                self._set(call)
            case AddService(units):
                self._add(units)

    def _set(self, call: SetShares) -> None:
        load = self._engine.load
        if load is None:
            raise ValueError("no model is loaded")
        if call.number < self._number:
            return
        check_shares(call.tenants, load.total_blocks, load.block_size, call.leases)
        self.shares, self._number = call.tenants, call.number
        self._engine.set_tenants(SetTenants(call.tenants | probes.TENANTS, call.leases, call.number))

    def _add(self, totals: dict[str, float]) -> None:
        if not all(0 <= total < math.inf for total in totals.values()):
            raise ValueError("service elsewhere must be 0 or more")
        before = self._served_elsewhere
        news = {id_: total for id_, total in totals.items() if total > before.get(id_, 0.0)}
        if news:
            self._engine.count_service(CountService({id_: total - before.get(id_, 0.0) for id_, total in news.items()}))
            before.update(news)
