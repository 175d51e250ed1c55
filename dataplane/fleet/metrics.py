"""The fleet's figures for Prometheus. States and causes only: nothing of a tenant."""

from collections import Counter as Tally
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dataplane.contracts.replica import ReplicaState, ReplicaTable

_ATTACH_BUCKETS_S = (0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300)


class Metrics:
    """One registry per fleet. ``table`` is read at each scrape."""

    def __init__(self, table: Callable[[], ReplicaTable]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_States(table))
        self.changes = Counter(
            "pagoda_fleet_state_changes", "State changes of replicas.", ["new"], registry=self._registry
        )
        self.failures = Counter(
            "pagoda_fleet_replica_failures", "Ends that nobody ordered.", ["state"], registry=self._registry
        )
        self.attach_seconds = Histogram(
            "pagoda_fleet_attach_seconds",
            "From the order to load a version to READY.",
            buckets=_ATTACH_BUCKETS_S,
            registry=self._registry,
        )

    def render(self) -> bytes:
        """Return the text format."""
        return generate_latest(self._registry)


class _States(Collector):
    def __init__(self, table: Callable[[], ReplicaTable]) -> None:
        self._table = table

    def collect(self) -> Iterable[Metric]:
        tally = Tally(row.state for row in self._table().replicas)
        family = GaugeMetricFamily("pagoda_fleet_replicas", "Replicas by state.", labels=["state"])
        for state in ReplicaState:
            family.add_metric([state.value], tally[state])
        yield family
