"""What there is of models and versions, as the actor may see it."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from django.db.models import Count, Max, Prefetch, Q, QuerySet

from controlplane.registry import cards, lifecycle
from controlplane.registry.devices import devices
from controlplane.registry.differences import Content, Difference, difference
from controlplane.registry.entries import version_files
from controlplane.registry.fit import Fit, fits
from controlplane.registry.models import WHOLE, Model, ModelAlias, ModelVersion, VersionCheck, VersionFile, VersionState
from dataplane.contracts.model_config import ModelConfig
from dataplane.contracts.replica import Device
from tenants.actor import Actor, reading_as, require
from tenants.errors import Conflict, NotFound
from tenants.roles import Permission


@dataclass(frozen=True, slots=True)
class VersionDetail:
    """A version with everything that its page shows.

    Args:
        version: the row, with model, files, checks and aliases loaded.
        checks: the checklist in order; empty for one that was imported.
        card: the model card as safe HTML, "" where there is none.
        dependents: what keeps it from being deleted, in words.
        derived: the versions made of it that are not deleted, with their models.
    """

    version: ModelVersion
    checks: Sequence[VersionCheck]
    card: str
    dependents: Sequence[str]
    derived: Sequence[ModelVersion]


@dataclass(frozen=True, slots=True)
class DeviceFit:
    """A device at hand, and the precisions in which it holds a replica of a model; none where it is too small."""

    device: Device
    fits: tuple[Fit, ...]


def list_models(*, actor: Actor) -> list[Model]:
    """Return the tenant's models by name, each with ``num_versions`` (ready ones) and ``last_version_at``."""
    require(actor, Permission.MODELS_READ)
    with reading_as(actor):
        return list(_models(actor).order_by("name"))


def get_model(*, actor: Actor, model_id: str) -> Model:
    """Return one model of the tenant.

    Raises:
        NotFound: there is none for this actor.
    """
    require(actor, Permission.MODELS_READ)
    with reading_as(actor):
        found = _models(actor).filter(pk=model_id).first()
    if found is None:
        raise NotFound("There is no such model.")
    return found


def list_versions(*, actor: Actor, model_id: str | None = None) -> list[ModelVersion]:
    """Return the tenant's versions that are not deleted, newest first, with their model, files and aliases loaded."""
    require(actor, Permission.MODELS_READ)
    with reading_as(actor):
        found = _versions(actor).filter(deleted_at=None)
        if model_id is not None:
            found = found.filter(model_id=model_id)
        return list(found.order_by("model__name", "-number"))


def version_labels(*, actor: Actor, version_ids: Collection[str] | None = None) -> dict[str, tuple[str, int]]:
    """Return (model's name, number) of versions by id, deleted ones too; for the platform every tenant's.

    Args:
        actor: whose versions.
        version_ids: only these; None is all.
    """
    require(actor, Permission.MODELS_READ)
    with reading_as(actor):
        found = ModelVersion.objects.all() if actor.is_platform else ModelVersion.objects.for_tenant(actor.tenant)
        if version_ids is not None:
            found = found.filter(pk__in=version_ids)
        rows = found.order_by("model__name", "-number").values_list("pk", "model__name", "number")
        return {pk: (name, number) for pk, name, number in rows}


def get_version(*, actor: Actor, version_id: str) -> ModelVersion:
    """Return one version of the tenant, a deleted one too, with its model, files and aliases loaded.

    Raises:
        NotFound: there is none for this actor.
    """
    require(actor, Permission.MODELS_READ)
    with reading_as(actor):
        found = _versions(actor).filter(pk=version_id).first()
    if found is None:
        raise NotFound("There is no such version.")
    return found


def get_version_detail(*, actor: Actor, version_id: str) -> VersionDetail:
    """Return a version of the tenant with what its page shows. Raises as :func:`get_version` does."""
    require(actor, Permission.MODELS_READ)
    with reading_as(actor):
        version = get_version(actor=actor, version_id=version_id)
        derived = ModelVersion.objects.filter(derived_from=version, deleted_at=None).select_related("model")
        return VersionDetail(
            version=version,
            checks=tuple(version.checks.all()),
            card=cards.sanitised(version.card),
            dependents=tuple(lifecycle.dependents(version)),
            derived=tuple(derived.order_by("model__name", "number")),
        )


def list_aliases(*, actor: Actor, model_id: str) -> list[ModelAlias]:
    """Return the aliases of one model by name, with their versions loaded. Raises as :func:`get_model` does."""
    require(actor, Permission.MODELS_READ)
    with reading_as(actor):
        model = get_model(actor=actor, model_id=model_id)
        return list(model.aliases.select_related("version").order_by("name"))


def compare_versions(*, actor: Actor, old_id: str, new_id: str) -> Difference:
    """Return what differs between two versions of the tenant, also of two models.

    Raises:
        NotFound: one of them is not there for this actor.
        Conflict: what one of them holds is not known: it was never ready.
    """
    require(actor, Permission.MODELS_READ)
    with reading_as(actor):
        old, new = (get_version(actor=actor, version_id=version_id) for version_id in (old_id, new_id))
        return difference(content(old), content(new))


def content(version: ModelVersion) -> Content:
    """Return what a version is compared by, from a row with its files loaded.

    Raises:
        Conflict: what it holds is not known: it was never ready.
    """
    if version.state not in WHOLE:
        raise Conflict(f"Version {version.number} of {version.model} is {version.state}; only whole ones are compared.")
    return Content(
        config=version.checked_config,
        files=version_files(version),
        num_parameters=version.num_parameters or 0,
        weight_bytes=version.weight_bytes or 0,
        has_chat_template=bool(version.has_chat_template),
        licence=version.licence,
    )


def memory_fits(*, actor: Actor, config: ModelConfig) -> list[DeviceFit]:
    """Return how a model fits each device at hand, by the planner's arithmetic."""
    require(actor, Permission.MODELS_READ)
    return [DeviceFit(device, tuple(fits(config, [device]))) for device in devices()]


def _models(actor: Actor) -> QuerySet[Model]:
    ready = Q(versions__state=VersionState.READY, versions__deleted_at=None)
    return Model.objects.for_tenant(actor.tenant).annotate(
        num_versions=Count("versions", filter=ready), last_version_at=Max("versions__created_at", filter=ready)
    )


def _versions(actor: Actor) -> QuerySet[ModelVersion]:
    rows = ModelVersion.objects.for_tenant(actor.tenant).select_related("model", "derived_from__model")
    return rows.prefetch_related(Prefetch("files", VersionFile.objects.select_related("artifact")), "aliases")
