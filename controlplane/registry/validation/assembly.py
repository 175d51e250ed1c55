"""The first step of a validation: the parts of an upload become files, the files blobs, the blobs the version's.

Each file's digest is written down before its blob has the name (:mod:`controlplane.registry.blobs`), and a file whose
digest is written down is not put together again.
"""

from collections.abc import Callable, Iterable

from controlplane.registry import blobs, stores
from controlplane.registry.models import UploadFile
from dataplane.contracts import failpoints
from dataplane.contracts.catalog import VersionFile as FileEntry

Record = Callable[[UploadFile], None]
"""Commits a file's digest, and the claim on its bytes, under the job's lease."""


class Incomplete(Exception):
    """A file is not what was announced; ``name`` says which, the message why."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(reason)
        self.name = name


def assemble(files: Iterable[UploadFile], *, store: stores.Store, record: Record, beat: Callable[[], None]) -> None:
    """Make a blob of each file that is not one yet.

    Args:
        files: with their parts loaded.
        store: where the parts lie, and where the blobs will.
        record: see :data:`Record`.
        beat: called now and then while bytes are read.

    Raises:
        Incomplete: a part is missing, or is not what was announced.
        StoreError: the store cannot do it now.
    """
    for file in files:
        if file.sha256 is None:
            file.sha256 = _sealed(file, store, beat)
            record(file)
        failpoints.hit("registry.validating.files")
        if not store.has(file.sha256, file.size_bytes):
            store.place(file.multipart_id, sha256=file.sha256, size_bytes=file.size_bytes)
        store.discard(file.multipart_id)


def _sealed(file: UploadFile, store: stores.Store, beat: Callable[[], None]) -> str:
    parts = [stores.Part(part.number, part.size_bytes, part.sha256) for part in file.parts.all()]
    announced_bytes = sum(part.size_bytes for part in parts)
    if announced_bytes != file.size_bytes:
        raise Incomplete(
            file.name, f"its parts have {announced_bytes} bytes together, announced were {file.size_bytes}"
        )
    try:
        return store.seal(file.multipart_id, parts, lambda _: beat())
    except (stores.PartMissing, stores.DigestMismatch) as error:
        raise Incomplete(file.name, str(error)) from error


def claim(file: UploadFile) -> None:
    """Write down a file's digest and the tenant's claim on the bytes, in the open transaction."""
    assert file.sha256 is not None  # noqa: S101 - it has just been computed
    UploadFile.objects.filter(pk=file.pk).update(sha256=file.sha256)
    entry = FileEntry(name=file.name, sha256=file.sha256, size_bytes=file.size_bytes)
    blobs.announce(tenant_id=file.tenant_id, files=[entry])


def file_entries(files: Iterable[UploadFile]) -> tuple[FileEntry, ...]:
    """Return the files by name, as verdicts and catalogs list them."""
    listed = [FileEntry(name=file.name, sha256=file.sha256 or "", size_bytes=file.size_bytes) for file in files]
    return tuple(sorted(listed, key=lambda file: file.name))
