"""Answers of what holds on to a version or a deployment, for the apps below this one (named in the settings)."""

from controlplane.deployments.models import Deployment
from controlplane.registry.models import ModelVersion
from controlplane.rollouts.models import Rollout
from controlplane.rollouts.states import LIVE, RolloutState


def of_deployment(deployment: Deployment) -> list[str]:
    """Return the rollout that is not over, in words.

    One that rolls back needs nothing but its end; and where the version before cannot start, pausing is the way there.
    """
    live = Rollout.objects.filter(deployment=deployment, state__in=LIVE - {RolloutState.ROLLING_BACK})
    return [f"the rollout {rollout_id}" for rollout_id in live.values_list("id", flat=True)]


def of_version(version: ModelVersion) -> list[str]:
    """Return the rollouts to ``version`` that are not over, in words. A draft's candidate is in no arm yet."""
    live = Rollout.objects.filter(candidate_version=version, state__in=LIVE).select_related("deployment")
    return [f"the rollout {rollout.id} of {rollout.deployment.name}" for rollout in live.order_by("id")]
