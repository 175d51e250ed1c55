"""Who waits for a replica: the latest word of each gateway, as long as it is fresh."""

from collections import Counter, OrderedDict
from collections.abc import Mapping

from dataplane.contracts.replica import Demand

FRESH_S = 5.0
"""A gateway repeats itself every second while anyone waits: what is older comes from one that is gone."""
_MAX_GATEWAYS = 1000


class Demands:
    """Clocks are the caller's, in seconds."""

    def __init__(self) -> None:
        self._latest: OrderedDict[str, tuple[Demand, float]] = OrderedDict()

    def take(self, demand: Demand, now_s: float) -> None:
        """Note what a gateway says; what it said later already stands (two posts may overtake each other)."""
        known = self._latest.get(demand.gateway_id)
        if known is not None and known[0].sequence >= demand.sequence:
            return
        self._latest[demand.gateway_id] = (demand, now_s)
        self._latest.move_to_end(demand.gateway_id)
        while len(self._latest) > _MAX_GATEWAYS:
            self._latest.popitem(last=False)

    def waiting(self, now_s: float) -> Mapping[str, int]:
        """Return how many callers wait, by deployment, of those where any does."""
        for gateway_id, (_, heard_at_s) in list(self._latest.items()):
            if now_s - heard_at_s > FRESH_S:
                del self._latest[gateway_id]
        total: Counter[str] = Counter()
        for demand, _ in self._latest.values():
            total.update({deployment_id: count for deployment_id, count in demand.waiting.items() if count > 0})
        return total
