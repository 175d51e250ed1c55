"""What becomes of versions once they are there: archived, deleted, named by aliases.

A version's row is its lock: whoever changes its state, names it, or puts it into service holds it.
"""

import re

from django.db.models import QuerySet
from django.utils import timezone

from controlplane.registry.holders import holders
from controlplane.registry.models import (
    ALIAS_PATTERN,
    TRANSITIONS,
    Model,
    ModelAlias,
    ModelVersion,
    VersionState,
)
from tenants import audit, outbox
from tenants.actor import Actor, acting_as, require
from tenants.chain import Json
from tenants.errors import Conflict, Invalid, NotFound
from tenants.outbox import Topic
from tenants.roles import Permission

MAX_ALIASES = 32
"""Of a model. Every gateway keeps the aliases of what is served, and looks through a deployment's at each call."""


class InUse(Conflict):
    """Something still depends on the version; ``dependents`` names it in words."""

    code = "has_dependents"

    def __init__(self, message: str, dependents: list[str]) -> None:
        super().__init__(message)
        self.dependents = dependents


def locked(versions: QuerySet[ModelVersion], version_id: str) -> ModelVersion:
    """Return a version that is not deleted, its row locked until the end of the transaction.

    Args:
        versions: whose versions are looked at.
        version_id: which one.

    Raises:
        NotFound: there is none.
    """
    rows = versions.filter(deleted_at=None).select_for_update(of=("self",), no_key=True).select_related("model")
    version = rows.filter(pk=version_id).first()
    if version is None:
        raise NotFound("There is no such version.")
    return version


def move(version: ModelVersion, new: VersionState) -> VersionState:
    """Change the state of a locked version that is saved later, and return the old one.

    Raises:
        Conflict: its state does not lead there; somebody else was first.
    """
    old = VersionState(version.state)
    if new not in TRANSITIONS[old]:
        raise Conflict(f"Version {version.number} of {version.model} is {old.value}, so it cannot become {new.value}.")
    version.state = new
    return old


def archive_version(*, actor: Actor, version_id: str) -> ModelVersion:
    """Take a version out of use: nothing new is made of it, what serves it goes on.

    Raises:
        Forbidden: the actor may not change models.
        NotFound: there is no such version for the actor.
        Conflict: it is not ready.
    """
    require(actor, Permission.MODELS_WRITE)
    with acting_as(actor):
        # Race: archived and deployed or deleted at once. The row's lock puts them in line.
        version = locked(ModelVersion.objects.for_tenant(actor.tenant), version_id)
        old = move(version, VersionState.ARCHIVED)
        version.save(update_fields=["state"])
        audit.record(
            actor=actor, verb="version.archive", target=version,
            before={"state": old.value}, after={"state": version.state},
        )  # fmt: skip
    return version


def delete_version(*, actor: Actor, version_id: str) -> ModelVersion:
    """End a version for good. Its row stays for what refers to it; its bytes go after their last reference.

    One that is being validated is rejected with it: the validation finds that out and stops.

    Raises:
        Forbidden: the actor may not change models.
        NotFound: there is no such version for the actor.
        InUse: a living deployment serves it, or an alias names it.
        Conflict: it is being uploaded.
    """
    require(actor, Permission.MODELS_WRITE)
    with acting_as(actor):
        # Race: deleted and deployed, named, or made ready at once. Each holds this lock; who comes second sees it.
        version = locked(ModelVersion.objects.for_tenant(actor.tenant), version_id)
        if version.state == VersionState.UPLOADING:
            raise Conflict("This version is being uploaded. Abort the upload instead.")
        _require_unused(version)
        before = version.state
        if version.state == VersionState.VALIDATING:
            move(version, VersionState.REJECTED)
        version.deleted_at = timezone.now()
        version.save(update_fields=["state", "deleted_at"])
        audit.record(
            actor=actor, verb="version.delete", target=version,
            before={"state": before}, after={"state": version.state, "deleted": True},
        )  # fmt: skip
    return version


def dependents(version: ModelVersion) -> list[str]:
    """Return what keeps a version from being deleted, in words."""
    return holders(version) + [f"the alias {alias}" for alias in version.aliases.all()]


def set_alias(*, actor: Actor, model_id: str, name: str, version_id: str) -> ModelAlias:
    """Let ``name`` stand for a version of the model from now on, whatever it stood for before.

    Raises:
        Forbidden: the actor may not change models.
        NotFound: the actor has no such model, or the model no such version.
        Invalid: the name is not one.
        Conflict: the version is not ready, or the model has :data:`MAX_ALIASES` others.
    """
    require(actor, Permission.MODELS_WRITE)
    if re.fullmatch(ALIAS_PATTERN, name, re.ASCII) is None:
        reason = "Use 1 to 32 of a-z, 0-9, dot, dash and underscore; a letter first."
        raise Invalid(f"name: {reason}", fields={"name": reason})
    with acting_as(actor):
        model = _locked_model(actor, model_id)
        # Race: the version is deleted or archived meanwhile. Both hold its lock.
        version = locked(ModelVersion.objects.for_tenant(actor.tenant).filter(model=model), version_id)
        if version.state != VersionState.READY:
            raise Conflict(f"Version {version.number} is {version.state}; an alias names a ready one.")
        alias = model.aliases.select_related("version").filter(name=name).first()
        if alias is not None and alias.version_id == version.id:
            return alias
        if alias is None and model.aliases.count() >= MAX_ALIASES:
            raise Conflict(f"{model.name} has {MAX_ALIASES} aliases. Delete one that is not used any more first.")
        before: dict[str, Json] = {"version": alias.version.number} if alias else {}
        alias = alias or ModelAlias(tenant=actor.tenant, model=model, name=name)
        alias.version, alias.moved_at = version, timezone.now()
        alias.save()
        outbox.emit(Topic.VERSION, tenant=actor.tenant, version_id=version.id)
        audit.record(
            actor=actor, verb="alias.set", target=alias,
            before=before, after={"model": model.name, "version": version.number},
        )  # fmt: skip
    return alias


def delete_alias(*, actor: Actor, model_id: str, name: str) -> None:
    """Let ``name`` stand for nothing any more: calls of ``model@name`` get a 404.

    Raises:
        Forbidden: the actor may not change models.
        NotFound: the actor has no such model, or the model no such alias.
    """
    require(actor, Permission.MODELS_WRITE)
    with acting_as(actor):
        model = _locked_model(actor, model_id)
        alias = model.aliases.select_related("version").filter(name=name).first()
        if alias is None:
            raise NotFound(f"{model.name} has no alias {name}.")
        outbox.emit(Topic.VERSION, tenant=actor.tenant, version_id=alias.version_id)
        audit.record(
            actor=actor, verb="alias.delete", target=alias,
            before={"model": model.name, "version": alias.version.number},
        )  # fmt: skip
        alias.delete()


def _require_unused(version: ModelVersion) -> None:
    held_by = dependents(version)
    if held_by:
        raise InUse(
            f"Version {version.number} of {version.model} is in use by {', '.join(held_by)}. "
            "Delete these first, or let them use another version.",
            held_by,
        )


def _locked_model(actor: Actor, model_id: str) -> Model:
    """Lock a model: its aliases change one after the other."""
    model = Model.objects.for_tenant(actor.tenant).select_for_update(no_key=True).filter(pk=model_id).first()
    if model is None:
        raise NotFound("There is no such model.")
    return model
