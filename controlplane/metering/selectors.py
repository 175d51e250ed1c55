"""What was used, as the actor may see it: sums from the hours, which are seconds behind; requests from the rows."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

import msgspec
from django.contrib.postgres.aggregates import BoolOr
from django.db.models import (
    Aggregate,
    Count,
    DateTimeField,
    Exists,
    F,
    IntegerField,
    Max,
    Min,
    Q,
    QuerySet,
    Subquery,
    Sum,
    Value,
)
from django.db.models.functions import Coalesce, TruncDay
from django.utils import timezone

from controlplane.metering.models import Price, RejectedRecord, SpoolRecord, UsageHour, UsageRow
from controlplane.metering.settlement import State
from dataplane.contracts.ids import Kind, encode
from dataplane.contracts.usage import Outcome, UsageRecord
from tenants.actor import Actor, reading_as, require
from tenants.errors import Invalid, NotFound
from tenants.roles import Permission

MAX_PAGE_ROWS = 200


class Dimension(StrEnum):
    """What usage can be broken down by. TENANT is for the platform."""

    TENANT = "tenant"
    DEPLOYMENT = "deployment"
    VERSION = "version"
    KEY = "key"
    HOUR = "hour"
    DAY = "day"


_COLUMN = {
    Dimension.TENANT: F("tenant__slug"),
    Dimension.DEPLOYMENT: F("deployment_id"),
    Dimension.VERSION: F("version_id"),
    Dimension.KEY: F("key_id"),
    Dimension.HOUR: F("hour"),
    Dimension.DAY: TruncDay("hour", tzinfo=UTC),
}


class Ending(StrEnum):
    """How a request ended, in the classes that people look for."""

    OK = "ok"
    FAILED = "failed"
    REFUSED = "refused"
    RUNNING = "running"


_ENDINGS = {
    Ending.OK: Q(outcome__in=[Outcome.STOP.value, Outcome.LENGTH.value, Outcome.ABORTED.value]),
    Ending.FAILED: Q(outcome=Outcome.FAILED.value),
    Ending.REFUSED: Q(outcome=Outcome.REFUSED.value),
    Ending.RUNNING: Q(state=State.OPEN.value),
}


@dataclass(frozen=True, slots=True)
class UsageLine:
    """One line of a breakdown. ``label`` is an id, a tenant's slug, or a time in ISO 8601 (UTC)."""

    label: str
    requests: int
    failed_requests: int
    refused_requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    charge_microusd: int


_SUMS = [field for field in UsageLine.__dataclass_fields__ if field != "label"]


@dataclass(frozen=True, slots=True)
class Month(UsageLine):
    """The line of a month. ``is_priced`` says whether any price has ever been set: without one nothing costs."""

    is_priced: bool


@dataclass(frozen=True, slots=True)
class RequestDetail:
    """One request: its row, and the records it was settled from, in the order they were written."""

    row: UsageRow
    records: tuple[UsageRecord, ...]


@dataclass(frozen=True, slots=True)
class Arrivals:
    """How records come in, and what they are made into. None where there is none.

    Args:
        newest_at: when the newest record came in.
        newest_late_ms: how long it had been on its way, in milliseconds.
        open_requests: requests that are not settled.
        oldest_open_at: when the quietest of them was last heard of.
        set_aside: records that no row could be made of.
    """

    newest_at: datetime | None
    newest_late_ms: int | None
    open_requests: int
    oldest_open_at: datetime | None
    set_aside: int


def usage(*, actor: Actor, since: datetime, until: datetime, by: Dimension) -> list[UsageLine]:
    """Return the usage of the hours from ``since`` to before ``until``, a line for each value of ``by``, in its order.

    Raises:
        Invalid: the span is empty, or the platform's dimension is asked for by a tenant.
    """
    require(actor, Permission.USAGE_READ)
    if since >= until:
        raise Invalid("The time range is empty.", fields={"until": "Choose a time after since."})
    if by is Dimension.TENANT and not actor.is_platform:
        raise Invalid("Only the platform breaks usage down by tenant.", fields={"by": "Choose another."})
    with reading_as(actor):
        lines: Iterable[Any] = (
            _hours(actor)
            .filter(hour__gte=since, hour__lt=until)
            .values(value=_COLUMN[by])
            .annotate(**{name: Sum(name) for name in _SUMS})
            .order_by("value")
        )
        return [UsageLine(label=_label(line["value"]), **{name: line[name] for name in _SUMS}) for line in lines]


