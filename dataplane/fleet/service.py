"""Service on several replicas of one version, told to each other, so that their turns are fair together."""

from collections.abc import Container, Mapping


class Exchange:
    """Adds up, for each replica, what the others served each tenant since it is there. Service units; they only grow.

    An engine says how much it served; what it served between two looks counts at all others. So no replica knows of
    service that is younger than a look there, a look here and the step in between, and with that staleness the fair
    counters of all engines are one. What an engine makes of it is its own: it takes no more than a debt.
    """

    def __init__(self) -> None:
        self._served: dict[str, Mapping[str, float]] = {}
        self._elsewhere: dict[str, dict[str, float]] = {}

    def round(self, served: Mapping[str, Mapping[str, float]], granted: Container[str]) -> dict[str, dict[str, float]]:
        """Take what each replica says it served each tenant; return what all others did, for each, since it is known.

        Only what the ``granted`` were served meanwhile is added: a tenant that is granted again does not bring what it
        was served before. What is not in ``served`` is forgotten. One that says less of a tenant than before has
        forgotten that tenant and begun again at 0.
        """
        gains = {id_: _gains(self._served.get(id_, {}), units, granted) for id_, units in served.items()}
        self._served = {id_: dict(units) for id_, units in served.items()}
        self._elsewhere = {id_: self._elsewhere.get(id_, {}) for id_ in served}
        for id_, totals in self._elsewhere.items():
            for other, units in gains.items():
                if other != id_:
                    for tenant_id, gain in units.items():
                        totals[tenant_id] = totals.get(tenant_id, 0.0) + gain
        return {id_: dict(totals) for id_, totals in self._elsewhere.items()}


def _gains(before: Mapping[str, float], now: Mapping[str, float], granted: Container[str]) -> dict[str, float]:
    gains = {}
    for tenant_id, units in now.items():
        known = before.get(tenant_id, 0.0)
        gain = units - known if units >= known else units
        if gain > 0 and tenant_id in granted:
            gains[tenant_id] = gain
    return gains
