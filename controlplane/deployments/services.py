"""Puts versions into service, shares them out, pauses and ends them."""

import re
from collections.abc import Mapping

import msgspec
from django.utils import timezone

from controlplane.deployments.capacity import DoesNotFit, check_shares, pool_tokens
from controlplane.deployments.models import (
    DEVICES,
    TRANSITIONS,
    Deployment,
    DeploymentArm,
    DeploymentState,
    Grant,
)
from controlplane.registry.models import NAME_PATTERN, ModelVersion, VersionState
from dataplane.contracts.catalog import EngineSettings, Share
from dataplane.contracts.memory import DTYPE_BYTES
from tenants import audit, outbox
from tenants.actor import Actor, acting_as, require
from tenants.chain import Json
from tenants.conflicts import refusing
from tenants.errors import Conflict, Forbidden, Invalid, NotFound
from tenants.models import Tenant
from tenants.outbox import Topic
from tenants.roles import Permission

DEFAULT_KV_MEMORY_MB = 512
OWNER_GUARANTEE = 4
"""A new deployment promises its owner one part in so many of the pool. Without a guarantee a tenant has a right to its
turn and none to room: guests whose long requests hold every slot would lock the owner out of its own deployment."""
MAX_REPLICAS = 64
MAX_WEIGHT = 1000
_BOUNDS = {
    "max_num_seqs": (1, 4096),
    "kv_memory_mb": (1, 1 << 21),
    "block_size": (1, 256),
    "max_model_len": (1, 1 << 20),
}
_MAX_TOKENS = 2**53


