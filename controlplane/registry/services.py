"""Brings versions in. What a tenant's file says is judged in a child process before anything of it is kept."""

import re
from collections.abc import Callable
from pathlib import Path

import msgspec
from django.conf import settings
from django.db.models import Max

from controlplane.registry import blobs, cards, links
from controlplane.registry.blobs import BlobsGone
from controlplane.registry.inspection import InspectionFailed, inspect
from controlplane.registry.models import (
    NAME_PATTERN,
    WHOLE,
    Artifact,
    Model,
    ModelVersion,
    VersionState,
)
from controlplane.registry.stores import Store, StoreError
from dataplane.contracts.catalog import VersionFile as FileEntry
from dataplane.contracts.verdict import Refusal, Verdict, version_digest
from tenants import audit
from tenants.actor import Actor, acting_as, require
from tenants.errors import Conflict, Invalid, NotFound
from tenants.models import Tenant
from tenants.roles import Permission

_MIB = 1024 * 1024
_SOURCE_CHARS = 300
_STORINGS = 3
"""The collector of unreferenced blobs may come between the storing and the reference once; not again and again."""


class ImportRefused(Invalid):
    """A folder that cannot become a version; ``refusals`` say which file, why, and what to do."""

    code = "import_refused"

    def __init__(self, refusals: tuple[Refusal, ...]) -> None:
        first = refusals[0]
        more = f" And {len(refusals) - 1} more." if len(refusals) > 1 else ""
        super().__init__(
            f"{first.file or 'the folder'}: {first.reason}. {first.mend}{more}",
            fields={refusal.file or "the folder": refusal.reason for refusal in refusals},
        )
        self.refusals = refusals


def import_folder(
    *, actor: Actor, tenant_slug: str, name: str, folder: Path, store: Store, say: Callable[[str], None]
) -> ModelVersion:
    """Make a version of the Hugging Face folder at ``folder`` on this machine, and return it.

    The same content under the same name is the same version, however often it is imported; its missing blobs are
    stored again.

    Args:
        actor: a platform actor.
        tenant_slug: who owns the version.
        name: the model's name; made when new.
        folder: a folder of this machine.
        store: where the bytes go.
        say: told of each step, a line at a time.

    Raises:
        ImportRefused: the folder cannot be served; nothing was kept.
        Invalid: the name is not one, the inspector broke down, or the bytes could not be stored.
        NotFound: there is no such tenant.
        Conflict: this content was archived before.
    """
    require(actor, Permission.PLATFORM_MODELS)
    if re.fullmatch(NAME_PATTERN, name) is None:
        raise Invalid(
            f"{name!r} cannot be the name of a model: use 2 to 64 of a-z, 0-9, dot, dash and underscore.",
            fields={"name": "not a name"},
        )
    with acting_as(actor):
        tenant = _tenant(tenant_slug)
        kept = set(Artifact.objects.for_tenant(tenant).filter(deleted_at=None).values_list("sha256", flat=True))
    say(f"inspecting {folder}")
    verdict = _judge(folder)
    say(f"accepted: {verdict.num_parameters / 1e6:,.1f} M parameters, {len(verdict.files)} files")
    with acting_as(actor):
        blobs.announce(tenant_id=tenant.id, files=verdict.files)
    card = cards.to_html(verdict.card.text)
    missing = verdict.files
    for _ in range(_STORINGS):
        for file in missing:
            _store(file, folder, store, already_kept=file.sha256 in kept, say=say)
        try:
            with acting_as(actor):
                return _record(
                    actor=actor,
                    tenant=tenant,
                    name=name,
                    verdict=verdict,
                    card=card,
                    source=str(folder),
                    store=store,
                    say=say,
                )
        except BlobsGone as error:
            missing = error.files
    raise Conflict("The files were deleted each time they had been stored. Import the folder again.")


def _tenant(slug: str) -> Tenant:
    tenant = Tenant.objects.filter(slug=slug).first()
    if tenant is None:
        raise NotFound(f"There is no tenant {slug!r}.")
    return tenant


def _judge(folder: Path) -> Verdict:
    try:
        with links.as_files(folder, settings.PAGODA_HOME) as files:
            verdict = inspect(files)
    except (InspectionFailed, OSError) as error:
        raise Invalid(f"{folder} could not be inspected: {error}.", code="inspection_failed") from error
    if verdict.refusals:
        raise ImportRefused(verdict.refusals)
    return verdict


def _store(file: FileEntry, folder: Path, store: Store, *, already_kept: bool, say: Callable[[str], None]) -> None:
    """Copy one file into the store. A file that only another tenant has is copied in full all the same."""
    if already_kept and store.has(file.sha256, file.size_bytes):
        say(f"{file.name}: already stored")
        return

    def progress(stored_bytes: int) -> None:
        if stored_bytes == file.size_bytes or stored_bytes % (64 * _MIB) == 0:
            say(f"{file.name}: {stored_bytes / _MIB:,.1f} of {file.size_bytes / _MIB:,.1f} MiB stored")

    try:
        with (folder / file.name).open("rb") as source:
            store.put(source, sha256=file.sha256, size_bytes=file.size_bytes, progress=progress)
    except (OSError, StoreError) as error:
        raise Invalid(f"{file.name} could not be stored: {error}.", code="store_failed") from error


def _record(
    *,
    actor: Actor,
    tenant: Tenant,
    name: str,
    verdict: Verdict,
    card: str,
    source: str,
    store: Store,
    say: Callable[[str], None],
) -> ModelVersion:
    """Write the version's rows, or find that they are there. Raises :class:`BlobsGone`."""
    config = verdict.config
    assert config is not None  # noqa: S101 - the inspection has checked it
    digest = version_digest(verdict.files)
    # Race: two imports under one name. Both lock the model, so the second counts on, or finds the first one's version.
    Model.objects.get_or_create(tenant=tenant, name=name)
    model = Model.objects.select_for_update(no_key=True).get(tenant=tenant, name=name)
    version = ModelVersion.objects.filter(model=model, digest=digest, state__in=WHOLE, deleted_at=None).first()
    if version is not None:
        if version.state != VersionState.READY:
            raise Conflict(f"This content is version {version.number} of {name}, which is {version.state}.")
        blobs.refer(version=version, files=verdict.files, store=store)  # one whose bytes were lost is whole again
        say(f"this is version {version.number} of {name} already")
        return version
    number = (model.versions.aggregate(last=Max("number"))["last"] or 0) + 1
    version = ModelVersion.objects.create(
        tenant=tenant,
        model=model,
        number=number,
        digest=digest,
        state=VersionState.READY,
        config=msgspec.to_builtins(config),
        context_tokens=config.context_tokens,
        num_parameters=verdict.num_parameters,
        weight_bytes=verdict.weight_bytes,
        size_bytes=sum(file.size_bytes for file in verdict.files),
        has_chat_template=verdict.has_chat_template,
        card=card,
        licence=verdict.card.license,
        source=source[-_SOURCE_CHARS:],
        created_by=actor.label,
    )
    blobs.refer(version=version, files=verdict.files, store=store)
    audit.record(
        actor=actor, verb="version.import", target=version, tenant=tenant,
        after={"model": name, "number": number, "digest": digest},
    )  # fmt: skip
    say(f"made version {number} of {name}")
    return version