def month_usage(*, actor: Actor, now: datetime | None = None) -> Month:
    """Return what the actor's tenant (or, for the platform, everybody) has used in this UTC month."""
    require(actor, Permission.USAGE_READ)
    moment = now or timezone.now()
    start = moment.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    with reading_as(actor):
        total = _hours(actor).filter(hour__gte=start, hour__lte=moment).aggregate(
            is_priced=Coalesce(BoolOr(Exists(Price.objects.all())), Exists(Price.objects.all())),  # with no hour, too
            **{name: Sum(name) for name in _SUMS},
        )  # fmt: skip
    sums = {name: total[name] or 0 for name in _SUMS}
    return Month(label=start.isoformat(), is_priced=total["is_priced"], **sums)


def last_minute(*, actor: Actor) -> tuple[int, int]:
    """Return (requests, tokens) that began in the last 60 s, to show beside the limits. The limits count elsewhere."""
    require(actor, Permission.USAGE_READ)
    since = timezone.now() - timedelta(seconds=60)
    with reading_as(actor):
        total = _rows(actor).filter(started_at__gte=since).aggregate(
            requests=Count("pk"), tokens=Sum(F("prompt_tokens") + F("completion_tokens"))
        )  # fmt: skip
    return total["requests"], total["tokens"] or 0


def list_requests(
    *,
    actor: Actor,
    limit: int = 50,
    before: str | None = None,
    key_id: str | None = None,
    deployment_id: str | None = None,
    version_id: str | None = None,
    arm: str | None = None,
    ending: Ending | None = None,
    since: datetime | None = None,
    failed: bool | None = None,
) -> list[UsageRow]:
    """Return a page of requests, newest first; for the platform of every tenant, with it.

    Args:
        actor: whose requests.
        limit: rows of a page, at most 200.
        before: the id of the last row of the page before: ids sort by the time they were minted.
        key_id: only this key's.
        deployment_id: only this deployment's.
        version_id: only what this version served.
        arm: only what this arm served.
        ending: only those that ended so.
        since: nothing that began before.
        failed: only those that failed or were refused (True), or only the others (False).
    """
    require(actor, Permission.REQUESTS_READ)
    exact = {"key_id": key_id, "deployment_id": deployment_id, "version_id": version_id, "arm": arm, "pk__lt": before}
    with reading_as(actor):
        rows = _rows(actor).filter(**{name: value for name, value in exact.items() if value is not None})
        if since is not None:
            # By the id, whose index is the order of the page, too: a narrow range ends the search early.
            rows = rows.filter(pk__gte=encode(Kind.REQUEST, int(since.timestamp() * 1000), 0))
        if ending is not None:
            rows = rows.filter(_ENDINGS[ending])
        if failed is not None:
            unwell = _ENDINGS[Ending.FAILED] | _ENDINGS[Ending.REFUSED]
            rows = rows.filter(unwell) if failed else rows.exclude(unwell)
        if actor.is_platform:
            rows = rows.select_related("tenant")
        return list(rows.order_by("-request_id")[: min(limit, MAX_PAGE_ROWS)])


def get_request(*, actor: Actor, request_id: str) -> RequestDetail:
    """Return one request with its records.

    Raises:
        NotFound: there is none for this actor.
    """
    require(actor, Permission.REQUESTS_READ)
    with reading_as(actor):
        row = _rows(actor).select_related("tenant").filter(pk=request_id).first()
        bodies = list(SpoolRecord.objects.filter(request_id=request_id).values_list("body", flat=True))
    if row is None:
        raise NotFound("There is no such request.")
    records = sorted(
        (msgspec.convert(body, UsageRecord) for body in bodies),
        key=lambda record: (record.attempt, record.at_ms, record.source, record.sequence),
    )
    return RequestDetail(row=row, records=tuple(records))


