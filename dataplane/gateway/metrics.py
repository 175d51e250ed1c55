"""What Prometheus scrapes. A tenant or a version is a label only while there are few; the rest share one."""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from dataplane.contracts.catalog import Catalog
from dataplane.gateway.exchange import Exchange

CONTENT_TYPE = CONTENT_TYPE_LATEST
MAX_VALUES = 200
OTHER = "other"
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


class Metrics:
    """Counters and histograms of one gateway, in a registry of its own. Names follow vLLM's where it has them.

    Args:
        catalog: returns the one in force, whose weights are shown.
    """

    def __init__(self, catalog: Callable[[], Catalog]) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_Weights(catalog))
        self._tenants = _Few()
        self._versions = _Few()
        self._requests = Counter(
            "pagoda_gateway_requests", "Requests answered, by the code of the error or 'ok'.", ["tenant", "code"],
            registry=self.registry,
        )  # fmt: skip
        self._delivered = Counter(
            "pagoda_gateway_generation_tokens", "Completion tokens delivered.", ["tenant"], registry=self.registry
        )
        self._redispatches = Counter(
            "pagoda_gateway_redispatches", "Requests sent to a second replica.", registry=self.registry
        )
        self._arm_requests = Counter(
            "pagoda_gateway_arm_requests", "Accepted requests answered, by the arm and version that had them last.",
            ["version", "arm", "code"], registry=self.registry,
        )  # fmt: skip
        self._ttft = Histogram(
            "pagoda_gateway_time_to_first_token_seconds", "From the accepted request to its first token, streams only.",
            ["version", "arm"], buckets=_SECONDS, registry=self.registry,
        )  # fmt: skip
        self._e2e = Histogram(
            "pagoda_gateway_e2e_request_latency_seconds", "From the request to the end of its answer.",
            buckets=_SECONDS, registry=self.registry,
        )  # fmt: skip

    def watch(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Add a gauge, by its name without our prefix, that is read when it is scraped."""
        Gauge(f"pagoda_gateway_{name}", text, registry=self.registry).set_function(read)

    def answered(self, tenant_id: str, code: str, seconds: float, exchange: Exchange | None) -> None:
        """Count one answered request; ``exchange`` where it was accepted."""
        tenant = self._tenants.label(tenant_id)
        self._requests.labels(tenant, code).inc()
        self._e2e.observe(seconds)
        if exchange is None or not exchange.attempts:
            return
        version, arm = self._versions.label(exchange.arm.version_id), exchange.arm.name
        self._arm_requests.labels(version, arm, code).inc()
        self._redispatches.inc(len(exchange.attempts) - 1)
        last = exchange.attempts[-1]
        self._delivered.labels(tenant).inc(last.delivered_tokens)
        if last.first_token_s is not None:
            self._ttft.labels(version, arm).observe(last.first_token_s - exchange.attempts[0].started_s)

    def render(self) -> bytes:
        """Return the text that Prometheus reads."""
        return generate_latest(self.registry)


class _Few:
    """The values of a label: each as it is for the first :data:`MAX_VALUES`, then one for all others."""

    def __init__(self) -> None:
        self._known = {""}

    def label(self, value: str) -> str:
        if value not in self._known:
            if len(self._known) > MAX_VALUES:
                return OTHER
            self._known.add(value)
        return value


class _Weights(Collector):
    def __init__(self, catalog: Callable[[], Catalog]) -> None:
        self._catalog = catalog

    def collect(self) -> Iterable[Metric]:
        family = GaugeMetricFamily(
            "pagoda_gateway_arm_weight", "Per cent of a deployment's traffic.", labels=["deployment", "arm", "version"]
        )
        for deployment in self._catalog().deployments.values():
            for arm in deployment.arms:
                family.add_metric([deployment.id, arm.name, arm.version_id], arm.weight)
        yield family
