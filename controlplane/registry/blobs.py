"""References to bytes, and the one lock that decides between a new reference and the end of the last one.

A blob is named by its content, so it is the same file for every version and every tenant that has it. Three steps make
a reference: :func:`announce` writes the artifact down, the bytes are stored, :func:`refer` makes the reference where
the bytes are still there. What a crash leaves is an artifact that nothing refers to, and the collector finds it.
"""

from collections.abc import Iterable, Mapping
from typing import Protocol

from django.db import connection
from django.db.models import Exists, OuterRef, QuerySet

from controlplane.registry.models import COMING, HOLDING, Artifact, ModelVersion, UploadFile, VersionFile
from dataplane.contracts.catalog import VersionFile as FileEntry


class Presence(Protocol):
    """What a store must be able to say for a reference to be made."""

    def has(self, sha256: str, size_bytes: int) -> bool:
        """Say whether a blob of that digest and size is there."""


class BlobsGone(Exception):
    """The bytes went between their storing and the reference to them; ``files`` says which. Store them again."""

    def __init__(self, files: Iterable[FileEntry]) -> None:
        self.files = tuple(files)
        super().__init__(f"not in the store any more: {', '.join(file.name for file in self.files)}")


def lock(sha256s: Iterable[str]) -> None:
    """Be the only one until the end of the transaction to make or end references to these blobs.

    They are locked in order, so two callers cannot wait for each other. An advisory lock, since it covers the rows of
    other tenants that do not exist yet.
    """
    with connection.cursor() as cursor:
        for sha256 in sorted(set(sha256s)):
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [int(sha256[:16], 16) - (1 << 63)])


def announce(*, tenant_id: str, files: Iterable[FileEntry]) -> None:
    """Write down that the bytes of ``files`` are about to be stored for a tenant; before they are."""
    sizes = {file.sha256: file.size_bytes for file in files}
    lock(sizes)
    Artifact.objects.bulk_create(
        [
            Artifact(tenant_id=tenant_id, sha256=sha256, size_bytes=size_bytes)
            for sha256, size_bytes in sorted(sizes.items())
        ],
        ignore_conflicts=True,
    )
    Artifact.objects.filter(tenant_id=tenant_id, sha256__in=sizes).update(deleted_at=None)


def refer(*, version: ModelVersion, files: Iterable[FileEntry], store: Presence) -> None:
    """Give ``version`` its files; those that it has already stay. Their bytes were announced and stored.

    Raises:
        BlobsGone: the collector came between; nothing was written.
    """
    wanted = {file.name: file for file in files}
    lock(file.sha256 for file in wanted.values())
    # Race: the collector. It ends the last claim and the blob under the same lock, so what is there now stays.
    gone = [file for file in wanted.values() if not store.has(file.sha256, file.size_bytes)]
    if gone:
        raise BlobsGone(gone)
    artifacts = _artifacts(version.tenant_id, wanted)
    VersionFile.objects.bulk_create(
        [
            VersionFile(tenant_id=version.tenant_id, version=version, artifact=artifacts[file.sha256], name=name)
            for name, file in sorted(wanted.items())
        ],
        ignore_conflicts=True,
    )


def unreferenced(artifacts: QuerySet[Artifact]) -> QuerySet[Artifact]:
    """Return those that no version of their tenant holds on to, or is about to. Only under the lock does that last."""
    held = VersionFile.objects.filter(artifact=OuterRef("pk"), version__state__in=HOLDING, version__deleted_at=None)
    coming = UploadFile.objects.filter(tenant=OuterRef("tenant"), sha256=OuterRef("sha256"), version__state__in=COMING)
    return artifacts.filter(~Exists(held), ~Exists(coming), deleted_at=None)


def _artifacts(tenant_id: str, wanted: Mapping[str, FileEntry]) -> dict[str, Artifact]:
    digests = [file.sha256 for file in wanted.values()]
    rows = Artifact.objects.filter(tenant_id=tenant_id, sha256__in=digests)
    rows.update(deleted_at=None)
    return {artifact.sha256: artifact for artifact in rows}
