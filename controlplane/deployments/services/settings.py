"""Changes how a living deployment runs."""

from collections.abc import Collection, Sequence

import msgspec
from msgspec import UNSET, UnsetType

from controlplane.deployments import bounds
from controlplane.deployments.models import Deployment, DeploymentState
from controlplane.deployments.services import limits, rows
from dataplane.contracts.catalog import EngineSettings, KeepWarm
from dataplane.contracts.replica import Device
from tenants import audit
from tenants.actor import Actor, acting_as, require
from tenants.chain import Json
from tenants.errors import Conflict
from tenants.outbox import Topic
from tenants.roles import Permission

_POOL_FIELDS = ("kv_memory_mb", "dtype", "kv_dtype", "block_size", "min_replicas")
"""What the size of the KV pool follows from."""
_KEEPING_FIELDS = ("min_replicas", "schedules")
"""What the number of replicas that are kept ready follows from."""
_ENGINE_FIELDS = frozenset(EngineSettings.__struct_fields__)
_DEVICE_FIELDS = frozenset({"device", "dtype", "kv_dtype", "kv_memory_mb"})
"""What a replica's place depends on. Other changes are not stopped by a fleet that has shrunk since."""


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """New values of a deployment's settings; what is not set stays as it is.

    The fields are those of ``EngineSettings`` and ``IdlePolicy`` (:mod:`dataplane.contracts.catalog`), the numbers of
    replicas, and ``schedules``, which are replaced as a whole.
    """

    dtype: str | UnsetType = UNSET
    kv_dtype: str | UnsetType = UNSET
    device: str | UnsetType = UNSET
    max_model_len: int | UnsetType | None = UNSET
    max_num_seqs: int | UnsetType = UNSET
    kv_memory_mb: int | UnsetType = UNSET
    block_size: int | UnsetType = UNSET
    prefix_cache: bool | UnsetType = UNSET
    min_replicas: int | UnsetType = UNSET
    max_replicas: int | UnsetType = UNSET
    asleep_after_s: int | UnsetType | None = UNSET
    warm_after_s: int | UnsetType | None = UNSET
    disk_after_s: int | UnsetType | None = UNSET
    cold_wait_s: int | UnsetType = UNSET
    schedules: Sequence[KeepWarm] | UnsetType = UNSET


def configure_deployment(*, actor: Actor, deployment_id: str, revision: int, changes: Changes) -> Deployment:
    """Change the settings of a living deployment. Its replicas are replaced one by one where they must run otherwise.

    Args:
        actor: acts in the owner.
        deployment_id: which.
        revision: the deployment's revision that the actor has seen; each change counts it on.
        changes: what is to be different.

    Raises:
        Forbidden: the actor may not change deployments.
        NotFound: there is no such deployment for the actor.
        Conflict: the settings were changed since ``revision``.
        InUse: a rollout goes on, and replicas would run otherwise.
        Invalid: a setting is refused, or the shares promised to its tenants would not fit the KV pool any more.
        ServingLimitReached: the tenant may not keep that many replicas ready.
    """
    require(actor, Permission.DEPLOYMENTS_WRITE)
    devices = rows.known_devices()
    with acting_as(actor):
        deployment = rows.locked_deployment(actor, deployment_id)
        # Race: two people change what both have read. The lock puts them in line, the revision tells the second.
        if deployment.revision != revision:
            raise Conflict(
                f"The settings of {deployment.name} were changed since you read them (revision {revision}, now "
                f"{deployment.revision}). Read them again, then change them."
            )
        # As JSON has it, which leaves out what is not set, it is stored and compared.
        asked: dict[str, Json] = msgspec.json.decode(msgspec.json.encode(changes))
        before = {name: getattr(deployment, name) for name in asked}
        after = {name: value for name, value in asked.items() if value != before[name]}
        if not after:
            return deployment
        if not _ENGINE_FIELDS.isdisjoint(after):  # its replicas would be replaced while they are compared
            rows.require_unheld(deployment, "made to run otherwise")
        kept_before = deployment.most_kept_replicas
        for name, value in after.items():
            setattr(deployment, name, value)
        _check(deployment, after.keys(), devices)
        if deployment.state == DeploymentState.ACTIVE:  # paused, it keeps nothing: resuming it is judged
            more = deployment.most_kept_replicas - kept_before
            at_fault = [name for name in _KEEPING_FIELDS if name in after]
            limits.claim(deployment.tenant, kept_replicas=more, at_fault=at_fault)
        deployment.revision += 1
        deployment.save(update_fields=["revision", *after])
        rows.announce(Topic.DEPLOYMENT, deployment)
        audit.record(
            actor=actor, verb="deployment.configure", target=deployment, tenant=deployment.tenant,
            before={name: before[name] for name in after}, after=after,
        )  # fmt: skip
    return deployment


def _check(deployment: Deployment, changed: Collection[str], devices: Sequence[Device]) -> None:
    """Judge the settings as a whole, as they would be."""
    bounds.refuse(
        bounds.engine_faults(deployment.engine)
        | bounds.replica_faults(deployment.min_replicas, deployment.max_replicas)
        | bounds.idle_faults(deployment.idle)
        | bounds.schedule_faults(deployment.keep_warm, deployment.max_replicas)
    )
    versions = rows.served_versions(deployment)
    rows.require_context(versions, deployment.engine)
    rows.require_precision(versions, deployment.engine)
    if not _DEVICE_FIELDS.isdisjoint(changed):
        rows.require_device(versions, deployment.engine, devices)
    shares = {grant.grantee_slug: grant.share for grant in deployment.grants.all()}
    at_fault = [name for name in _POOL_FIELDS if name in changed] or ["kv_memory_mb"]
    rows.require_fit(versions, deployment.engine, shares, deployment.min_replicas, at_fault=at_fault)