def longest_waits(*, actor: Actor, within: timedelta = timedelta(minutes=5)) -> dict[tuple[str, str], int]:
    """Return the longest wait for admission of late: milliseconds by (tenant's slug, deployment), for the platform."""
    require(actor, Permission.PLATFORM_FLEET)
    since_ms = int((timezone.now() - within).timestamp() * 1000)
    with reading_as(actor):
        # Ids sort by the time they were minted, and the key is the one index over all tenants' requests.
        late = UsageRow.objects.filter(pk__gte=encode(Kind.REQUEST, since_ms, 0), queue_ms__isnull=False)
        lines = late.values_list("tenant__slug", "deployment_id").annotate(Max("queue_ms")).order_by()
        return {(slug, deployment_id): wait_ms for slug, deployment_id, wait_ms in lines}


def last_used_hours(*, actor: Actor, deployment_ids: Collection[str]) -> dict[str, datetime]:
    """Return the start of the last hour in which each deployment was called, for the platform."""
    require(actor, Permission.PLATFORM_FLEET)
    with reading_as(actor):
        hours = UsageHour.objects.filter(deployment_id__in=deployment_ids)
        return dict(hours.values_list("deployment_id").annotate(Max("hour")).order_by())


def list_prices(*, actor: Actor) -> list[Price]:
    """Return the price list, newest first."""
    require(actor, Permission.USAGE_READ)
    with reading_as(actor):
        return list(Price.objects.order_by("deployment_id", "-effective_from"))


def count_open(*, actor: Actor) -> tuple[int, int]:
    """Return how many requests are not settled and how many records were set aside: for those who run the platform."""
    require(actor, Permission.PLATFORM_FLEET)
    with reading_as(actor):
        return UsageRow.objects.filter(state=State.OPEN).count(), RejectedRecord.objects.count()


def arrivals(*, actor: Actor) -> Arrivals:
    """Return how spool records arrive, in one question as soon as there is a record: for the platform's people."""
    require(actor, Permission.PLATFORM_FLEET)
    waiting = UsageRow.objects.filter(state=State.OPEN).order_by()
    aside = RejectedRecord.objects.order_by()
    with reading_as(actor):
        # One at a time of the spool's table, by its key: it is the longest of all.
        found = SpoolRecord.objects.annotate(
            open_requests=Subquery(_of_all(waiting, Count("pk")), output_field=IntegerField()),
            oldest_open_at=Subquery(_of_all(waiting, Min("seen_at")), output_field=DateTimeField()),
            set_aside=Subquery(_of_all(aside, Count("pk")), output_field=IntegerField()),
        )
        newest = found.order_by("-pk").first()
        if newest is None:
            return Arrivals(None, None, waiting.count(), None, aside.count())
    late_ms = int(newest.received_at.timestamp() * 1000) - newest.body["at_ms"]
    return Arrivals(
        newest.received_at, late_ms, newest.open_requests or 0, newest.oldest_open_at, newest.set_aside or 0
    )


def _of_all(rows: QuerySet[Any], total: Aggregate) -> QuerySet[Any, Any]:
    """Return ``total`` over all ``rows`` as a subquery's one value: none where there is no row."""
    found: QuerySet[Any, Any] = rows.annotate(whole=Value(1)).values("whole").annotate(total=total).values("total")
    return found


def _rows(actor: Actor) -> QuerySet[UsageRow]:
    return UsageRow.objects.all() if actor.is_platform else UsageRow.objects.for_tenant(actor.tenant)


def _hours(actor: Actor) -> QuerySet[UsageHour]:
    return UsageHour.objects.all() if actor.is_platform else UsageHour.objects.for_tenant(actor.tenant)


def _label(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
