"""Builds the catalog out of PostgreSQL, numbers it, and keeps the last one for both paths to serve.

Numbers cannot be the ids of outbox events: those are not in the order of commits, so a catalog that missed a revocation
could carry the same number as one that has it. The head row counts instead: whoever finds waiting events, the publisher
or a gateway's question, locks it, builds the next catalog in one snapshot of the database, and counts on.
"""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from django.db import OperationalError, connection

from controlplane.deployments.models import CatalogHead, Deployment, DeploymentArm, DeploymentState, Grant
from controlplane.registry.entries import version_entry
from controlplane.registry.models import ModelVersion
from dataplane.contracts import catalog as contract
from dataplane.contracts.catalog import Arm, Catalog, DeploymentEntry, Hold, Share, VersionEntry
from tenants import outbox
from tenants.actor import Actor, acting_as, require, system_actor
from tenants.models import OutboxEvent
from tenants.roles import Permission
from tenants.selectors import catalog_keys, catalog_tenants

_BUILDER = system_actor("catalog")
_EVENTS = 1_000
_ATTEMPTS = 10


def latest(*, actor: Actor, unless_number: int | None = None) -> bytes | None:
    """Return the JSON of the catalog of everything committed by now; None where its number is ``unless_number``.

    Raises:
        Forbidden: the actor is not a process of the platform.
    """
    require(actor, Permission.PLATFORM_FLEET)
    with acting_as(_BUILDER):
        number = CatalogHead.objects.get_or_create(pk=1)[0].number
        stale = number == 0 or OutboxEvent.objects.filter(published_at__isnull=True).exists()
    if stale:
        number = _advance()
    if number == unless_number:
        return None
    with acting_as(_BUILDER):
        return bytes(CatalogHead.objects.get(pk=1).body)


def _advance() -> int:
    for _ in range(_ATTEMPTS - 1):
        try:
            return _count_on()
        except OperationalError as error:
            # Race: two builders. PostgreSQL lets the first commit; the second starts again and finds its work done.
            if not isinstance(error.__cause__, psycopg.errors.SerializationFailure):
                raise
    return _count_on()


def _count_on() -> int:
    with _one_snapshot(), acting_as(_BUILDER):
        head = CatalogHead.objects.select_for_update().get(pk=1)
        while events := outbox.unpublished(_EVENTS):
            outbox.mark_published([event.pk for event in events])
        built = build(number=head.number + 1)
        if head.number == 0 or not _same(contract.decode(bytes(head.body)), built):
            head.number, head.body = built.number, contract.encode(built)
            head.save(update_fields=["number", "body"])
        return head.number


def build(*, number: int) -> Catalog:
    """Return the catalog of the open transaction's snapshot."""
    return Catalog(
        number=number,
        published_at_ms=time.time_ns() // 1_000_000,
        tenants=catalog_tenants(actor=_BUILDER),
        keys=catalog_keys(actor=_BUILDER),
        deployments=_deployments(),
        versions=_versions(),
    )


def _same(one: Catalog, other: Catalog) -> bool:
    delta = contract.diff(one, other)
    return not any((delta.put_tenants, delta.put_keys, delta.put_deployments, delta.put_versions, *delta.drop.values()))


def _deployments() -> dict[str, DeploymentEntry]:
    arms: dict[str, list[Arm]] = defaultdict(list)
    for arm in DeploymentArm.objects.exclude(deployment__state=DeploymentState.DELETED):
        arms[arm.deployment_id].append(
            Arm(version_id=arm.version_id, weight=arm.weight, name=arm.name, hold=Hold(arm.hold))
        )
    grants: dict[str, dict[str, Share]] = defaultdict(dict)
    for grant in Grant.objects.exclude(deployment__state=DeploymentState.DELETED):
        grants[grant.deployment_id][grant.grantee_id] = grant.share
    return {
        deployment.id: DeploymentEntry(
            id=deployment.id,
            tenant_id=deployment.tenant_id,
            name=deployment.name,
            active=deployment.state == DeploymentState.ACTIVE,
            arms=tuple(arms[deployment.id]),
            grants=grants[deployment.id],
            engine=deployment.engine,
            min_replicas=deployment.min_replicas,
            max_replicas=deployment.max_replicas,
            idle=deployment.idle,
            schedules=deployment.keep_warm,
        )
        for deployment in Deployment.objects.exclude(state=DeploymentState.DELETED)
    }


def _versions() -> dict[str, VersionEntry]:
    """Return the versions that some deployment serves: nothing else is fetched, kept or loaded."""
    served = DeploymentArm.objects.exclude(deployment__state=DeploymentState.DELETED).values("version_id")
    versions = ModelVersion.objects.filter(pk__in=served).select_related("model")
    return {version.id: version_entry(version) for version in versions.prefetch_related("files__artifact", "aliases")}


@contextmanager
def _one_snapshot() -> Iterator[None]:
    """Make the transaction that opens next read one snapshot: a version and the arm that names it, or neither."""
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED")
