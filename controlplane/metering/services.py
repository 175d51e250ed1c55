"""Takes in spool records, settles requests, adds up hours. Every step can be repeated, raced and interrupted."""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

import msgspec
from django.db.models import Count, Q, Sum
from django.db.models.functions import Now
from django.utils import timezone

from controlplane.metering.models import (
    DirtyHour,
    EndedReplica,
    Price,
    RejectedRecord,
    SpoolRecord,
    UsageHour,
    UsageRow,
)
from controlplane.metering.pricing import FREE, TokenPrice, charge_microusd
from controlplane.metering.records import fault
from controlplane.metering.settlement import Settlement, State, fold
from dataplane.contracts.usage import Outcome, Source, UsageReceipt, UsageRecord
from tenants import audit
from tenants.actor import Actor, acting_as, require
from tenants.chain import Json
from tenants.conflicts import refusing
from tenants.errors import Invalid
from tenants.models import Tenant
from tenants.roles import Permission
from tenants.services.keys import note_key_use

GONE_GRACE_S = 30
"""How long a dead replica's spool may still be on its way before its requests settle without it."""
CLOSED_GRACE_S = 60
"""How long the gateway's word may follow the replica's last: its caller may read slowly. Then the gateway was lost."""
SILENT_GRACE_S = 15 * 60
"""How long a request may say nothing at all: a living one makes a record every few seconds."""
SWEEP_ROWS = 500
ROLL_UP_HOURS = 200
MAX_PRICE_MICROUSD = 10**12
"""A million USD for a million tokens: above it somebody has mistyped."""

_STORED = tuple(
    field
    for field in Settlement.__struct_fields__
    if field not in ("request_id", "started_at_ms", "ended_at_ms", "phases")
)
_UPDATED = [field for field in _STORED if field != "tenant_id"]
_UPDATED += ["started_at", "ended_at", "charge_microusd", "phases", "presumed_over", "seen_at"]

_EPOCH = datetime.fromtimestamp(0, UTC)

_Key = tuple[str, int, str, int]


def ingest(*, actor: Actor, records: Sequence[UsageRecord]) -> UsageReceipt:
    """Store ``records`` and settle what they complete. All of them are durable when this returns.

    A record that was stored before is counted as a duplicate; one that can never be stored is kept apart.

    Raises:
        Forbidden: the actor is not a process of the platform.
    """
    require(actor, Permission.PLATFORM_FLEET)
    with acting_as(actor):
        good, accepted = _sort_out(records)
        if good:
            accepted += _store(good)
    _note_key_use(actor, good)
    return UsageReceipt(accepted=accepted, duplicates=len(records) - accepted)


def replica_ended(*, actor: Actor, replica_ids: Iterable[str]) -> None:
    """Remember replicas that are no more. Called within the transaction that learns of it."""
    require(actor, Permission.PLATFORM_FLEET)
    EndedReplica.objects.bulk_create(
        [EndedReplica(replica_id=replica_id, ended_at=timezone.now()) for replica_id in sorted(set(replica_ids))],
        ignore_conflicts=True,
    )


def settle_abandoned(*, actor: Actor) -> int:
    """Settle open requests of which nothing more can come, and return how many.

    They are those whose replica has ended, those whose replica had its last word and whose gateway never had, and those
    that fell silent altogether. A record that comes later all the same still corrects the row.
    """
    require(actor, Permission.PLATFORM_FLEET)
    with acting_as(actor):
        gone = EndedReplica.objects.filter(ended_at__lt=Now() - timedelta(seconds=GONE_GRACE_S)).values("replica_id")
        abandoned = UsageRow.objects.filter(
            Q(replica_id__in=gone, seen_at__lt=Now() - timedelta(seconds=GONE_GRACE_S))
            | Q(waits_for=Source.GATEWAY, seen_at__lt=Now() - timedelta(seconds=CLOSED_GRACE_S))
            | Q(seen_at__lt=Now() - timedelta(seconds=SILENT_GRACE_S)),
            state=State.OPEN,
        )
        # Race: records of such a request arriving now. Whoever has the row lock goes first; the other sees its work.
        rows = list(abandoned.select_for_update(skip_locked=True).order_by("request_id")[:SWEEP_ROWS])
        for row in rows:
            row.presumed_over = True
        _settle(rows, _records_of(rows))
        return len(rows)


