"""Puts versions into service, pauses deployments and ends them."""

from collections.abc import Sequence

import msgspec
from django.utils import timezone

from controlplane.deployments import bounds, dependents
from controlplane.deployments.capacity import pool_tokens
from controlplane.deployments.models import TRANSITIONS, Deployment, DeploymentArm, DeploymentState, Grant
from controlplane.deployments.services import limits, rows
from controlplane.registry.lifecycle import InUse
from dataplane.contracts.catalog import EngineSettings, IdlePolicy, KeepWarm
from tenants import audit
from tenants.actor import Actor, acting_as, require
from tenants.conflicts import refusing
from tenants.errors import Conflict, Invalid
from tenants.outbox import Topic
from tenants.roles import Permission

DEFAULT_KV_MEMORY_MB = 512
OWNER_GUARANTEE = 4
"""A new deployment promises its owner one part in so many of the pool. Without a guarantee a tenant has a right to its
turn and none to room: guests whose long requests hold every slot would lock the owner out of its own deployment."""


def deploy_version(
    *,
    actor: Actor,
    name: str,
    version_id: str,
    engine: EngineSettings | None = None,
    min_replicas: int = 1,
    max_replicas: int = 1,
    idle: IdlePolicy | None = None,
    schedules: Sequence[KeepWarm] = (),
) -> Deployment:
    """Make a deployment that serves a version to its owner, all of its traffic on one arm.

    The owner is promised a part of the KV pool (:data:`OWNER_GUARANTEE`); :func:`set_grant` changes it.

    Args:
        actor: acts in the tenant that owns the version.
        name: what applications call; free among the tenant's deployments.
        version_id: a version that is ready.
        engine: how the replicas run; without KV memory it gets :data:`DEFAULT_KV_MEMORY_MB`.
        min_replicas: replicas that are kept, 0 to 64.
        max_replicas: the most there may be, at least 1.
        idle: how warm it is kept when idle; by default it never steps down.
        schedules: times of the week during which replicas are kept ready.

    Raises:
        Forbidden: the actor may not deploy.
        NotFound: there is no such version for the actor.
        Invalid: a name or setting is refused.
        Conflict: the version is not ready, or the name is taken.
        ServingLimitReached: the tenant may not have that much served.
    """
    require(actor, Permission.DEPLOYMENTS_WRITE)
    settings, policy = engine or EngineSettings(), idle or IdlePolicy()
    if settings.kv_memory_mb is None:
        settings = msgspec.structs.replace(settings, kv_memory_mb=DEFAULT_KV_MEMORY_MB)
    bounds.refuse(
        bounds.name_faults(name)
        | bounds.engine_faults(settings)
        | bounds.replica_faults(min_replicas, max_replicas)
        | bounds.idle_faults(policy)
        | bounds.schedule_faults(schedules, max_replicas)
    )
    devices = rows.known_devices()
    taken = f"A deployment called {name} exists already. Choose another name, or delete it first."
    kept = {
        "name": name, "min_replicas": min_replicas, "max_replicas": max_replicas,
        **msgspec.structs.asdict(settings), **msgspec.structs.asdict(policy),
        "schedules": msgspec.to_builtins(schedules),
    }  # fmt: skip
    deployment = Deployment(tenant=actor.tenant, owner=actor.tenant.slug, **kept)
    with refusing("deployment_name_once", taken), acting_as(actor):
        limits.claim(actor.tenant, deployments=1, kept_replicas=deployment.most_kept_replicas)
        version = rows.locked_version(actor.tenant, version_id)
        rows.require_context([version], settings)
        rows.require_precision([version], settings)
        rows.require_device([version], settings, devices)
        rows.require_fit([version], settings, {}, min_replicas, at_fault=["kv_memory_mb"])
        deployment.save(force_insert=True)
        DeploymentArm.objects.create(
            tenant=actor.tenant, deployment=deployment, version=version, name="stable", weight=100
        )
        Grant.objects.create(
            tenant=actor.tenant,
            deployment=deployment,
            grantee=actor.tenant,
            grantee_slug=actor.tenant.slug,
            guarantee_tokens=pool_tokens(version.checked_config, settings) // OWNER_GUARANTEE * max(1, min_replicas),
        )
        rows.announce(Topic.DEPLOYMENT, deployment)
        after = {"state": deployment.state, "version_id": version.id, **kept}
        audit.record(actor=actor, verb="deployment.create", target=deployment, after=after)
    return deployment


def pause_deployment(*, actor: Actor, deployment_id: str) -> Deployment:
    """Stop serving a deployment; calls get a 503 that says so. Nothing is lost. Raises as :func:`resume_deployment`."""
    return _change_state(actor, deployment_id, DeploymentState.PAUSED, "deployment.pause")


def resume_deployment(*, actor: Actor, deployment_id: str) -> Deployment:
    """Serve a paused deployment again.

    Raises:
        Forbidden: the actor may not change deployments.
        NotFound: there is no such deployment for the actor.
        Conflict: its state does not lead there, or a rollout goes on.
        ServingLimitReached: the tenant may not keep that many replicas ready.
    """
    return _change_state(actor, deployment_id, DeploymentState.ACTIVE, "deployment.resume")


def delete_deployment(*, actor: Actor, deployment_id: str, confirm: str | None = None) -> Deployment:
    """End a deployment for good; its name is free again, its usage stays.

    Args:
        actor: who ends it.
        deployment_id: which.
        confirm: its name, said again. Needed where something depends on it.

    Raises:
        Forbidden: the actor may not change deployments.
        NotFound: there is no such deployment for the actor.
        Invalid: ``confirm`` is not its name.
        InUse: a rollout goes on; or keys or other tenants depend on it, and nothing was confirmed.
    """
    return _change_state(actor, deployment_id, DeploymentState.DELETED, "deployment.delete", confirm)


def _change_state(
    actor: Actor, deployment_id: str, new: DeploymentState, verb: str, confirm: str | None = None
) -> Deployment:
    require(actor, Permission.DEPLOYMENTS_WRITE)
    with acting_as(actor):
        # Race: paused and deleted at once. The lock puts them in line; the second is judged by what the first left.
        deployment = rows.locked_deployment(actor, deployment_id)
        old = DeploymentState(deployment.state)
        if new not in TRANSITIONS[old]:
            raise Conflict(f"{deployment.name} is {old.value}, so it cannot become {new.value}.")
        if new is not DeploymentState.ACTIVE:
            rows.require_unheld(deployment, new.value)
        if new is DeploymentState.DELETED:
            _require_confirmation(deployment, confirm)
        if new is DeploymentState.ACTIVE:  # paused, it kept nothing
            limits.claim(deployment.tenant, kept_replicas=deployment.most_kept_replicas, at_fault=())
        deployment.state = new
        deployment.deleted_at = timezone.now() if new is DeploymentState.DELETED else None
        deployment.save(update_fields=["state", "deleted_at"])
        rows.announce(Topic.DEPLOYMENT, deployment)
        audit.record(
            actor=actor, verb=verb, target=deployment, tenant=deployment.tenant,
            before={"state": old.value}, after={"state": new.value},
        )  # fmt: skip
    return deployment


def _require_confirmation(deployment: Deployment, confirm: str | None) -> None:
    if confirm is not None:
        if confirm != deployment.name:
            reason = "This is not the deployment's name."
            raise Invalid(reason, fields={"confirm": reason})
        return
    found = dependents.of_deployment(deployment)
    if found:
        listed = ", ".join(found.words)
        raise InUse(
            f"{deployment.name} is needed by {listed}. Confirm by saying its name to delete it all the same.",
            found.words,
        )
