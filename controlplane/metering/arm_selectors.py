"""What the requests of a deployment's arms came to, over all tenants that call it: for who judges a version by them.

Everything is read by the indexes ``usage_by_arm`` and ``usage_by_lost_arm``, and each answer is bounded, by rows or by
buckets of time: the rows of a candidate with 1 % of the traffic are found without reading the other 99 %.
"""

from datetime import datetime
from typing import Any, NamedTuple

import msgspec
from django.db.models import Aggregate, Count, ExpressionWrapper, F, FloatField, Min, Q, QuerySet
from django.db.models.expressions import Combinable
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast, Extract, Floor, NullIf

from controlplane.metering.models import UsageRow
from controlplane.metering.settlement import REPLICA_LOST, State
from dataplane.contracts.catalog import CANDIDATE, STABLE
from dataplane.contracts.usage import Outcome
from tenants.actor import Actor, reading_as, require
from tenants.roles import Permission

COLD_FROM_MS = 500
"""A call that waited so long for a replica waited for a start; less is a turn, and part of how an arm serves."""
_SERVING = (STABLE, CANDIDATE)
"""The arms that callers are given."""
_UNWELL = (Outcome.FAILED, Outcome.REFUSED)


class ArmRequest(NamedTuple):
    """One settled request: as much of it as says how it was served. ``phases`` has what is known of them."""

    tenant_id: str
    started_at: datetime
    outcome: str
    error_code: str
    ttft_ms: int | None
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    phases: dict[str, float]


class Codes(msgspec.Struct, frozen=True):
    """Error codes by whose fault they are: ``callers`` do not count at all; any other failure does.

    Nor do requests that their caller left before the first token: they have shown nothing, and cost so little that
    thousands of them would hide what fails.

    ``breaks`` are those with which a request that was already answered can have been cut short by us.
    """

    callers: tuple[str, ...]
    breaks: tuple[str, ...]

    @property
    def counted(self) -> Q:
        """Requests that say something of the version."""
        left_unanswered = Q(outcome=Outcome.ABORTED, ttft_ms=None) & ~Q(error_code__in=self.breaks)
        return ~Q(outcome__in=_UNWELL, error_code__in=self.callers) & ~left_unanswered

    @property
    def failed(self) -> Q:
        """Of those, the ones that failed."""
        return Q(outcome__in=_UNWELL) | Q(outcome=Outcome.ABORTED, error_code__in=self.breaks)


class ArmBucket(msgspec.Struct, frozen=True):
    """What an arm did in one span of time. Quantiles are of warm requests that did not fail; None of none."""

    arm: str
    index: int
    requests: int
    errors: int
    ttft_p50_ms: float | None = None
    ttft_p95_ms: float | None = None
    tpot_p50_ms: float | None = None
    tpot_p95_ms: float | None = None


def latest_of_arm(
    *, actor: Actor, deployment_id: str, arm: str, since: datetime, until: datetime | None, limit: int, codes: Codes
) -> list[ArmRequest]:
    """Return the latest settled requests of an arm that began in a span of time, the latest first.

    Requests whose caller chose the arm, or that failed by their caller's fault, are not among them. Those whose replica
    the arm lost are, as failed, whoever answered the caller in the end: else an arm that breaks down under requests
    would look well, because others take them over.
    """
    require(actor, Permission.PLATFORM_FLEET)
    with reading_as(actor):
        began = _settled(deployment_id, since, until)
        served = began.filter(codes.counted, arm=arm).exclude(lost_arm=arm)
        lost = began.filter(lost_arm=arm).exclude(lost_arm="")
        found = [ArmRequest._make(row) for row in _latest(served, limit)]
        found += [_lost(ArmRequest._make(row)) for row in _latest(lost, limit)]
    return sorted(found, key=lambda request: request.started_at, reverse=True)[:limit]


def _latest(rows: QuerySet[UsageRow], limit: int) -> QuerySet[UsageRow, Any]:
    return rows.order_by("-started_at").values_list(*ArmRequest._fields)[:limit]


def _lost(request: ArmRequest) -> ArmRequest:
    """Return what an arm made of a request that another attempt took over; its figures are the other's."""
    return request._replace(
        outcome=Outcome.FAILED, error_code=REPLICA_LOST, ttft_ms=None, completion_tokens=0, phases={}
    )


def arm_buckets(
    *, actor: Actor, deployment_id: str, since: datetime, until: datetime, buckets: int, codes: Codes
) -> list[ArmBucket]:
    """Return how each arm did in each of ``buckets`` equal spans of time; spans without requests are missing."""
    require(actor, Permission.PLATFORM_FLEET)
    width_s = (until - since).total_seconds() / buckets
    elapsed_s = ExpressionWrapper(Extract("started_at", "epoch") - since.timestamp(), output_field=FloatField())
    well = ~codes.failed & (Q(phases__cold_ms__isnull=True) | Q(phases__cold_ms__lt=COLD_FROM_MS))
    with reading_as(actor):
        lines = (
            _settled(deployment_id, since, until)
            .filter(codes.counted, arm__in=_SERVING)
            .annotate(index=Floor(elapsed_s / width_s))
            .values("arm", "index")
            .annotate(
                requests=Count("pk"),
                errors=Count("pk", filter=codes.failed),
                ttft_p50_ms=_Quantile(F("ttft_ms"), level=0.5, filter=well),
                ttft_p95_ms=_Quantile(F("ttft_ms"), level=0.95, filter=well),
                tpot_p50_ms=_Quantile(_tpot_ms(), level=0.5, filter=well),
                tpot_p95_ms=_Quantile(_tpot_ms(), level=0.95, filter=well),
            )
            .order_by("index", "arm")
        )
        # The last span ends before ``until``, but the quotient of a moment just before it may round up to it.
        return [msgspec.convert({**line, "index": min(buckets - 1, int(line["index"]))}, ArmBucket) for line in lines]


def counted_since(*, actor: Actor, deployment_id: str, since: datetime, codes: Codes) -> tuple[int, datetime | None]:
    """Return how many requests of both arms began since a moment, and when the first of them did."""
    require(actor, Permission.PLATFORM_FLEET)
    with reading_as(actor):
        rows = _settled(deployment_id, since, None).filter(codes.counted, arm__in=_SERVING)
        total = rows.aggregate(Count("pk"), Min("started_at"))
    return total["pk__count"], total["started_at__min"]


def tpot_ms(decode_ms: float | None, completion_tokens: int) -> float | None:
    """Return the time per output token after the first; None of one token, or where the replica did not say."""
    return decode_ms / (completion_tokens - 1) if decode_ms is not None and completion_tokens > 1 else None


def _tpot_ms() -> Combinable:
    """The same in SQL."""
    decode_ms = Cast(KeyTextTransform("decode_ms", "phases"), FloatField())
    after_first = Cast(F("completion_tokens") - 1, FloatField())
    return ExpressionWrapper(decode_ms / NullIf(after_first, 0.0), output_field=FloatField())


class _Quantile(Aggregate):
    """PostgreSQL's ``percentile_disc``: a value that was seen."""

    function = "PERCENTILE_DISC"
    template = "%(function)s(%(level)s) WITHIN GROUP (ORDER BY %(expressions)s)"
    output_field = FloatField()


def _settled(deployment_id: str, since: datetime, until: datetime | None) -> QuerySet[UsageRow]:
    rows = UsageRow.objects.filter(
        deployment_id=deployment_id, state=State.SETTLED, started_at__gte=since, forced=False
    )
    return rows if until is None else rows.filter(started_at__lt=until)
