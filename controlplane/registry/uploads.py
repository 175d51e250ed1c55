"""Uploads: a version from its announcement until its parts are all there, shaped like the multipart uploads of S3.

Who uploads begins with the names and sizes of all files, asks for the address of one part after another, sends the
parts there, and completes. The store knows which parts have arrived, so after any interruption one asks for the upload
and sends what is missing. A store is never asked within a transaction.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

import structlog
from django.conf import settings
from django.db.models import Max, QuerySet
from django.utils import timezone

from controlplane.registry import storage, stores
from controlplane.registry.lifecycle import locked, move
from controlplane.registry.models import (
    NAME_PATTERN,
    Model,
    ModelVersion,
    UploadFile,
    UploadPart,
    VersionState,
)
from controlplane.registry.parts import FilePlan, check_files, in_words, num_parts, part_bytes_for, size_of_part
from controlplane.registry.stores import Part, Store, StoreError, StoreFull, Target, UploadGone
from controlplane.registry.sweep import LIFETIME, discard, give_up
from controlplane.registry.validation.job import order_validation
from dataplane.contracts.ids import Kind, is_id
from tenants import audit
from tenants.actor import Actor, acting_as, reading_as, require
from tenants.errors import Conflict, Invalid, NotFound, Unavailable
from tenants.inputs import one_line
from tenants.models import Tenant
from tenants.roles import Permission

_RENEWED_BEFORE = LIFETIME - timedelta(minutes=10)
ADDRESS_LIFETIME_S = 3600
_SOURCE = "upload"
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class FileProgress:
    """A file of an upload, in how many parts it comes, and which have arrived."""

    name: str
    size_bytes: int
    parts: int
    arrived: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True)
class Upload:
    """An upload as its client sees it. Once it is not UPLOADING, no part of it is listed."""

    version: ModelVersion
    part_bytes: int
    files: tuple[FileProgress, ...]


class PartsMissing(Invalid):
    """An upload is not complete; ``fields`` says of each file which parts it lacks."""

    code = "parts_missing"


def begin_upload(
    *,
    actor: Actor,
    model: str,
    files: Sequence[FilePlan],
    store: Store,
    derived_from: str | None = None,
    derivation: str = "",
) -> Upload:
    """Announce a new version of a model with all its files.

    Args:
        actor: who uploads.
        model: the model's id, or its name; a model of a new name is made.
        files: what will come.
        store: where to.
        derived_from: the id of the version that this one was made from, such as the one that was quantised.
        derivation: how, in a line.

    Raises:
        Forbidden: the actor may not change models.
        Invalid: a name, a size, or the number of files; each fault is named.
        NotFound: there is no such model or earlier version.
        StorageLimitReached: the tenant may not keep that much.
        Unavailable: the store is away or full; nothing is left of the upload but its number.
    """
    require(actor, Permission.MODELS_WRITE)
    check_files(files)
    if derivation:
        derivation = one_line(derivation, field="derivation", max_chars=200)
    with acting_as(actor):
        size_bytes = sum(file.size_bytes for file in files)
        storage.claim(actor.tenant, num_bytes=size_bytes, num_files=len(files))
        # Race: two uploads to one model. Its lock lets them count one after the other.
        parent = _model(actor.tenant, model)
        version = ModelVersion.objects.create(
            tenant=actor.tenant,
            model=parent,
            number=(parent.versions.aggregate(last=Max("number"))["last"] or 0) + 1,
            state=VersionState.UPLOADING,
            size_bytes=size_bytes,
            source=_SOURCE,
            derived_from=_ancestor(actor.tenant, derived_from),
            derivation=derivation,
            created_by=actor.label,
            expires_at=timezone.now() + LIFETIME,
        )
        part_bytes = part_bytes_for(files, settings.PAGODA_UPLOAD_PART_BYTES)
        rows = UploadFile.objects.bulk_create(
            UploadFile(tenant=actor.tenant, version=version, part_bytes=part_bytes, **file._asdict()) for file in files
        )
        audit.record(
            actor=actor, verb="upload.begin", target=version,
            after={"model": parent.name, "number": version.number, "files": len(files), "size_bytes": size_bytes},
        )  # fmt: skip
    _begin_at_store(actor, version, rows, store)
    return Upload(version, part_bytes, tuple(_progress(file) for file in rows))


def get_upload(*, actor: Actor, version_id: str, store: Store) -> Upload:
    """Return an upload with the parts that have arrived, so that the others can be sent.

    Raises:
        Forbidden: the actor may not see models.
        NotFound: the actor has no such upload.
        Unavailable: the store is away.
    """
    require(actor, Permission.MODELS_READ)
    version, files = _read(actor, version_id)
    open_ = version.state == VersionState.UPLOADING
    arrived = _arrived(files, store) if open_ else {}
    return Upload(version, files[0].part_bytes, tuple(_progress(file, arrived.get(file.pk, ())) for file in files))


def announce_part(
    *, actor: Actor, version_id: str, file: str, number: int, size_bytes: int, sha256: str, store: Store
) -> Target:
    """Write down what a part must be, and return where to send it. Safe to repeat, also with other bytes.

    Raises:
        Forbidden: the actor may not change models.
        NotFound: the actor has no such upload.
        Conflict: the upload has ended, or is still being begun.
        Invalid: the upload has no such file or part, the size is not the part's, or the digest is none.
    """
    require(actor, Permission.MODELS_WRITE)
    with acting_as(actor):
        # Race: completed or aborted meanwhile. All hold the version's lock, so what is complete gets no other digest.
        version = _open(locked(ModelVersion.objects.for_tenant(actor.tenant), version_id))
        row = version.upload_files.filter(name=file).first()
        if row is None:
            raise Invalid(f"{file!r} is not a file of this upload.", fields={"file": "not announced"})
        _check_part(row, number, size_bytes, sha256)
        if not row.multipart_id:
            raise Conflict("This upload is still being begun. Try again in a second.")
        now = timezone.now()
        if version.expires_at is None or version.expires_at < now + _RENEWED_BEFORE:
            version.expires_at = now + LIFETIME
            version.save(update_fields=["expires_at"])
        UploadPart.objects.update_or_create(
            file=row, number=number, defaults={"tenant": actor.tenant, "size_bytes": size_bytes, "sha256": sha256}
        )
    return store.target(row.multipart_id, Part(number, size_bytes, sha256), expires_s=ADDRESS_LIFETIME_S)


def complete_upload(*, actor: Actor, version_id: str, store: Store) -> ModelVersion:
    """Say that all parts have been sent: the version is VALIDATING from now on.

    Raises:
        Forbidden: the actor may not change models.
        NotFound: the actor has no such upload.
        PartsMissing: parts have not arrived; the upload stays open.
        Conflict: it is complete or given up already, or a part was announced anew meanwhile.
        Unavailable: the store is away.
    """
    require(actor, Permission.MODELS_WRITE)
    version, files = _read(actor, version_id)
    _open(version)
    arrived = _arrived(files, store)
    missing = {file.name: lacking for file in files if (lacking := _lacking(file, arrived.get(file.pk, ())))}
    if missing:
        name, numbers = next(iter(missing.items()))
        more = f" So do {len(missing) - 1} more files." if len(missing) > 1 else ""
        raise PartsMissing(f"{name} lacks {numbers}. Send what is missing, then complete again.{more}", fields=missing)
    with acting_as(actor):
        # Race: aborted or completed at once, or a part announced anew since the store was asked. One holds the lock
        # and finds what it looked at; the others find another state, or other parts.
        version = locked(ModelVersion.objects.for_tenant(actor.tenant), version_id)
        old = move(version, VersionState.VALIDATING)
        if _announced(version.upload_files.all()) != _announced(files):
            raise Conflict("A part was announced anew meanwhile. Wait until it has been sent, then complete again.")
        version.expires_at = None
        version.save(update_fields=["state", "expires_at"])
        order_validation(version)
        audit.record(
            actor=actor, verb="upload.complete", target=version,
            before={"state": old.value}, after={"state": version.state},
        )  # fmt: skip
    return version


def abort_upload(*, actor: Actor, version_id: str, store: Store) -> ModelVersion:
    """Give an upload up; its number is not used again.

    Raises:
        Forbidden: the actor may not change models.
        NotFound: the actor has no such upload.
        Conflict: it has ended already.
    """
    require(actor, Permission.MODELS_WRITE)
    with acting_as(actor):
        # Race: aborted and completed at once. The row's lock decides, the loser gets a Conflict.
        version = _open(locked(ModelVersion.objects.for_tenant(actor.tenant), version_id))
        files = list(version.upload_files.all())
        give_up(actor, version, reason=f"The upload was aborted by {actor.label}.")
    discard(files, store)
    return version


# --- checks


def _open(version: ModelVersion) -> ModelVersion:
    if version.state != VersionState.UPLOADING:
        raise Conflict(f"This upload has ended: version {version.number} is {version.state}.")
    return version


def _check_part(file: UploadFile, number: int, size_bytes: int, sha256: str) -> None:
    count = num_parts(file.size_bytes, file.part_bytes)
    faults: dict[str, str] = {}
    if not 1 <= number <= count:
        faults["number"] = f"{file.name} has the parts 1 to {count}."
    elif size_bytes != (right := size_of_part(file.size_bytes, file.part_bytes, number)):
        faults["size_bytes"] = f"Part {number} of {file.name} has {right} bytes."
    if re.fullmatch(r"[0-9a-f]{64}", sha256) is None:
        faults["sha256"] = "Write the SHA-256 of the part in 64 hex digits, in lower case."
    if faults:
        raise Invalid(" ".join(faults.values()), fields=faults)


def _lacking(file: UploadFile, arrived: Sequence[Part]) -> str:
    there = {part.number for part in arrived}
    numbers = set(range(1, num_parts(file.size_bytes, file.part_bytes) + 1)) - there
    return f"{'part' if len(numbers) == 1 else 'parts'} {in_words(numbers)}" if numbers else ""


# --- rows and store


def _model(tenant: Tenant, name: str) -> Model:
    """Lock a model by its id or name; one of a new name is made."""
    models = Model.objects.for_tenant(tenant).select_for_update(no_key=True)
    if is_id(name, Kind.MODEL):
        model = models.filter(pk=name).first()
        if model is None:
            raise NotFound("There is no such model.")
        return model
    if re.fullmatch(NAME_PATTERN, name, re.ASCII) is None:
        reason = "Use 2 to 64 of a-z, 0-9, dot, dash and underscore, and begin and end with a letter or digit."
        raise Invalid(f"{name!r} cannot be the name of a model. {reason}", fields={"model": reason})
    Model.objects.get_or_create(tenant=tenant, name=name)
    return models.get(name=name)


def _ancestor(tenant: Tenant, version_id: str | None) -> ModelVersion | None:
    if version_id is None:
        return None
    version = ModelVersion.objects.for_tenant(tenant).filter(pk=version_id, deleted_at=None).first()
    if version is None:
        raise NotFound("There is no such version to derive from.")
    return version


def _begin_at_store(actor: Actor, version: ModelVersion, files: Sequence[UploadFile], store: Store) -> None:
    try:
        for file in files:
            file.multipart_id = store.begin(f"{version.id}/{file.name}")
    except StoreError as error:
        with acting_as(actor):
            told = _unavailable(error)
            reason = f"The upload did not begin. {told.message}"
            give_up(actor, locked(ModelVersion.objects.all(), version.id), reason=reason)
        discard(files, store)
        raise told from error
    with acting_as(actor):
        UploadFile.objects.bulk_update(files, ["multipart_id"])


def _read(actor: Actor, version_id: str) -> tuple[ModelVersion, list[UploadFile]]:
    """Return an upload's version and its files with the announced parts.

    Raises:
        NotFound: the actor has no version of this id that was uploaded.
    """
    with reading_as(actor):
        versions = ModelVersion.objects.for_tenant(actor.tenant).select_related("model")
        version = versions.filter(pk=version_id, deleted_at=None).first()
        files = list(UploadFile.objects.filter(version_id=version_id).prefetch_related("parts")) if version else []
    if version is None or not files:
        raise NotFound("There is no such upload.")
    return version, files


def _announced(files: "QuerySet[UploadFile] | Sequence[UploadFile]") -> set[tuple[int, Part]]:
    return {(file.pk, Part(part.number, part.size_bytes, part.sha256)) for file in files for part in file.parts.all()}


def _arrived(files: Sequence[UploadFile], store: Store) -> Mapping[int, tuple[Part, ...]]:
    """Return the announced parts that lie in the store as announced, by file."""
    found: dict[int, tuple[Part, ...]] = {}
    for file in files:
        try:
            lying = store.arrived(file.multipart_id) if file.multipart_id else ()
        except UploadGone:
            lying = ()
        except StoreError as error:
            raise _unavailable(error) from error
        by_number: dict[int, list[stores.Arrived]] = {}
        for part in lying:
            by_number.setdefault(part.number, []).append(part)
        announced = [Part(part.number, part.size_bytes, part.sha256) for part in file.parts.all()]
        found[file.pk] = tuple(
            part for part in announced if any(item.is_the(part) for item in by_number.get(part.number, ()))
        )
    return found


def _progress(file: UploadFile, arrived: Sequence[Part] = ()) -> FileProgress:
    return FileProgress(file.name, file.size_bytes, num_parts(file.size_bytes, file.part_bytes), tuple(arrived))


def _unavailable(error: StoreError) -> Unavailable:
    """Say what is wrong in our words: the store's name folders and hosts, which are the operator's to read."""
    _log.warning("store failed", reason=str(error))
    if isinstance(error, StoreFull):
        return Unavailable(
            "The store of files has no room left. Try again later, or tell the platform.", code="store_full"
        )
    return Unavailable("The store of files does not answer. Try again in a minute.", code="store_unavailable")
