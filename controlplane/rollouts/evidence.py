"""What the judge goes by: the settled requests of a rollout's two arms, and all of it as one sealed bundle.

It reads as one of the product's own processes: a deployment's callers are of many tenants. What leaves is numbers of
arms, and never a request or a caller.
"""

import hashlib
from datetime import datetime, timedelta

import msgspec
from django.utils import timezone

from controlplane.metering import arm_selectors
from controlplane.metering.arm_selectors import COLD_FROM_MS, ArmBucket, ArmRequest, Codes, tpot_ms
from controlplane.rollouts import gates, view
from controlplane.rollouts.gates import Judgement
from controlplane.rollouts.plan import MAX_SAMPLES, JudgeSettings, Plan, Step, to_json
from controlplane.rollouts.samples import CLIENT_GONE, FAULTS, Fault, Sample
from dataplane.contracts.catalog import CANDIDATE, STABLE
from dataplane.contracts.usage import Outcome
from tenants.actor import system_actor
from tenants.chain import Json

MAX_BUCKETS = 500
WATCHED_SAMPLES = 2_500
"""How many of the latest requests of each arm a watch for stops needs: it is asked every other second."""
_READER = system_actor("rollouts")
_TRAFFIC_SPAN = timedelta(days=1)
_LEAST_SPAN = timedelta(minutes=1)
CODES = Codes(
    callers=tuple(code.code for code, fault in FAULTS.items() if fault is Fault.CALLER),
    breaks=tuple(code.code for code, fault in FAULTS.items() if fault is not Fault.CALLER),
)


class Samples(msgspec.Struct, frozen=True):
    """The samples of both arms over the same time, the latest first."""

    stable: tuple[Sample, ...]
    candidate: tuple[Sample, ...]

    def judge(self, settings: JudgeSettings, look: int) -> Judgement:
        """Judge the candidate by them; see :func:`~controlplane.rollouts.gates.judge`."""
        return gates.judge(self.stable, self.candidate, settings, look)

    def watch(self, settings: JudgeSettings) -> Judgement:
        """Watch for a stop; see :func:`~controlplane.rollouts.gates.watch`."""
        return gates.watch(self.stable, self.candidate, settings)

    def count(self, step: Step, settings: JudgeSettings) -> int:
        """Return how many of ``step.min_samples`` there are: of the arm that has the lesser part of what it needs."""
        stable_part = len(self.stable) / settings.quantile_samples
        if settings.accept_unproven or stable_part >= 1:
            return len(self.candidate)
        return min(len(self.candidate), int(stable_part * step.min_samples))


def samples(*, deployment_id: str, since: datetime, until: datetime | None = None, limit: int = MAX_SAMPLES) -> Samples:
    """Return the settled requests of a deployment's arms that began in a span of time, the latest ``limit`` of each.

    Those whose caller chose the arm do not count: they say nothing of how callers fare. Nor do those that failed by
    their caller's fault, or that their caller left before the first token.
    """
    found = {
        arm: tuple(
            _sample(row)
            for row in arm_selectors.latest_of_arm(
                actor=_READER,
                deployment_id=deployment_id,
                arm=arm,
                since=since,
                until=until,
                limit=limit,
                codes=CODES,
            )
        )
        for arm in (STABLE, CANDIDATE)
    }
    return Samples(stable=found[STABLE], candidate=found[CANDIDATE])


def _sample(row: ArmRequest) -> Sample:
    phases = row.phases
    cut_by_us = row.outcome == Outcome.ABORTED and row.error_code in CODES.breaks
    failed = row.outcome in (Outcome.FAILED, Outcome.REFUSED) or cut_by_us
    left = row.outcome == Outcome.ABORTED and not failed
    preemptions, kv_blocks = phases.get("preemptions"), phases.get("kv_blocks")
    return Sample(
        tenant_id=row.tenant_id,
        at_ms=int(row.started_at.timestamp() * 1000),
        error=failed,
        error_code=CLIENT_GONE if left else row.error_code,
        ttft_ms=row.ttft_ms,
        tpot_ms=tpot_ms(phases.get("decode_ms"), row.completion_tokens),
        prompt_tokens=row.prompt_tokens,
        cached_tokens=row.cached_tokens,
        output_tokens=row.completion_tokens,
        hit_length_limit=row.outcome == Outcome.LENGTH,
        kv_blocks=None if kv_blocks is None else int(kv_blocks),
        preemptions=None if preemptions is None else int(preemptions),
        batch_rows=phases.get("batch_rows"),
        cold=(phases.get("cold_ms") or 0) >= COLD_FROM_MS,
    )


# --- for people


class Point(msgspec.Struct, frozen=True):
    """How an arm did in the span of time that begins ``at``. Shares from 0 to 1; None where nothing was measured."""

    at: datetime
    requests: int = 0
    error_rate: float | None = None
    ttft_p50_ms: float | None = None
    ttft_p95_ms: float | None = None
    tpot_p50_ms: float | None = None
    tpot_p95_ms: float | None = None


def arm_series(*, deployment_id: str, since: datetime, until: datetime, buckets: int) -> dict[str, tuple[Point, ...]]:
    """Return how the stable arm and the candidate did over time: as many points of each, at the same moments.

    The caller has made sure that who asks may see the deployment.

    Raises:
        ValueError: the span is empty, or there are more than ``MAX_BUCKETS`` buckets.
    """
    if since >= until or not 1 <= buckets <= MAX_BUCKETS:
        raise ValueError(f"a series has from 1 to {MAX_BUCKETS} buckets of a span that ends after it began")
    width = (until - since) / buckets
    lines = {arm: [Point(since + index * width) for index in range(buckets)] for arm in (STABLE, CANDIDATE)}
    for line in arm_selectors.arm_buckets(
        actor=_READER, deployment_id=deployment_id, since=since, until=until, buckets=buckets, codes=CODES
    ):
        lines[line.arm][line.index] = _point(line, since + line.index * width)
    return {arm: tuple(points) for arm, points in lines.items()}


def _point(line: ArmBucket, at: datetime) -> Point:
    return Point(
        at=at,
        requests=line.requests,
        error_rate=line.errors / line.requests,
        ttft_p50_ms=line.ttft_p50_ms,
        ttft_p95_ms=line.ttft_p95_ms,
        tpot_p50_ms=line.tpot_p50_ms,
        tpot_p95_ms=line.tpot_p95_ms,
    )


def traffic_per_minute(*, deployment_id: str, now: datetime | None = None) -> float:
    """Return the requests a minute that say something of a version: of the last day, or since the first one of it."""
    now = now or timezone.now()
    count, first_at = arm_selectors.counted_since(
        actor=_READER, deployment_id=deployment_id, since=now - _TRAFFIC_SPAN, codes=CODES
    )
    if first_at is None:
        return 0.0
    return count / (max(now - first_at, _LEAST_SPAN) / timedelta(minutes=1))


# --- the bundle


def bundle(*, plan: Plan, judgement: view.Judgement, memory: str) -> tuple[dict[str, Json], str]:
    """Return all that a decision went by, as JSON, and the SHA-256 of its canonical form for the audit row.

    It is the judgement with its gates and what both arms' samples were, the plan that it was made under, and what the
    preflight said of memory. The digest does not depend on the order of keys.
    """
    judged: dict[str, Json] = msgspec.json.decode(msgspec.json.encode(judgement))
    whole: dict[str, Json] = judged | {"plan": to_json(plan), "memory": memory}
    return whole, hashlib.sha256(msgspec.json.encode(whole, order="deterministic")).hexdigest()
