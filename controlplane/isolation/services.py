"""Takes in what replicas say of their tenants and what probes found. Every step can be repeated and come late."""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import msgspec
from django.utils import timezone

from controlplane.deployments.models import Deployment, DeploymentArm, FleetNode, Grant
from controlplane.isolation.models import CacheBucket, ProbeRow, ReplicaWord, TenantBucket
from controlplane.isolation.reading import Reading, beside, is_same_life, of_replica, then
from dataplane.contracts.generation import EngineLoad
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
_LOOKUPS = {
    "queries_tokens": "prefix_cache_queries_tokens",
    "hits_tokens": "prefix_cache_hits_tokens",
    "lost_tokens": "lost_hits_tokens",
}
"""What a bucket of caches holds, by the name of what an engine counts."""


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
        CacheBucket.objects.filter(at__lt=now - KEPT).delete()
        ReplicaWord.objects.filter(at__lt=now - _ENDED_AFTER).delete()
        ProbeRow.objects.filter(at__lt=now - _PROBES_KEPT).delete()
        ProbeRow.objects.exclude(version_id__in=DeploymentArm.objects.values("version_id")).delete()


class _Telling(NamedTuple):
    """A replica that tells, its engine's figures, and its last word where the same engine said it."""

    replica: ReplicaReport
    engine: EngineLoad
    before: ReplicaWord | None


def _take_table(table: ReplicaTable, now: datetime) -> None:
    words = {word.replica_id: word for word in ReplicaWord.objects.filter(node=table.node)}
    telling = [
        _Telling(replica, replica.load, _of_engine(replica.load, words.get(replica.replica_id)))
        for replica in table.replicas
        if replica.load is not None and replica.deployment_id
    ]
    told_at = [words[each.replica.replica_id].at for each in telling if each.replica.replica_id in words]
    if len(told_at) == len(telling) and all(at > now - _TAKEN_EVERY for at in told_at):
        return
    served = {each.replica.deployment_id for each in telling}
    may_call = set(Grant.objects.filter(deployment_id__in=served).values_list("deployment_id", "grantee_id"))
    _keep_readings(table.node, _readings(telling, may_call), now)
    _keep_lookups(table.node, _lookups(telling, {deployment_id for deployment_id, _ in may_call}), now)
    ReplicaWord.objects.bulk_create(
        [_word(table.node, each, now) for each in telling],
        update_conflicts=True,
        unique_fields=["replica_id"],
        update_fields=["node", "load", "tenants", "at"],
    )


def _of_engine(now: EngineLoad, word: ReplicaWord | None) -> ReplicaWord | None:
    """Return the last word if the same engine said it: what that counts only grows."""
    if word is None:
        return None
    before = word.engine
    grew = all(getattr(now, name) >= getattr(before, name) for name in ("step", *_LOOKUPS.values()))
    return word if grew else None


def _readings(telling: Sequence[_Telling], may_call: Collection[tuple[str, str]]) -> dict[_Place, Reading]:
    """Return what all replicas add, by deployment, version and tenant."""
    found: dict[_Place, list[Reading]] = defaultdict(list)
    for replica, engine, word in telling:
        before = word.loads if word is not None else {}
        for load in replica.tenants:
            if (replica.deployment_id, load.tenant_id) in may_call:
                last = before.get(load.tenant_id)
                known = last if last is not None and is_same_life(load, last) else None
                place = _Place(replica.deployment_id, replica.version_id, load.tenant_id)
                found[place].append(of_replica(load, known, engine.block_size))
    return {place: beside(readings) for place, readings in found.items()}


def _keep_readings(node: str, readings: Mapping[_Place, Reading], now: datetime) -> None:
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


def _lookups(telling: Sequence[_Telling], deployment_ids: Collection[str]) -> dict[tuple[str, str], Counter[str]]:
    """Return what all tenants together looked up in their caches since the last words, by deployment and version."""
    found: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for replica, engine, word in telling:
        if replica.deployment_id in deployment_ids:
            for name, counted in _LOOKUPS.items():
                before = getattr(word.engine, counted) if word is not None else 0
                found[replica.deployment_id, replica.version_id][name] += getattr(engine, counted) - before
    return {place: counts for place, counts in found.items() if any(counts.values())}


def _keep_lookups(node: str, lookups: Mapping[tuple[str, str], Counter[str]], now: datetime) -> None:
    if not lookups:
        return
    at = bucket_of(now)
    known = {(row.deployment_id, row.version_id): row for row in CacheBucket.objects.filter(node=node, at=at)}
    CacheBucket.objects.bulk_create(
        [
            CacheBucket(
                node=node,
                deployment_id=place[0],
                version_id=place[1],
                at=at,
                **{name: counts[name] + (getattr(known[place], name) if place in known else 0) for name in _LOOKUPS},
            )
            for place, counts in sorted(lookups.items())
        ],
        update_conflicts=True,
        unique_fields=["deployment_id", "at", "version_id", "node"],
        update_fields=list(_LOOKUPS),
    )


def _word(node: str, told: _Telling, now: datetime) -> ReplicaWord:
    return ReplicaWord(
        replica_id=told.replica.replica_id,
        node=node,
        load=msgspec.to_builtins(told.engine),
        tenants=msgspec.to_builtins(told.replica.tenants),
        at=now,
    )


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
