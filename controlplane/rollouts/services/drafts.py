"""Makes rollouts."""

from controlplane.deployments import bounds
from controlplane.deployments.models import Deployment, DeploymentState
from controlplane.deployments.services import rows as deployments
from controlplane.registry.models import ModelVersion
from controlplane.rollouts import plan as plans
from controlplane.rollouts.models import Rollout
from controlplane.rollouts.plan import Plan
from controlplane.rollouts.services import rows
from controlplane.rollouts.services.commands import supersede_live
from controlplane.rollouts.states import LIVE
from dataplane.contracts.catalog import STABLE
from dataplane.contracts.replica import Device
from tenants import audit
from tenants.actor import Actor, ActorKind, acting_as, require
from tenants.conflicts import refusing
from tenants.errors import Conflict, Invalid
from tenants.models import ApiKey
from tenants.roles import Permission


def create_rollout(
    *,
    actor: Actor,
    deployment_id: str,
    candidate_version_id: str,
    plan: Plan = plans.DEFAULT_PLAN,
    supersede: bool = False,
) -> Rollout:
    """Draft a rollout of a version to a deployment. Nothing changes for callers until it is started.

    Args:
        actor: acts in the tenant that owns both. Where it is a key, the author is the person who made the key.
        deployment_id: an active deployment.
        candidate_version_id: a ready version that the deployment does not serve yet.
        plan: how it goes.
        supersede: whether a rollout of the deployment that is under way is ended for this one.

    Raises:
        Forbidden: the actor may not change rollouts.
        NotFound: there is no such deployment or version for the actor.
        Conflict: the deployment has a rollout already, or is paused; or the version is not ready.
        Invalid: the plan is refused; the version is the stable one; or it cannot run as the deployment does: its
            context, the shares promised to tenants, or the fleet's devices do not allow it.
    """
    require(actor, Permission.ROLLOUTS_WRITE)
    bounds.refuse(plans.plan_faults(plan))
    devices = deployments.known_devices()
    taken = "This deployment has a rollout already. Wait for its end, roll it back, or say that this one supersedes it."
    with refusing("rollout_live_once", taken), acting_as(actor):
        deployment = deployments.locked_deployment(actor, deployment_id)
        if deployment.state != DeploymentState.ACTIVE:
            raise Conflict(f"{deployment.name} is {deployment.state}. Resume it first.")
        superseded = _make_room(actor, deployment, supersede=supersede)
        candidate = deployments.locked_version(actor.tenant, candidate_version_id)
        stable = deployment.arms.select_related("version").get(name=STABLE).version
        _check(deployment, stable, candidate, devices)
        rollout = Rollout(
            tenant=actor.tenant,
            deployment=deployment,
            stable_version=stable,
            candidate_version=candidate,
            candidate_digest=candidate.digest or "",  # a ready version has one
            plan=plans.to_json(plan),
            entered_at=rows.database_now(),
            author_kind=actor.kind.value,
            author_id=actor.id,
            author_label=actor.label,
            author_user_id=_person(actor),
        )
        rollout.save(force_insert=True)
        rows.write_event(actor=actor, rollout=rollout, old="", cause=f"Drafted by {actor.label}.", evidence={})
        audit.record(
            actor=actor, verb="rollout.create", target=rollout,
            after={
                "state": rollout.state, "deployment": deployment.name, "stable_version_id": stable.id,
                "candidate_version_id": candidate.id, "candidate_digest": candidate.digest, "plan": rollout.plan,
            },
        )  # fmt: skip
    if superseded is not None:
        rows.committed(superseded)
    return rollout


def _make_room(actor: Actor, deployment: Deployment, *, supersede: bool) -> Rollout | None:
    live = Rollout.objects.filter(deployment=deployment, state__in=LIVE).select_related("tenant", "deployment").first()
    if live is None:
        return None
    if not supersede:
        raise Conflict(
            f"{deployment.name} has the rollout {live.id}, which is {live.state.replace('_', ' ')}. Wait for its end, "
            "roll it back, or say that this one supersedes it."
        )
    supersede_live(actor, live, rows.database_now())
    return live


def _check(deployment: Deployment, stable: ModelVersion, candidate: ModelVersion, devices: list[Device]) -> None:
    """Refuse a candidate that could not run as the deployment does."""
    if candidate.id == stable.id:
        reason = "This version serves already: a rollout goes to another one."
        raise Invalid(reason, fields={"candidate_version_id": reason})
    engine = deployment.engine
    shares = {grant.grantee_slug: grant.share for grant in deployment.grants.all()}
    deployments.require_context([candidate], engine)
    deployments.require_precision([candidate], engine)
    deployments.require_device([candidate], engine, devices)
    deployments.require_fit(
        [candidate], engine, shares, deployment.min_replicas, at_fault=["candidate_version_id"]
    )  # fmt: skip


def _person(actor: Actor) -> str | None:
    """The person whose doing it is, who is not to approve it: of a key its maker."""
    if actor.kind is ActorKind.KEY:
        return ApiKey.objects.for_tenant(actor.tenant).values_list("created_by_id", flat=True).get(pk=actor.id)
    return actor.user.id if actor.user is not None else None
