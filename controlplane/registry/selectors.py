"""What there is of models and versions, as the actor may see it."""

from django.db.models import Count, Max, Q, QuerySet

from controlplane.registry.models import Model, ModelVersion, VersionState
from tenants.actor import Actor, reading_as, require
from tenants.errors import NotFound
from tenants.roles import Permission


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
    """Return the tenant's versions, newest first, with their model and files loaded."""
    require(actor, Permission.MODELS_READ)
    with reading_as(actor):
        found = _versions(actor)
        if model_id is not None:
            found = found.filter(model_id=model_id)
        return list(found.order_by("model__name", "-number"))


def get_version(*, actor: Actor, version_id: str) -> ModelVersion:
    """Return one version of the tenant, with its model and files loaded.

    Raises:
        NotFound: there is none for this actor.
    """
    require(actor, Permission.MODELS_READ)
    with reading_as(actor):
        found = _versions(actor).filter(pk=version_id).first()
    if found is None:
        raise NotFound("There is no such version.")
    return found


def _models(actor: Actor) -> QuerySet[Model]:
    ready = Q(versions__state=VersionState.READY)
    return Model.objects.for_tenant(actor.tenant).annotate(
        num_versions=Count("versions", filter=ready), last_version_at=Max("versions__created_at", filter=ready)
    )


def _versions(actor: Actor) -> QuerySet[ModelVersion]:
    return ModelVersion.objects.for_tenant(actor.tenant).select_related("model").prefetch_related("files__artifact")
