"""What a rollout would be like, before anybody makes it: what it could go to, how long it takes, whether it fits."""

from dataclasses import dataclass

from controlplane.deployments.models import DeploymentArm, DeploymentState
from controlplane.registry.models import ModelVersion, VersionState
from controlplane.rollouts import evidence, observation
from controlplane.rollouts.models import Rollout
from controlplane.rollouts.plan import Plan, StepTime, step_times, to_json
from controlplane.rollouts.view import Fit
from dataplane.contracts.catalog import STABLE
from tenants.actor import Actor, acting_as, reading_as, require, system_actor
from tenants.errors import NotFound
from tenants.roles import Permission

_WATCHER = system_actor("rollouts")


@dataclass(frozen=True, slots=True)
class Outlook:
    """How a plan would go at today's traffic.

    Args:
        requests_per_minute: of the deployment, over the last day.
        times: how long each step takes.
    """

    requests_per_minute: float
    times: tuple[StepTime, ...]


def list_candidates(*, actor: Actor, stable: ModelVersion) -> list[ModelVersion]:
    """Return what can take the place of ``stable``: ready versions, those of its model first, the newest first."""
    require(actor, Permission.MODELS_READ)
    with reading_as(actor):
        ready = ModelVersion.objects.for_tenant(actor.tenant).filter(state=VersionState.READY, deleted_at=None)
        found = list(ready.exclude(pk=stable.pk).select_related("model").order_by("model__name", "-number"))
    return sorted(found, key=lambda version: version.model_id != stable.model_id)


def outlook(*, actor: Actor, deployment_id: str, plan: Plan) -> Outlook:
    """Return how long ``plan`` takes. Whoever asks has been shown the deployment as the tenant's own."""
    require(actor, Permission.ROLLOUTS_READ)
    pace = evidence.traffic_per_minute(deployment_id=deployment_id)
    return Outlook(pace, step_times(plan, pace))


def fit(*, actor: Actor, deployment_id: str, candidate_version_id: str, plan: Plan) -> Fit | None:
    """Return what the preflight would say of memory now; None while no node of the fleet is heard of.

    Raises:
        NotFound: the tenant has no such deployment, or no such version that is ready.
    """
    require(actor, Permission.ROLLOUTS_READ)
    with reading_as(actor):
        arms = DeploymentArm.objects.filter(deployment__tenant=actor.tenant, deployment_id=deployment_id, name=STABLE)
        served = arms.exclude(deployment__state=DeploymentState.DELETED)
        arm = served.select_related("deployment", "version__model").first()
        versions = ModelVersion.objects.for_tenant(actor.tenant).filter(state=VersionState.READY, deleted_at=None)
        candidate = versions.select_related("model").filter(pk=candidate_version_id).first()
    if arm is None or candidate is None:
        raise NotFound("There is no such deployment, or no such version that is ready.")
    unsaved = Rollout(
        tenant=actor.tenant,
        deployment=arm.deployment,
        stable_version=arm.version,
        candidate_version=candidate,
        candidate_digest=candidate.digest or "",
        plan=to_json(plan),
    )
    with acting_as(_WATCHER):
        return observation.planned(unsaved)