def roll_up(*, actor: Actor) -> int:
    """Add up the hours whose rows have changed, and return how many."""
    require(actor, Permission.PLATFORM_FLEET)
    with acting_as(actor):
        # Race: ingestion marks an hour again while it is added up. Its mark waits for this lock, finds the row deleted,
        # and inserts it anew; what was committed before the lock is in the sums below.
        dirty = list(DirtyHour.objects.select_for_update(skip_locked=True).order_by("marked_at")[:ROLL_UP_HOURS])
        for hour in dirty:
            _add_up(hour)
        DirtyHour.objects.filter(pk__in=[hour.pk for hour in dirty]).delete()
        return len(dirty)


def set_price(
    *,
    actor: Actor,
    input_microusd: int,
    output_microusd: int,
    effective_from: datetime | None = None,
    deployment_id: str = "",
) -> Price:
    """Set the price per million tokens from a moment on, for one deployment or (empty) for all without their own.

    Args:
        actor: runs the platform.
        input_microusd: of a million tokens that are read.
        output_microusd: of a million tokens that are made.
        effective_from: requests that begin from then on cost it; None is now.
        deployment_id: whose price it is.

    Raises:
        Invalid: the moment has passed, or a price is negative or absurd.
        Conflict: there is a price from that very moment on.
    """
    require(actor, Permission.PLATFORM_QUOTAS)
    prices = {"input_microusd": input_microusd, "output_microusd": output_microusd}
    faults = {
        name: f"A price is from 0 to {MAX_PRICE_MICROUSD} micro-USD."
        for name, value in prices.items()
        if not 0 <= value <= MAX_PRICE_MICROUSD
    }
    if faults:
        raise Invalid("A price cannot be negative or above the most.", fields=faults)
    now = timezone.now()
    if effective_from is not None and effective_from < now:
        raise Invalid("A price cannot change the past.", fields={"effective_from": "Choose a time from now on."})
    with refusing("price_one_at_a_time", "There is a price from that moment on. Choose another."), acting_as(actor):
        price = Price.objects.create(
            deployment_id=deployment_id,
            input_microusd=input_microusd,
            output_microusd=output_microusd,
            effective_from=effective_from or now,
        )
        after: dict[str, Json] = {**prices, "effective_from": price.effective_from.isoformat()}
        audit.record(actor=actor, verb="price.set", target=price, after=after)
        return price


# --- ingestion


def _sort_out(records: Sequence[UsageRecord]) -> tuple[list[UsageRecord], int]:
    """Set aside what can never be stored; return the rest without repetitions, and how many were newly set aside."""
    tenant_ids = set(
        Tenant.objects.filter(pk__in={record.tenant_id for record in records if fault(record) is None}).values_list(
            "pk", flat=True
        )
    )
    good: dict[_Key, UsageRecord] = {}
    rejected: list[tuple[UsageRecord, str]] = []
    for record in records:
        reason = fault(record)
        if reason is None and record.tenant_id not in tenant_ids:
            reason = "there is no such tenant"
        if reason is None:
            good.setdefault(_key(record), record)
        else:
            rejected.append((record, reason))
    return list(good.values()), _set_aside(rejected)


def _set_aside(rejected: Iterable[tuple[UsageRecord, str]]) -> int:
    rows = {}
    for record, reason in rejected:
        body = msgspec.json.encode(record)
        digest = hashlib.sha256(body).hexdigest()
        rows[digest] = RejectedRecord(digest=digest, body=body, reason=reason)
    known = set(RejectedRecord.objects.filter(pk__in=rows).values_list("pk", flat=True))
    RejectedRecord.objects.bulk_create(
        [row for digest, row in sorted(rows.items()) if digest not in known], ignore_conflicts=True
    )
    return len(rows.keys() - known)


