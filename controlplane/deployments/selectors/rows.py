"""Rows as every selector beside this module reads them."""

import msgspec

from controlplane.deployments.models import Deployment, DeploymentState, ReplicaRow
from dataplane.contracts.replica import ReplicaReport
from tenants.actor import Actor
from tenants.errors import NotFound


def own_deployment(actor: Actor, deployment_id: str) -> Deployment:
    """Return a living deployment of the actor's tenant, or for the platform any; within the actor's transaction.

    Raises:
        NotFound: there is none for this actor.
    """
    rows = Deployment.objects if actor.is_platform else Deployment.objects.for_tenant(actor.tenant)
    deployment = rows.exclude(state=DeploymentState.DELETED).filter(pk=deployment_id).first()
    if deployment is None:
        raise NotFound("There is no such deployment.")
    return deployment


def replica_report(row: ReplicaRow) -> ReplicaReport:
    """Return what the fleet reported of a replica."""
    return msgspec.convert(row.report, ReplicaReport)
