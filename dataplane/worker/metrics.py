"""What ``/metrics`` shows, under the names of vLLM's metrics with the prefix ``pagoda_``."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from dataplane.contracts.generation import EngineLoad, TenantLoad

_MAX_TENANT_LABELS = 100
_OTHER = "other"
_SECONDS = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120)


class _EngineCounters(Collector):
    """Counters that the engine keeps; they are shown as they are, never counted twice."""

    def __init__(self) -> None:
        self.load: EngineLoad | None = None
        self.step_s = 0.0
        self.model_s = 0.0

    def collect(self) -> list[CounterMetricFamily]:
        load = self.load
        if load is None:
            return []
        totals: dict[str, tuple[str, float]] = {
            "pagoda_num_preemptions": ("Sequences set back to free blocks.", load.num_preemptions),
            "pagoda_prefix_cache_queries": ("Prompt tokens looked up.", load.prefix_cache_queries_tokens),
            "pagoda_prefix_cache_hits": ("Prompt tokens found.", load.prefix_cache_hits_tokens),
            "pagoda_prompt_tokens": ("Prompt tokens computed.", load.prompt_tokens),
            "pagoda_generation_tokens": ("Tokens generated.", load.generation_tokens),
            "pagoda_failed_rows": ("Rows that the model could not compute.", load.failed_rows),
            "pagoda_engine_steps": ("Steps of the engine.", load.step),
            "pagoda_engine_step_seconds": ("Time of all steps.", self.step_s),
            "pagoda_engine_model_seconds": ("Part of that inside the model.", self.model_s),
        }
        families = []
        for name, (text, value) in totals.items():
            family = CounterMetricFamily(name, text)
            family.add_metric([], value)
            families.append(family)
        return families


class Metrics:
    """One worker's metrics in a registry of their own. A tenant beyond the first hundred is counted as ``other``."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._tenants: set[str] = set()
        self._counters = _EngineCounters()
        self.registry.register(self._counters)
        self._running = self._gauge("num_requests_running", "Sequences that run.")
        self._waiting = self._gauge("num_requests_waiting", "Sequences that wait.")
        self._kv_usage = self._gauge("kv_cache_usage_perc", "Part of the KV blocks that sequences hold, 0 to 1.")
        self._kv_cached = self._gauge(
            "kv_cache_cached_perc", "Part of the KV blocks that only the cache holds, 0 to 1."
        )
        self._tenant_blocks = Gauge(
            "pagoda_tenant_kv_blocks", "KV blocks of a tenant's sequences.", ["tenant"], registry=self.registry
        )
        self._ttft = self._histogram("time_to_first_token_seconds", "From arrival to the first token.")
        self._tpot = self._histogram(
            "time_per_output_token_seconds", "Mean time of a request's tokens after the first."
        )
        self._e2e = self._histogram("e2e_request_latency_seconds", "From arrival to the end.")
        self._queue = self._histogram("request_queue_time_seconds", "From arrival to the first step.")
        self._prefill = self._histogram("request_prefill_time_seconds", "From the first step to the first token.")
        self._decode = self._histogram("request_decode_time_seconds", "From the first token to the last.")
        self._success = Counter(
            "pagoda_request_success", "Requests that ended.", ["finished_reason", "tenant"], registry=self.registry
        )
        self._rejections = Counter(
            "pagoda_admission_rejections", "Requests refused.", ["reason", "tenant"], registry=self.registry
        )

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"pagoda_{name}", text, registry=self.registry)

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(f"pagoda_{name}", text, ["tenant"], buckets=_SECONDS, registry=self.registry)

    def _label(self, tenant_id: str) -> str:
        if tenant_id not in self._tenants:
            if len(self._tenants) >= _MAX_TENANT_LABELS:
                return _OTHER
            self._tenants.add(tenant_id)
        return tenant_id

    def rejected(self, tenant_id: str, reason: str) -> None:
        """Count a refusal by its error code."""
        self._rejections.labels(reason, self._label(tenant_id)).inc()

    def ended(self, tenant_id: str, finished_reason: str) -> None:
        """Count the end of an admitted request."""
        self._success.labels(finished_reason, self._label(tenant_id)).inc()

    def timed(
        self, tenant_id: str, *, queue_s: float, ttft_s: float, e2e_s: float, last_token_s: float, num_tokens: int
    ) -> None:
        """Observe the times of a request that got tokens; all are counted from its arrival except ``queue_s``.

        Time per output token is (last - first) / (tokens - 1), as the field's benchmarks define it.
        """
        label = self._label(tenant_id)
        self._queue.labels(label).observe(queue_s)
        self._ttft.labels(label).observe(ttft_s)
        self._prefill.labels(label).observe(max(ttft_s - queue_s, 0))
        self._decode.labels(label).observe(last_token_s - ttft_s)
        self._e2e.labels(label).observe(e2e_s)
        if num_tokens > 1:
            self._tpot.labels(label).observe((last_token_s - ttft_s) / (num_tokens - 1))

    def render(self, load: EngineLoad | None, tenants: list[TenantLoad], *, step_s: float, model_s: float) -> bytes:
        """Return the page for a scrape; ``step_s`` and ``model_s`` are the engine's times so far."""
        self._counters.load, self._counters.step_s, self._counters.model_s = load, step_s, model_s
        if load is not None:
            self._running.set(load.num_running)
            self._waiting.set(load.num_waiting)
            self._kv_usage.set(load.owned_blocks / load.total_blocks)
            self._kv_cached.set(load.cached_blocks / load.total_blocks)
        self._tenant_blocks.clear()
        blocks: dict[str, int] = {}
        for tenant in tenants:
            label = self._label(tenant.tenant_id)
            blocks[label] = blocks.get(label, 0) + tenant.owned_blocks
        for label, owned in blocks.items():
            self._tenant_blocks.labels(label).set(owned)
        return generate_latest(self.registry)