def _note_key_use(actor: Actor, records: Iterable[UsageRecord]) -> None:
    used_at: dict[str, datetime] = {}
    for record in records:
        if record.key_id:
            used_at[record.key_id] = max(_time(record.at_ms), used_at.get(record.key_id, _EPOCH))
    note_key_use(actor=actor, used_at=used_at)


def _store(records: Sequence[UsageRecord]) -> int:
    """Store the records that are new and settle their requests; return how many were new."""
    arrived: dict[str, list[UsageRecord]] = defaultdict(list)
    for record in records:
        arrived[record.request_id].append(record)
    rows = _lock_rows(arrived)
    known = _records_of(rows)
    fresh: list[UsageRecord] = []
    strange: list[tuple[UsageRecord, str]] = []
    for row in rows:
        stored_keys = {_key(record) for record in known[row.request_id]}
        for record in arrived[row.request_id]:
            if _key(record) in stored_keys:
                continue
            if record.tenant_id != row.tenant_id:
                strange.append((record, "another tenant has this request"))
            else:
                fresh.append(record)
    _keep(fresh)
    by_request: dict[str, list[UsageRecord]] = defaultdict(list)
    for record in fresh:
        by_request[record.request_id].append(record)
    touched = [row for row in rows if row.request_id in by_request]
    for row in touched:
        row.seen_at = timezone.now()
    _settle(touched, {row.request_id: known[row.request_id] + by_request[row.request_id] for row in touched})
    return len(fresh) + _set_aside(strange)


def _lock_rows(arrived: dict[str, list[UsageRecord]]) -> list[UsageRow]:
    """Lock the rows of these requests, made where missing.

    Race: replica and gateway report a request at once. Rows are made and locked in one order, so the second waits for
    the first's commit, without a deadlock, and then reads its records.
    """
    now = timezone.now()
    blank = []
    for request_id in sorted(arrived):
        row = UsageRow(request_id=request_id, charge_microusd=0, seen_at=now)
        _fill(row, fold(arrived[request_id][:1]))
        row.state, row.waits_for, row.outcome, row.ended_at = State.OPEN, Source.REPLICA, None, None
        blank.append(row)
    UsageRow.objects.bulk_create(blank, ignore_conflicts=True)
    return list(UsageRow.objects.select_for_update().filter(pk__in=arrived).order_by("request_id"))


def _records_of(rows: Iterable[UsageRow]) -> dict[str, list[UsageRecord]]:
    known: dict[str, list[UsageRecord]] = {row.request_id: [] for row in rows}
    for request_id, body in SpoolRecord.objects.filter(request_id__in=known).values_list("request_id", "body"):
        known[request_id].append(msgspec.convert(body, UsageRecord))
    return known


def _keep(records: Iterable[UsageRecord]) -> None:
    SpoolRecord.objects.bulk_create(
        SpoolRecord(
            tenant_id=record.tenant_id,
            request_id=record.request_id,
            attempt=record.attempt,
            source=record.source,
            sequence=record.sequence,
            kind=record.kind,
            body=msgspec.to_builtins(record),
        )
        for record in records
    )


def _key(record: UsageRecord) -> _Key:
    return record.request_id, record.attempt, record.source, record.sequence


# --- settlement


