"""Changes the arms of a deployment, as a part of somebody else's transaction."""

from collections.abc import Sequence

from controlplane.deployments.models import Deployment, DeploymentArm
from controlplane.deployments.services import rows
from dataplane.contracts import arms as contract
from dataplane.contracts.catalog import Arm
from tenants.outbox import Topic


def set_arms(deployment: Deployment, arms: Sequence[Arm]) -> None:
    """Give a locked deployment these arms and no others, and tell the data plane.

    Raises:
        ValueError: they are not the arms of a deployment.
    """
    fault = contract.fault(arms)
    if fault:
        raise ValueError(f"{deployment.id}: {fault}")
    deployment.arms.all().delete()  # names are unique at each statement, weights at the commit: so all anew
    DeploymentArm.objects.bulk_create(
        DeploymentArm(
            tenant_id=deployment.tenant_id,
            deployment=deployment,
            version_id=arm.version_id,
            name=arm.name,
            weight=arm.weight,
            hold=arm.hold.value,
        )
        for arm in arms
    )
    rows.announce(Topic.DEPLOYMENT, deployment)
