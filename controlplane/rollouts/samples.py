"""What the judge sees of a request, whose fault an error is, and which requests are alike. Pure."""

import math
from collections.abc import Sequence
from enum import StrEnum

import msgspec
import numpy as np

from controlplane.rollouts.statistics import Column, Floats, Ints
from dataplane.contracts.errors import Code

CLIENT_GONE = "client_gone"
"""The error code of a sample whose caller left before the end: nobody's fault, but its answer is not whole."""
_LEAST_CLUSTERS = 20
"""With fewer tenants each one's requests are cut into spans of time, so that the spread between clusters is known."""


class Fault(StrEnum):
    """Whose fault an error is.

    CALLER: the caller's or a limit's; it says nothing of a version. OURS: the service's, and of all that changed the
    version is the suspect. EITHER: the version's files and the caller's text do not agree. It counts for a promotion,
    where callers are seen to differ, but stops nothing at once: one caller's strange texts all land on one arm.
    """

    CALLER = "caller"
    OURS = "ours"
    EITHER = "either"


FAULTS: dict[Code, Fault] = {
    Code.INVALID_REQUEST: Fault.CALLER,
    Code.INVALID_JSON: Fault.CALLER,
    Code.UNSUPPORTED_PARAMETER: Fault.CALLER,
    Code.INVALID_PARAMETER: Fault.CALLER,
    Code.CONTEXT_LENGTH_EXCEEDED: Fault.CALLER,
    Code.REQUEST_TOO_LARGE_FOR_BUDGET: Fault.CALLER,
    Code.TOKENIZER_FAILED: Fault.EITHER,
    Code.TEMPLATE_FAILED: Fault.EITHER,
    Code.GRAMMAR_FAILED: Fault.CALLER,
    Code.BODY_TOO_LARGE: Fault.CALLER,
    Code.INVALID_API_KEY: Fault.CALLER,
    Code.KEY_REVOKED: Fault.CALLER,
    Code.SCOPE_MISSING: Fault.CALLER,
    Code.TENANT_SUSPENDED: Fault.CALLER,
    Code.MODEL_NOT_FOUND: Fault.CALLER,
    Code.NOT_FOUND: Fault.CALLER,
    Code.METHOD_NOT_ALLOWED: Fault.CALLER,
    Code.REQUESTS_PER_MINUTE: Fault.CALLER,
    Code.TOKENS_PER_MINUTE: Fault.CALLER,
    Code.CONCURRENT_REQUESTS: Fault.CALLER,
    Code.MAX_REQUEST_TOKENS: Fault.CALLER,
    Code.QUEUE_FULL: Fault.CALLER,
    Code.OVERLOADED: Fault.OURS,
    Code.MODEL_COLD: Fault.OURS,
    Code.MODEL_PAUSED: Fault.CALLER,
    Code.REPLICA_LOST: Fault.OURS,
    Code.QUEUE_TIMEOUT: Fault.OURS,
    Code.SPOOL_FULL: Fault.OURS,
    Code.REQUEST_FAILED: Fault.OURS,
    Code.LOGITS_NOT_FINITE: Fault.OURS,
    Code.SHUTTING_DOWN: Fault.OURS,
    Code.INTERNAL: Fault.OURS,
}
"""Every code of the data plane. A test fails for one that is missing."""
_BY_CODE = {code.code: fault for code, fault in FAULTS.items()}