def _settle(rows: Sequence[UsageRow], records: dict[str, list[UsageRecord]]) -> None:
    """Write what the records of these locked rows add up to, and mark the hours that this changes."""
    if not rows:
        return
    prices = _Prices()
    changed_hours: set[tuple[str, datetime]] = set()
    for row in rows:
        if row.state == State.SETTLED:
            changed_hours.add((row.tenant_id, _hour(row.started_at)))
        # Once the sweep has closed a row, it stays closed: late records correct its counts, not its state.
        _fill(row, fold(records[row.request_id], presumed_over=row.presumed_over))
        if row.state == State.SETTLED:
            row.charge_microusd = charge_microusd(
                prices.at(row.deployment_id, row.started_at),
                prompt_tokens=row.prompt_tokens,
                completion_tokens=row.completion_tokens,
            )
            changed_hours.add((row.tenant_id, _hour(row.started_at)))
    # The rows are there and locked: an upsert is one plain statement, where bulk_update builds a CASE a column and row.
    UsageRow.objects.bulk_create(
        rows, update_conflicts=True, unique_fields=["request_id"], update_fields=_UPDATED, batch_size=500
    )
    _mark(changed_hours)


def _fill(row: UsageRow, settlement: Settlement) -> None:
    for field in _STORED:
        setattr(row, field, getattr(settlement, field))
    row.phases = msgspec.to_builtins(settlement.phases)
    row.started_at = _time(settlement.started_at_ms)
    row.ended_at = None if settlement.ended_at_ms is None else _time(settlement.ended_at_ms)


def _time(unix_ms: int) -> datetime:
    return datetime.fromtimestamp(unix_ms / 1000, UTC)


def _hour(moment: datetime) -> datetime:
    return moment.replace(minute=0, second=0, microsecond=0)


class _Prices:
    """The price list, read once a transaction: it is short, and changes a few times a year."""

    def __init__(self) -> None:
        self._by_deployment: dict[str, list[Price]] = defaultdict(list)
        for price in Price.objects.order_by("-effective_from"):
            self._by_deployment[price.deployment_id].append(price)

    def at(self, deployment_id: str, moment: datetime) -> TokenPrice:
        """Return the deployment's own price at ``moment``, else the platform's default, else nothing."""
        for price in (*self._by_deployment.get(deployment_id, ()), *self._by_deployment.get("", ())):
            if price.effective_from <= moment:
                tokens: TokenPrice = price.tokens
                return tokens
        return FREE


# --- hours


def _mark(hours: set[tuple[str, datetime]]) -> None:
    now = timezone.now()
    DirtyHour.objects.bulk_create(
        [DirtyHour(tenant_id=tenant_id, hour=hour, marked_at=now) for tenant_id, hour in sorted(hours)],
        update_conflicts=True,  # and not ignored: an update waits for the roll-up's lock, see there
        unique_fields=["tenant", "hour"],
        update_fields=["marked_at"],
    )


def _add_up(dirty: DirtyHour) -> None:
    """Compute the lines of one hour again from its rows."""
    rows = UsageRow.objects.filter(
        tenant_id=dirty.tenant_id,
        state=State.SETTLED,
        started_at__gte=dirty.hour,
        started_at__lt=dirty.hour + timedelta(hours=1),
    )
    lines = rows.values("deployment_id", "version_id", "key_id").annotate(
        requests=Count("pk"),
        failed=Count("pk", filter=Q(outcome=Outcome.FAILED)),
        refused=Count("pk", filter=Q(outcome=Outcome.REFUSED)),
        prompt=Sum("prompt_tokens"),
        cached=Sum("cached_tokens"),
        completion=Sum("completion_tokens"),
        charge=Sum("charge_microusd"),
    )
    UsageHour.objects.filter(tenant_id=dirty.tenant_id, hour=dirty.hour).delete()
    UsageHour.objects.bulk_create(
        UsageHour(
            tenant_id=dirty.tenant_id,
            hour=dirty.hour,
            deployment_id=line["deployment_id"],
            version_id=line["version_id"],
            key_id=line["key_id"],
            requests=line["requests"],
            failed_requests=line["failed"],
            refused_requests=line["refused"],
            prompt_tokens=line["prompt"],
            cached_tokens=line["cached"],
            completion_tokens=line["completion"],
            charge_microusd=line["charge"],
        )
        for line in lines
    )
