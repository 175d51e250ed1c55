"""The story of a deployment: what its replicas did and what people changed, in one line of time."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from controlplane.deployments.models import Deployment, ReplicaEvent
from controlplane.deployments.selectors.rows import own_deployment
from tenants.actor import Actor, reading_as, require
from tenants.chain import Json
from tenants.models import AuditEvent
from tenants.roles import Permission

EVENTS_PAGE_ROWS = 100


class EventKind(StrEnum):
    """What an event is about."""

    REPLICA = "replica"
    STATE = "state"
    SETTINGS = "settings"
    SHARE = "share"


_KINDS = {
    "deployment.create": EventKind.STATE,
    "deployment.pause": EventKind.STATE,
    "deployment.resume": EventKind.STATE,
    "deployment.configure": EventKind.SETTINGS,
    "grant.set": EventKind.SHARE,
    "grant.remove": EventKind.SHARE,
    "cache.rotate": EventKind.SHARE,
}


@dataclass(frozen=True, slots=True)
class DeploymentEvent:
    """Something that happened to a deployment.

    Args:
        at: when.
        kind: what it is about.
        cause: why: what the fleet said, or which act it was (such as ``deployment.pause``).
        actor: who did it; empty for the fleet, and for readers who may not read the audit.
        replica_id: the replica, where it is about one.
        version_id: what that replica served.
        old: the state before; empty where no state changed.
        new: the state after.
        before: the settings or the share that changed, as they were.
        after: the same, as they are.
    """

    at: datetime
    kind: EventKind
    cause: str
    actor: str = ""
    replica_id: str = ""
    version_id: str = ""
    old: str = ""
    new: str = ""
    before: Mapping[str, Json] = field(default_factory=dict)
    after: Mapping[str, Json] = field(default_factory=dict)


def list_events(*, actor: Actor, deployment_id: str, limit: int = EVENTS_PAGE_ROWS) -> list[DeploymentEvent]:
    """Return the last ``limit`` events of the tenant's own deployment, newest first.

    Raises:
        NotFound: it owns none of that id.
    """
    require(actor, Permission.DEPLOYMENTS_READ)
    with reading_as(actor):
        deployment = own_deployment(actor, deployment_id)
        events = [*_of_replicas(deployment, limit), *_of_people(actor, deployment, limit)]
    # A sort is stable: of two events at one moment those of replicas stay in the order that the fleet counted.
    return sorted(events, key=lambda event: event.at, reverse=True)[:limit]


def _of_replicas(deployment: Deployment, limit: int) -> list[DeploymentEvent]:
    rows = ReplicaEvent.objects.filter(deployment_id=deployment.pk).order_by("-at", "-sequence")
    return [
        DeploymentEvent(
            at=row.at,
            kind=EventKind.REPLICA,
            cause=row.cause,
            replica_id=row.replica_id,
            version_id=row.version_id,
            old=row.old,
            new=row.new,
        )
        for row in rows[:limit]
    ]


def _of_people(actor: Actor, deployment: Deployment, limit: int) -> list[DeploymentEvent]:
    rows = AuditEvent.objects.filter(
        tenant_id=deployment.tenant_id, target_kind="deployment", target_id=deployment.pk, verb__in=list(_KINDS)
    )
    return [_of_audit(row, named=actor.may(Permission.AUDIT_READ)) for row in rows.order_by("-sequence")[:limit]]


def _of_audit(row: AuditEvent, *, named: bool) -> DeploymentEvent:
    kind = _KINDS[row.verb]
    is_state = kind is EventKind.STATE
    return DeploymentEvent(
        at=row.at,
        kind=kind,
        cause=row.verb,
        actor=row.actor_label if named else "",
        old=row.before.get("state", "") if is_state else "",
        new=row.after.get("state", "") if is_state else "",
        before={} if is_state else row.before,
        after={} if is_state else row.after,
    )