def deploy_version(
    *,
    actor: Actor,
    name: str,
    version_id: str,
    engine: EngineSettings | None = None,
    min_replicas: int = 1,
    max_replicas: int = 1,
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

    Raises:
        Forbidden: the actor may not deploy.
        NotFound: there is no such version for the actor.
        Invalid: a name or setting is refused.
        Conflict: the version is not ready, or the name is taken.
    """
    require(actor, Permission.DEPLOYMENTS_WRITE)
    settings = engine or EngineSettings()
    if settings.kv_memory_mb is None:
        settings = msgspec.structs.replace(settings, kv_memory_mb=DEFAULT_KV_MEMORY_MB)
    _check(name, settings, min_replicas, max_replicas)
    taken = f"A deployment called {name} exists already. Choose another name, or delete it first."
    with refusing("deployment_name_once", taken), acting_as(actor):
        version = _ready_version(actor.tenant, version_id)
        if settings.max_model_len is not None and settings.max_model_len > version.content.context_tokens:
            reason = f"The model has a context of {version.content.context_tokens} tokens."
            raise Invalid(reason, fields={"max_model_len": reason})
        _require_fit(version, settings, {}, min_replicas)
        deployment = Deployment.objects.create(
            tenant=actor.tenant,
            owner=actor.tenant.slug,
            name=name,
            min_replicas=min_replicas,
            max_replicas=max_replicas,
            **msgspec.structs.asdict(settings),
        )
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
        _announce(Topic.DEPLOYMENT, deployment)
        after: dict[str, Json] = {"name": name, "version_id": version.id, **msgspec.structs.asdict(settings)}
        audit.record(actor=actor, verb="deployment.create", target=deployment, after=after)
    return deployment


def set_grant(*, actor: Actor, deployment_id: str, grantee_slug: str, share: Share) -> Grant:
    """Let a tenant call a deployment, or change its share there. The owner's own share is set the same way.

    Raises:
        Forbidden: the actor may not share this deployment; only the platform lets other tenants in.
        NotFound: there is no such deployment or tenant for the actor.
        Invalid: the shares do not fit the KV pool; the message has the numbers.
    """
    _require_sharing(actor, grantee_slug)
    _check_share(share)
    with acting_as(actor):
        deployment = _locked(actor, deployment_id)
        grantee = Tenant.objects.filter(slug=grantee_slug).first()
        if grantee is None:
            raise NotFound(f"There is no tenant {grantee_slug!r}.")
        grants = {grant.grantee_slug: grant for grant in deployment.grants.all()}
        shares = {slug: grant.share for slug, grant in grants.items()} | {grantee_slug: share}
        # Race: two guarantees that fit alone and not together. The deployment's lock lets the second see the first.
        _require_fit(_largest_version(deployment), deployment.engine, shares, deployment.min_replicas)
        grant = grants.get(grantee_slug) or Grant(
            tenant_id=deployment.tenant_id, deployment=deployment, grantee=grantee, grantee_slug=grantee_slug
        )
        before = msgspec.structs.asdict(grant.share) if grantee_slug in grants else {}
        for field, value in msgspec.structs.asdict(share).items():
            setattr(grant, field, value)
        grant.save()
        _announce(Topic.GRANT, deployment)
        audit.record(
            actor=actor, verb="grant.set", target=grant, tenant=deployment.tenant,
            before=before, after={"tenant": grantee_slug, **msgspec.structs.asdict(share)},
        )  # fmt: skip
    return grant


def remove_grant(*, actor: Actor, deployment_id: str, grantee_slug: str) -> None:
    """Take a tenant's leave to call a deployment back; its running streams are cut within seconds.

    Raises:
        Forbidden: the actor does not let tenants in.
        NotFound: there is no such deployment, or the tenant may not call it.
        Conflict: the owner's own leave ends with the deployment.
    """
    require(actor, Permission.PLATFORM_GRANTS)
    with acting_as(actor):
        deployment = _locked(actor, deployment_id)
        if grantee_slug == deployment.owner:
            raise Conflict("The owner may always call its deployment. Pause or delete the deployment instead.")
        grant = deployment.grants.filter(grantee_slug=grantee_slug).first()
        if grant is None:
            raise NotFound(f"{grantee_slug} may not call this deployment.")
        _announce(Topic.GRANT, deployment)
        audit.record(
            actor=actor, verb="grant.remove", target=grant, tenant=deployment.tenant,
            before={"tenant": grantee_slug, **msgspec.structs.asdict(grant.share)},
        )  # fmt: skip
        grant.delete()


def pause_deployment(*, actor: Actor, deployment_id: str) -> Deployment:
    """Stop serving a deployment; calls get a 503 that says so. Nothing is lost. Raises as :func:`resume_deployment`."""
    return _change_state(actor, deployment_id, DeploymentState.PAUSED, "deployment.pause")


def resume_deployment(*, actor: Actor, deployment_id: str) -> Deployment:
    """Serve a paused deployment again.

    Raises:
        Forbidden: the actor may not change deployments.
        NotFound: there is no such deployment for the actor.
        Conflict: its state does not lead there.
    """
    return _change_state(actor, deployment_id, DeploymentState.ACTIVE, "deployment.resume")


def delete_deployment(*, actor: Actor, deployment_id: str) -> Deployment:
    """End a deployment for good; its name is free again, its usage stays. Raises as :func:`resume_deployment`."""
    return _change_state(actor, deployment_id, DeploymentState.DELETED, "deployment.delete")


def _change_state(actor: Actor, deployment_id: str, new: DeploymentState, verb: str) -> Deployment:
    require(actor, Permission.DEPLOYMENTS_WRITE)
    with acting_as(actor):
        # Race: paused and deleted at once. The lock puts them in line; the second is judged by what the first left.
        deployment = _locked(actor, deployment_id)
        old = DeploymentState(deployment.state)
        if new not in TRANSITIONS[old]:
            raise Conflict(f"{deployment.name} is {old.value}, so it cannot become {new.value}.")
        deployment.state = new
        deployment.deleted_at = timezone.now() if new is DeploymentState.DELETED else None
        deployment.save(update_fields=["state", "deleted_at"])
        _announce(Topic.DEPLOYMENT, deployment)
        audit.record(
            actor=actor, verb=verb, target=deployment, tenant=deployment.tenant,
            before={"state": old.value}, after={"state": new.value},
        )  # fmt: skip
    return deployment


# --- checks


def _check(name: str, engine: EngineSettings, min_replicas: int, max_replicas: int) -> None:
    faults: dict[str, str] = {}
    if re.fullmatch(NAME_PATTERN, name, re.ASCII) is None:
        faults["name"] = "Use 2 to 64 of a-z, 0-9, dot, dash and underscore; a letter or digit first and last."
    if engine.dtype not in DTYPE_BYTES:
        faults["dtype"] = f"This is one of {', '.join(DTYPE_BYTES)}."
    if engine.device not in DEVICES:
        faults["device"] = f"This is one of {', '.join(DEVICES)}."
    for field, (low, high) in _BOUNDS.items():
        value = getattr(engine, field)
        if value is not None and not low <= value <= high:
            faults[field] = f"This is a whole number from {low} to {high}."
    if not 0 <= min_replicas <= MAX_REPLICAS:
        faults["min_replicas"] = f"This is a whole number from 0 to {MAX_REPLICAS}."
    if not max(1, min_replicas) <= max_replicas <= MAX_REPLICAS:
        faults["max_replicas"] = f"This is at least 1, at least min_replicas, and at most {MAX_REPLICAS}."
    if faults:
        raise Invalid(_sentence(faults), fields=faults)


def _check_share(share: Share) -> None:
    faults: dict[str, str] = {}
    if not 0 <= share.guarantee_tokens <= _MAX_TOKENS:
        faults["guarantee_tokens"] = "This is a number of tokens, 0 for no guarantee."
    if share.cap_tokens is not None and not 1 <= share.cap_tokens <= _MAX_TOKENS:
        faults["cap_tokens"] = "This is a number of tokens, at least 1, or empty for the whole pool."
    if not 1 <= share.weight <= MAX_WEIGHT:
        faults["weight"] = f"This is a whole number from 1 to {MAX_WEIGHT}."
    if faults:
        raise Invalid(_sentence(faults), fields=faults)


def _sentence(faults: Mapping[str, str]) -> str:
    return " ".join(f"{field}: {reason}" for field, reason in faults.items())


def _require_fit(version: ModelVersion, engine: EngineSettings, shares: Mapping[str, Share], min_replicas: int) -> None:
    try:
        check_shares(version.checked_config, engine, shares, min_replicas=min_replicas)
    except DoesNotFit as error:
        field = "guarantee_tokens" if shares else "kv_memory_mb"
        raise Invalid(str(error), fields={field: str(error)}, code="does_not_fit") from error


def _require_sharing(actor: Actor, grantee_slug: str) -> None:
    if actor.is_platform:
        require(actor, Permission.PLATFORM_GRANTS)
        return
    require(actor, Permission.DEPLOYMENTS_WRITE)
    if grantee_slug != actor.tenant.slug:
        raise Forbidden("Only the platform lets another tenant call a deployment. Ask an administrator.")


# --- rows


def _ready_version(tenant: Tenant, version_id: str) -> ModelVersion:
    version = ModelVersion.objects.for_tenant(tenant).filter(pk=version_id).first()
    if version is None:
        raise NotFound("There is no such version.")
    if version.state != VersionState.READY:
        raise Conflict(f"This version is {version.state}; only a ready one can be deployed.")
    return version


def _locked(actor: Actor, deployment_id: str) -> Deployment:
    """Lock a living deployment: the tenant's own, or for the platform any."""
    rows = Deployment.objects if actor.is_platform else Deployment.objects.for_tenant(actor.tenant)
    living = rows.exclude(state=DeploymentState.DELETED).select_for_update(no_key=True)
    deployment = living.filter(pk=deployment_id).first()
    if deployment is None:
        raise NotFound("There is no such deployment.")
    return deployment


def _largest_version(deployment: Deployment) -> ModelVersion:
    """The version whose tokens take the most memory: what fits with it fits with every arm."""
    versions = [arm.version for arm in deployment.arms.select_related("version")]
    return max(versions, key=_kv_elements)


def _kv_elements(version: ModelVersion) -> int:
    config = version.checked_config
    return config.num_layers * config.num_kv_heads * config.head_dim


def _announce(topic: Topic, deployment: Deployment) -> None:
    outbox.emit(topic, tenant=deployment.tenant, deployment_id=deployment.id)
