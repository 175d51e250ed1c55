"""Rows under their locks, and the checks that need them; shared by the services beside it."""

from collections.abc import Collection, Mapping, Sequence

import msgspec

from controlplane.deployments import dependents
from controlplane.deployments.capacity import DoesNotFit, NoDevice, check_device, check_shares, largest
from controlplane.deployments.models import Deployment, DeploymentState, FleetNode
from controlplane.registry.lifecycle import InUse
from controlplane.registry.models import ModelVersion, VersionState
from dataplane.contracts import precision
from dataplane.contracts.catalog import EngineSettings, Share
from dataplane.contracts.replica import Device, NodeReport
from tenants import outbox
from tenants.actor import Actor, acting_as, system_actor
from tenants.errors import Conflict, Invalid, NotFound
from tenants.models import Tenant
from tenants.outbox import Topic

_FLEET_READER = system_actor("deployments")


def locked_version(tenant: Tenant, version_id: str) -> ModelVersion:
    """Lock a version that may be put into service.

    Race: its deletion at the same moment. That locks the row as well and then asks who serves the version
    (:mod:`controlplane.registry.holders`); so it finds the new deployment, or this finds the version gone.

    Raises:
        NotFound: the tenant has no such version, or it was deleted.
        Conflict: it is not ready.
    """
    rows = ModelVersion.objects.for_tenant(tenant).select_for_update(no_key=True)
    version = rows.filter(pk=version_id, deleted_at=None).first()
    if version is None:
        raise NotFound("There is no such version.")
    if version.state != VersionState.READY:
        raise Conflict(f"This version is {version.state}; only a ready one can be deployed.")
    return version


def locked_deployment(actor: Actor, deployment_id: str) -> Deployment:
    """Lock a living deployment: the tenant's own, or for the platform any.

    Raises:
        NotFound: there is none for the actor.
    """
    rows = Deployment.objects if actor.is_platform else Deployment.objects.for_tenant(actor.tenant)
    living = rows.exclude(state=DeploymentState.DELETED).select_for_update(no_key=True)
    deployment = living.filter(pk=deployment_id).first()
    if deployment is None:
        raise NotFound("There is no such deployment.")
    return deployment


def served_versions(deployment: Deployment) -> list[ModelVersion]:
    """Return the versions of all arms."""
    return [arm.version for arm in deployment.arms.select_related("version")]


def known_devices() -> list[Device]:
    """Return what the nodes of the fleet said they have; nothing before the first report.

    It is the platform's to read, so this is a transaction of its own: call it before the service's.
    """
    with acting_as(_FLEET_READER):
        told = list(FleetNode.objects.exclude(resources=None).values_list("resources", flat=True))
    return [device for resources in told for device in msgspec.convert(resources, NodeReport).devices]


def require_device(versions: Collection[ModelVersion], engine: EngineSettings, devices: Sequence[Device]) -> None:
    """Refuse replicas that no device of the fleet could hold.

    Raises:
        Invalid: with the numbers, or the kinds of devices there are.
    """
    try:
        for version in versions:
            check_device(version.checked_config, engine, devices)
    except NoDevice as error:
        raise Invalid(str(error), fields={"device": str(error)}, code="no_device") from error
    except DoesNotFit as error:
        raise Invalid(str(error), fields={"kv_memory_mb": str(error)}, code="does_not_fit") from error


def require_context(versions: Collection[ModelVersion], engine: EngineSettings) -> None:
    """Refuse a context longer than a version's own.

    Raises:
        Invalid: with the context there is.
    """
    shortest_tokens = min(version.checked_config.context_tokens for version in versions)
    if engine.max_model_len is not None and engine.max_model_len > shortest_tokens:
        reason = f"The model has a context of {shortest_tokens} tokens."
        raise Invalid(reason, fields={"max_model_len": reason})


def require_precision(versions: Collection[ModelVersion], engine: EngineSettings) -> None:
    """Refuse a precision that a version's weights cannot be held in.

    Raises:
        Invalid: with the precision there is.
    """
    for version in versions:
        reason = precision.conflict(version.checked_config, engine)
        if reason:
            raise Invalid(reason, fields={"dtype": reason})


def require_fit(
    versions: Collection[ModelVersion],
    engine: EngineSettings,
    shares: Mapping[str, Share],
    min_replicas: int,
    *,
    at_fault: Collection[str],
) -> None:
    """Refuse shares that the KV pool cannot keep; ``at_fault`` names the inputs to look at.

    Raises:
        Invalid: with the numbers.
    """
    try:
        check_shares(largest(version.checked_config for version in versions), engine, shares, min_replicas=min_replicas)
    except DoesNotFit as error:
        raise Invalid(str(error), fields=dict.fromkeys(at_fault, str(error)), code="does_not_fit") from error


def require_unheld(deployment: Deployment, act: str) -> None:
    """Refuse ``act``, such as "paused", on a locked deployment while something goes on that needs it as it is.

    Raises:
        InUse: naming what does.
    """
    held_by = dependents.holders(deployment)
    if held_by:
        raise InUse(
            f"{deployment.name} cannot be {act} while {', '.join(held_by)} goes on. Wait for its end, or roll it back.",
            held_by,
        )


def announce(topic: Topic, deployment: Deployment) -> None:
    """Tell the data plane that the deployment has changed."""
    outbox.emit(topic, tenant=deployment.tenant, deployment_id=deployment.id)
