"""How a deployment stands, in one word that is also a badge."""

from controlplane.deployments.selectors import DeploymentSummary


def standing(summary: DeploymentSummary) -> str:
    """Return ``paused``, ``ready``, ``starting`` or ``cold``.

    ``active`` is a deployment of another tenant's, whose replicas are not told.
    """
    if summary.deployment.state != "active" or not summary.is_own:
        return str(summary.deployment.state)
    if summary.ready_replicas:
        return "ready"
    return "starting" if summary.deployment.min_replicas or summary.num_replicas else "cold"
