"""Takes in what replicas say of their tenants and what probes found. Every step can be repeated and come late."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import msgspec
from django.utils import timezone

from controlplane.deployments.models import Deployment, DeploymentArm, FleetNode, Grant
from controlplane.isolation.models import ProbeRow, ReplicaWord, TenantBucket
from controlplane.isolation.reading import Reading, beside, is_same_life, of_replica, then
from dataplane.contracts.generation import TenantLoad
from dataplane.contracts.probes import ProbeReport
from dataplane.contracts.replica import FleetReport, ReplicaReport, ReplicaTable
from tenants.actor import Actor, acting_as, require
from tenants.roles import Permission

BUCKET = timedelta(minutes=5)
KEPT = timedelta(days=8)
"""How long buckets are kept: a week, and the day that is not over."""
_TAKEN_EVERY = timedelta(seconds=5)
"""Fleets report with every change; what is counted loses nothing by being read more seldom."""
_REWRITTEN_EVERY = timedelta(minutes=1)
"""A row whose figures stay is written again this often, to say that its tenant is still heard of."""
_ENDED_AFTER = timedelta(days=1)
_PROBES_KEPT = timedelta(days=30)
_FIGURES = Reading.__struct_fields__


class _Place(NamedTuple):
    deployment_id: str
    version_id: str
    tenant_id: str


def ingest(*, actor: Actor, report: FleetReport) -> None:
    """Take in a report that :func:`controlplane.deployments.fleet.report_replicas` has taken.

    Tenants that have no grant, such as probes, are left out; so is what was overtaken.

    Raises:
        Forbidden: the actor is not a process of the platform.
    """
    require(actor, Permission.PLATFORM_FLEET)
    table = report.table
    with acting_as(actor):
        # Race: a report that was delayed on its way against the one after it, whose counts are in the rows already. The
        # node's lock puts them in line, and its row says which table is the newest.
        node = FleetNode.objects.select_for_update(no_key=True).filter(pk=table.node).first()
        if node is not None and (node.number, node.at) == (table.number, _time(table.at_ms)):
            _take_table(table, timezone.now())
        if report.probes:
            _keep_probes(report.probes)


def prune(*, actor: Actor) -> None:
    """Delete what is too old, what replicas said that are no more, and what was found on versions that serve no more.

    Raises:
        Forbidden: the actor is not a process of the platform.
    """
    require(actor, Permission.PLATFORM_FLEET)
    now = timezone.now()
    with acting_as(actor):
        TenantBucket.objects.filter(at__lt=now - KEPT).delete()
        ReplicaWord.objects.filter(at__lt=now - _ENDED_AFTER).delete()
        ProbeRow.objects.filter(at__lt=now - _PROBES_KEPT).delete()
        ProbeRow.objects.exclude(version_id__in=DeploymentArm.objects.values("version_id")).delete()


def _take_table(table: ReplicaTable, now: datetime) -> None:
    words = {word.replica_id: word for word in ReplicaWord.objects.filter(node=table.node)}
    telling = [replica for replica in table.replicas if replica.load is not None and replica.deployment_id]
    due = (each.replica_id not in words or words[each.replica_id].at <= now - _TAKEN_EVERY for each in telling)
    if not any(due):
        return
    _keep_buckets(table.node, _readings(telling, words), now)
    ReplicaWord.objects.bulk_create(
        [_word(table.node, replica, now) for replica in telling],
        update_conflicts=True,
        unique_fields=["replica_id"],
        update_fields=["node", "step", "tenants", "at"],
    )


def _readings(telling: Sequence[ReplicaReport], words: Mapping[str, ReplicaWord]) -> dict[_Place, Reading]:
    """Return what all replicas add, by deployment, version and tenant."""
    served = {replica.deployment_id for replica in telling}
    may_call = set(Grant.objects.filter(deployment_id__in=served).values_list("deployment_id", "grantee_id"))
    found: dict[_Place, list[Reading]] = defaultdict(list)
    for replica in telling:
        assert replica.load is not None  # noqa: S101 - it tells
        before = _same_engine(replica, words.get(replica.replica_id))
        for load in replica.tenants:
            if (replica.deployment_id, load.tenant_id) in may_call:
                last = before.get(load.tenant_id)
                known = last if last is not None and is_same_life(load, last) else None
                place = _Place(replica.deployment_id, replica.version_id, load.tenant_id)
                found[place].append(of_replica(load, known, replica.load.block_size))
    return {place: beside(readings) for place, readings in found.items()}


def _same_engine(replica: ReplicaReport, word: ReplicaWord | None) -> dict[str, TenantLoad]:
    """Return what the replica's engine said last, by tenant; nothing where it was started since."""
    assert replica.load is not None  # noqa: S101 - it tells
    return word.loads if word is not None and replica.load.step >= word.step else {}


def _keep_buckets(node: str, readings: Mapping[_Place, Reading], now: datetime) -> None:
    at = bucket_of(now)
    known = {
        _Place(row.deployment_id, row.version_id, row.tenant_id): row
        for row in TenantBucket.objects.filter(node=node, at=at)
    }
    changed: list[TenantBucket] = []
    for place, reading in sorted(readings.items()):
        row = known.get(place)
        whole = reading if row is None else then(row.reading, reading)
        if row is None or whole != row.reading or row.seen_at <= now - _REWRITTEN_EVERY:
            figures = {name: getattr(whole, name) for name in _FIGURES}
            changed.append(TenantBucket(node=node, at=at, seen_at=now, **place._asdict(), **figures))
    TenantBucket.objects.bulk_create(
        changed,
        update_conflicts=True,
        unique_fields=["deployment_id", "tenant", "at", "version_id", "node"],
        update_fields=["seen_at", *_FIGURES],
    )


def _word(node: str, replica: ReplicaReport, now: datetime) -> ReplicaWord:
    assert replica.load is not None  # noqa: S101 - it tells
    said = msgspec.to_builtins(replica.tenants)
    return ReplicaWord(replica_id=replica.replica_id, node=node, step=replica.load.step, tenants=said, at=now)


def _keep_probes(reports: Sequence[ProbeReport]) -> None:
    served = {report.deployment_id for report in reports}
    owners = dict(Deployment.objects.filter(pk__in=served).values_list("pk", "tenant_id"))
    newest = {(report.replica_id, report.kind): report for report in sorted(reports, key=lambda each: each.at_ms)}
    replicas = {replica_id for replica_id, _ in newest}
    known = {(row.replica_id, row.kind): row.at for row in ProbeRow.objects.filter(replica_id__in=replicas)}
    ProbeRow.objects.bulk_create(
        [
            ProbeRow(
                tenant_id=owners[report.deployment_id],
                replica_id=report.replica_id,
                deployment_id=report.deployment_id,
                version_id=report.version_id,
                kind=report.kind.value,
                at=_time(report.at_ms),
                report=msgspec.to_builtins(report),
            )
            for place, report in sorted(newest.items())
            if report.deployment_id in owners and (place not in known or known[place] < _time(report.at_ms))
        ],
        update_conflicts=True,
        unique_fields=["replica_id", "kind"],
        update_fields=["tenant", "deployment_id", "version_id", "at", "report"],
    )


def bucket_of(moment: datetime) -> datetime:
    """Return when the bucket of ``moment`` begins."""
    return datetime.fromtimestamp(moment.timestamp() // BUCKET.total_seconds() * BUCKET.total_seconds(), UTC)


def _time(unix_ms: int) -> datetime:
    return datetime.fromtimestamp(unix_ms / 1000, UTC)