def fault_of(error_code: str) -> Fault:
    """Return whose fault an error is; one that nobody knows is ours."""
    return _BY_CODE.get(error_code, Fault.OURS)


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One settled request of an arm. ``at_ms`` is when it began; None is what is not known.

    ``error``: it failed, and not by its caller's fault. ``hit_length_limit``: the answer was cut at its most tokens.
    ``batch_rows`` is the mean number of requests that were computed together with it. ``cold``: it waited for a replica
    to start.
    """

    tenant_id: str
    at_ms: int
    error: bool = False
    error_code: str = ""
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    hit_length_limit: bool = False
    kv_blocks: int | None = None
    preemptions: int | None = None
    batch_rows: float | None = None
    cold: bool = False


class Arm:
    """The samples of an arm as columns, in order of time. Unknown numbers are NaN.

    Args:
        samples: of the arm.
        tenants: numbers of the tenants, the same for both arms.
        borders_ms: where the spans of time begin that clusters of few tenants are made of.
    """

    def __init__(self, samples: Sequence[Sample], tenants: dict[str, int], borders_ms: Sequence[float]) -> None:
        samples = sorted(samples, key=lambda sample: (sample.at_ms, sample.tenant_id))
        tenant = np.array([tenants[sample.tenant_id] for sample in samples], dtype=np.int64)
        at_ms = np.array([sample.at_ms for sample in samples], dtype=np.float64)
        self.size = len(samples)
        self.clusters = tenant * (len(borders_ms) + 1) + np.searchsorted(np.array(borders_ms), at_ms, side="right")
        self.errors = np.array([sample.error for sample in samples], dtype=np.float64)
        self.ours = np.array(
            [sample.error and fault_of(sample.error_code) is Fault.OURS for sample in samples], dtype=np.float64
        )
        self.whole = np.array([not sample.error and not sample.error_code for sample in samples], dtype=np.bool_)
        self.warm = np.array([not sample.error and not sample.cold for sample in samples], dtype=np.bool_)
        self.ttft_ms = _floats([sample.ttft_ms for sample in samples])
        self.tpot_ms = _floats([sample.tpot_ms for sample in samples])
        self.output_tokens = _floats([sample.output_tokens for sample in samples])
        self.cut = _floats([sample.hit_length_limit for sample in samples])
        self.kv_blocks = _floats([sample.kv_blocks for sample in samples])
        self.preempted = _floats([None if sample.preemptions is None else sample.preemptions > 0 for sample in samples])
        inputs = _bucket(_floats([sample.prompt_tokens for sample in samples]) / 32, 4)
        hits = np.array([0 < sample.prompt_tokens <= 2 * sample.cached_tokens for sample in samples], dtype=np.int64)
        self.batch_rows = _floats([sample.batch_rows for sample in samples])
        batches = _bucket(self.batch_rows / 1.5, 2)
        self.by_input = inputs
        self.by_load = (inputs * 2 + hits) * _BUCKETS + batches
        self.by_batch = inputs * _BUCKETS + batches
        self.by_tenant = tenant * _BUCKETS + inputs

    def column(self, values: Floats, strata: Ints, among: np.typing.NDArray[np.bool_]) -> Column:
        """Return one measure of the rows ``among``, where it is known."""
        return Column(values, strata, self.clusters).only(among & ~np.isnan(values))


def arms_of(candidate: Sequence[Sample], stable: Sequence[Sample]) -> tuple[Arm, Arm]:
    """Return both arms as columns: strata and clusters have the same numbers in both.

    A cluster is a tenant. Of few tenants it is a tenant in a span of time, and what is concluded holds for these
    tenants: how others would differ from them is not known.
    """
    tenants = {tenant: number for number, tenant in enumerate(sorted({s.tenant_id for s in (*candidate, *stable)}))}
    seen = len({sample.tenant_id for sample in candidate})
    spans = math.ceil(_LEAST_CLUSTERS / seen) if seen else 1
    borders_ms: list[float] = []
    if spans > 1:
        at_ms = np.array([sample.at_ms for sample in candidate], dtype=np.float64)
        borders_ms = np.quantile(at_ms, np.arange(1, spans) / spans).tolist()
    return Arm(candidate, tenants, borders_ms), Arm(stable, tenants, borders_ms)


_BUCKETS = 16


def _bucket(values: Floats, base: int) -> Ints:
    """Number sizes by their order of magnitude from 1; what is not known has the number 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        order = np.ceil(np.log(values) / math.log(base))
    return np.where(np.isnan(values), 0, 1 + np.clip(order, 0, _BUCKETS - 2)).astype(np.int64)


def _floats(values: Sequence[float | None]) -> Floats:
    return np.array([math.nan if value is None else value for value in values], dtype=np.float64)
