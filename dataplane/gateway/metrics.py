"""What Prometheus scrapes. A tenant is a label only while there are few; the rest share one."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from dataplane.gateway.exchange import Exchange

CONTENT_TYPE = CONTENT_TYPE_LATEST
MAX_TENANTS = 200
OTHER = "other"
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


class Metrics:
    """Counters and histograms of one gateway, in a registry of its own. Names follow vLLM's where it has them."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._tenants: set[str] = set()
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
        self._ttft = Histogram(
            "pagoda_gateway_time_to_first_token_seconds", "From the accepted request to its first token, streams only.",
            buckets=_SECONDS, registry=self.registry,
        )  # fmt: skip
        self._e2e = Histogram(
            "pagoda_gateway_e2e_request_latency_seconds", "From the request to the end of its answer.",
            buckets=_SECONDS, registry=self.registry,
        )  # fmt: skip

    def watch(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Add a gauge, by its name without our prefix, that is read when it is scraped."""
        Gauge(f"pagoda_gateway_{name}", text, registry=self.registry).set_function(read)

    def tenant_label(self, tenant_id: str) -> str:
        """Return the label of a tenant: its id for the first :data:`MAX_TENANTS`, then one for all others."""
        if tenant_id in self._tenants:
            return tenant_id
        if len(self._tenants) >= MAX_TENANTS:
            return OTHER
        self._tenants.add(tenant_id)
        return tenant_id

    def answered(self, tenant_id: str, code: str, seconds: float, exchange: Exchange | None) -> None:
        """Count one answered request; ``exchange`` where it was accepted."""
        tenant = self.tenant_label(tenant_id) if tenant_id else ""
        self._requests.labels(tenant, code).inc()
        self._e2e.observe(seconds)
        if exchange is None or not exchange.attempts:
            return
        self._redispatches.inc(len(exchange.attempts) - 1)
        last = exchange.attempts[-1]
        self._delivered.labels(tenant).inc(last.delivered_tokens)
        if last.first_token_s is not None:
            self._ttft.observe(last.first_token_s - exchange.attempts[0].started_s)

    def render(self) -> bytes:
        """Return the text that Prometheus reads."""
        return generate_latest(self.registry)
