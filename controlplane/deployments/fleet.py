"""Takes in what the fleet reports: replicas and costs as they are, and each change of state once."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import msgspec
from django.utils import timezone

from controlplane.deployments.models import Deployment, FleetNode, ReplicaEvent, ReplicaRow, RestartCosts
from controlplane.metering.services import replica_ended
from dataplane.contracts.replica import FleetReport, ReplicaReport, ReplicaState, TierCost
from dataplane.contracts.replica import ReplicaEvent as EventReport
from tenants.actor import Actor, acting_as, require
from tenants.roles import Permission

_TEXT_CHARS = 300


def report_replicas(*, actor: Actor, report: FleetReport) -> None:
    """Take in a report. Repeated events and tables that were overtaken change nothing.

    A replica that stopped, or that its node no longer knows, is told to metering: its open requests may settle.

    Raises:
        Forbidden: the actor is not a process of the platform.
    """
    require(actor, Permission.PLATFORM_FLEET)
    with acting_as(actor):
        owners = _owners(report)
        _keep_events(report.table.node, report.events, owners)
        ended = {event.replica_id for event in report.events if event.new is ReplicaState.STOPPED}
        ended |= _take_table(report, owners)
        _keep_costs(report.costs, owners)
        replica_ended(actor=actor, replica_ids=ended)


def _owners(report: FleetReport) -> dict[str, str]:
    """The owner of each deployment that is named: read here, since it decides who may see the rows."""
    named = {replica.deployment_id for replica in report.table.replicas}
    named |= {event.deployment_id for event in report.events} | report.costs.keys()
    return dict(Deployment.objects.filter(pk__in=named).values_list("pk", "tenant_id"))


def _keep_events(node: str, events: Sequence[EventReport], owners: dict[str, str]) -> None:
    ReplicaEvent.objects.bulk_create(
        [
            ReplicaEvent(
                node=node,
                sequence=event.sequence,
                tenant_id=owners.get(event.deployment_id),
                replica_id=event.replica_id,
                deployment_id=event.deployment_id,
                version_id=event.version_id,
                at=_time(event.at_ms),
                old=event.old,
                new=event.new,
                cause=_text(event.cause),
            )
            for event in events
        ],
        ignore_conflicts=True,
    )


def _keep_costs(costs: Mapping[str, Sequence[TierCost]], owners: dict[str, str]) -> None:
    """Keep the last costs of each deployment. Most reports repeat them: only what differs is written."""
    told = {pk: msgspec.to_builtins(list(tiers)) for pk, tiers in costs.items() if pk in owners}
    known = dict(RestartCosts.objects.filter(pk__in=told).values_list("pk", "costs"))
    now = timezone.now()
    RestartCosts.objects.bulk_create(
        [
            RestartCosts(deployment_id=pk, tenant_id=owners[pk], costs=tiers, at=now)
            for pk, tiers in sorted(told.items())
            if known.get(pk) != tiers
        ],
        update_conflicts=True,
        unique_fields=["deployment"],
        update_fields=["costs", "at"],
    )


def _take_table(report: FleetReport, owners: dict[str, str]) -> set[str]:
    """Replace the node's rows; return the replicas that ended."""
    table = report.table
    now, at = timezone.now(), _time(table.at_ms)
    FleetNode.objects.bulk_create(
        [FleetNode(node=table.node, number=-1, at=datetime.fromtimestamp(0, UTC), seen_at=now)], ignore_conflicts=True
    )
    # Race: a report that was delayed on its way against the one after it. The node's lock puts them in line.
    node = FleetNode.objects.select_for_update(no_key=True).get(pk=table.node)
    node.seen_at = now
    if table.number < node.number and at <= node.at:
        node.save(update_fields=["seen_at"])
        return set()
    node.number, node.at = table.number, at
    if report.resources is not None:
        node.resources = msgspec.to_builtins(report.resources)
    node.save(update_fields=["number", "at", "seen_at", "resources"])
    rows = [_row(node, replica, owners) for replica in table.replicas]
    known = {row.replica_id for row in rows}
    gone = ReplicaRow.objects.filter(node=node).exclude(pk__in=known)
    ended = set(gone.values_list("pk", flat=True))
    gone.delete()
    ReplicaRow.objects.bulk_create(
        rows,
        update_conflicts=True,
        unique_fields=["replica_id"],
        update_fields=["node", "tenant", "deployment_id", "version_id", "state", "cause", "since", "report"],
    )
    return ended | {row.replica_id for row in rows if row.state == ReplicaState.STOPPED}


def _row(node: FleetNode, replica: ReplicaReport, owners: dict[str, str]) -> ReplicaRow:
    return ReplicaRow(
        replica_id=replica.replica_id,
        node=node,
        tenant_id=owners.get(replica.deployment_id),
        deployment_id=replica.deployment_id,
        version_id=replica.version_id,
        state=replica.state,
        cause=_text(replica.cause),
        since=_time(replica.since_ms),
        report=msgspec.to_builtins(_clean(replica)),
    )


def _clean(replica: ReplicaReport) -> ReplicaReport:
    return msgspec.structs.replace(replica, cause=_text(replica.cause), detail=_text(replica.detail))


def _text(reported: str) -> str:
    """Text of a process that may have quoted a stranger's bytes: PostgreSQL takes everything but NUL."""
    return reported.replace("\0", "\ufffd")[:_TEXT_CHARS]


def _time(unix_ms: int) -> datetime:
    return datetime.fromtimestamp(unix_ms / 1000, UTC)
