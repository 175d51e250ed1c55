"""Gathers what the preflight asks: the two versions, what they are promised, and what the nodes said they have."""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from controlplane.deployments.models import Deployment, FleetNode, Grant
from controlplane.registry.models import ModelVersion
from controlplane.rollouts import preflight
from controlplane.rollouts.models import Rollout
from controlplane.rollouts.preflight import Ask, Node, Preflight, Version
from dataplane.contracts import arms, memory
from dataplane.contracts.catalog import CANDIDATE, Arm, Hold
from dataplane.contracts.replica import NodeReport, ReplicaReport


def planned(rollout: Rollout, *, kept: int, heard_since: datetime) -> Preflight | None:
    """Return what the memory plan says of both versions; None while no node is heard of.

    It reads rows of all tenants: call it in a transaction of the product's own.

    Args:
        rollout: whose versions.
        kept: READY replicas that its deployment needs.
        heard_since: a node that was silent since then is not counted on.
    """
    nodes = _nodes(heard_since)
    if not nodes:
        return None
    return preflight.check(_ask(rollout, kept), nodes, _planned_bytes(nodes))


def _ask(rollout: Rollout, kept: int) -> Ask:
    deployment = rollout.deployment
    first = Arm(rollout.candidate_version_id, rollout.view.plan.steps[0].weight, CANDIDATE, Hold.READY)
    grants = Grant.objects.filter(deployment_id=deployment.pk)
    return Ask(
        deployment_id=deployment.pk,
        engine=deployment.engine,
        shares={grant.grantee_slug: grant.share for grant in grants},
        stable=_version(rollout.stable_version),
        candidate=_version(rollout.candidate_version),
        replicas=max(1, kept),
        first_replicas=arms.replicas_for(first, kept),
    )


def _version(version: ModelVersion) -> Version:
    return Version(version.pk, version.checked_config)


def _nodes(heard_since: datetime) -> list[Node]:
    heard = FleetNode.objects.filter(seen_at__gte=heard_since, resources__isnull=False).order_by("node")
    return [
        Node(
            name=node.node,
            resources=msgspec.convert(node.resources, NodeReport),
            replicas=tuple(msgspec.convert(row.report, ReplicaReport) for row in node.replicas.all()),
        )
        for node in heard.prefetch_related("replicas")
    ]


def _planned_bytes(nodes: Sequence[Node]) -> dict[tuple[str, str], int]:
    """What replicas will need at most, by deployment and version. Trials are not named: they end by themselves."""
    served = {(row.deployment_id, row.version_id) for node in nodes for row in node.replicas}
    deployments = Deployment.objects.in_bulk({deployment_id for deployment_id, _ in served})
    versions = ModelVersion.objects.filter(digest__isnull=False).in_bulk({version_id for _, version_id in served})
    return {
        (deployment_id, version_id): memory.plan(
            versions[version_id].checked_config, deployments[deployment_id].engine
        ).needed_bytes
        for deployment_id, version_id in served
        if deployment_id in deployments and version_id in versions
    }
