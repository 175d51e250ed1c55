"""Where bytes lie: blobs by the digest of their content, and uploads that come in parts. One protocol, two stores.

A blob is named ``sha256/ab/<hex>`` and appears whole or not at all. An upload has a key, ``<version id>/<file name>``,
and lies apart until its parts are one file (*sealed*, which hashes it) and that file has the blob's name (*placed*).
Between the two the tenant's claim on the digest is written down, so whatever lies under a blob's name has an owner.
"""

from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import BinaryIO, Protocol

from django.conf import settings

from controlplane.registry.stores.errors import DigestMismatch as DigestMismatch
from controlplane.registry.stores.errors import PartMissing as PartMissing
from controlplane.registry.stores.errors import StoreError as StoreError
from controlplane.registry.stores.errors import StoreFull as StoreFull
from controlplane.registry.stores.errors import StoreUnavailable as StoreUnavailable
from controlplane.registry.stores.errors import UploadGone as UploadGone
from dataplane.contracts import blob_store
from dataplane.contracts.blob_store import BucketAddress

CHUNK_BYTES = 4 * 1024 * 1024
CHECKSUM_HEADER = "x-amz-checksum-sha256"
"""Carries a part's SHA-256 in base64, with both stores."""
Progress = Callable[[int], None]
"""Told the bytes done so far, after each chunk."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part as it was announced. ``number`` counts from 1; ``sha256`` is hex."""

    number: int
    size_bytes: int
    sha256: str

    @property
    def checksum(self) -> str:
        """The digest as :data:`CHECKSUM_HEADER` carries it."""
        return b64encode(bytes.fromhex(self.sha256)).decode()


@dataclass(frozen=True, slots=True)
class Arrived:
    """A part that lies in the store; ``sha256`` is None where the store cannot say."""

    number: int
    size_bytes: int
    sha256: str | None

    def is_the(self, part: Part) -> bool:
        """Say whether this is ``part``, as far as can be seen without reading it."""
        return (self.number, self.size_bytes) == (part.number, part.size_bytes) and self.sha256 in (None, part.sha256)


@dataclass(frozen=True, slots=True)
class Target:
    """Where a part is sent, and how. ``url`` without a host is ours."""

    method: str
    url: str
    headers: Mapping[str, str]


class Store(Protocol):
    """Blobs and uploads.

    Every call may take as long as a disk or a network does, so none belongs into a transaction but for what the lock of
    a blob decides (:mod:`controlplane.registry.blobs`). Digests are 64 hex characters; anything else
    is a :class:`ValueError`. Each method may raise :class:`StoreUnavailable`, each that writes :class:`StoreFull`.
    """

    def has(self, sha256: str, size_bytes: int) -> bool:
        """Say whether a blob of that digest and size is there. Its bytes are not read: see :meth:`verify`."""

    def put(self, source: BinaryIO, *, sha256: str, size_bytes: int, progress: Progress | None = None) -> None:
        """Store ``source``, read once to its end, as the blob that it must be.

        Raises:
            DigestMismatch: other bytes than promised; nothing is left behind.
        """

    def open(self, sha256: str) -> BinaryIO:
        """Open a blob for reading, once from its begin to its end; the caller closes it.

        Raises:
            StoreError: it is missing.
        """

    def fetch(self, sha256: str, target: Path) -> None:
        """Make the blob's bytes a file at ``target``, which is not there yet and which nobody may write to.

        Raises:
            StoreError: the blob is missing.
            StoreFull: a copy would take the last room of this machine's disk.
            DigestMismatch: what came over a network is not what the name says.
        """

    def verify(self, sha256: str) -> None:
        """Read a blob whole and compare it with its name.

        Raises:
            StoreError: it is missing.
            DigestMismatch: its bytes have changed.
        """

    def delete(self, sha256: str) -> None:
        """Remove a blob; one that is not there is removed already."""

    def begin(self, key: str) -> str:
        """Begin an upload and return its id, which starts with ``key`` and a space."""

    def target(self, upload: str, part: Part, *, expires_s: int) -> Target:
        """Say where ``part`` is to be sent. Nothing is asked of a network."""

    def arrived(self, upload: str) -> Sequence[Arrived]:
        """Return the parts that are there. While one is sent again with other bytes, both may be listed.

        Raises:
            UploadGone: there is no such upload, or it is sealed.
        """

    def seal(self, upload: str, parts: Sequence[Part], progress: Progress | None = None) -> str:
        """Make the parts one file, in the order given, and return its SHA-256. Safe to repeat until it is placed.

        Raises:
            PartMissing: a part is not there.
            DigestMismatch: a part is not what was announced; the message names it.
        """

    def place(self, upload: str, *, sha256: str, size_bytes: int) -> None:
        """Give the sealed file its name as a blob. Safe to repeat.

        Raises:
            UploadGone: there is neither a sealed file nor the blob.
        """

    def discard(self, upload: str) -> None:
        """Remove what there is of an upload; a blob made of it stays. Safe to repeat."""

    def uploads(self) -> Iterator[str]:
        """Yield the ids of all uploads of which something is there."""

    def tidy(self, before: datetime) -> None:
        """Remove what crashed writers left behind earlier than ``before``."""


def key_of(upload: str) -> str:
    """Return the key that an upload was begun with."""
    return upload.partition(" ")[0]


def from_settings() -> Store:
    """Return the store of this installation: ``PAGODA_STORE_URL``, or the folder ``store`` of ``PAGODA_HOME``."""
    return _at(settings.PAGODA_STORE_URL or (settings.PAGODA_HOME / "store").as_uri(), settings.PAGODA_S3_ENDPOINT)


@cache
def _at(url: str, s3_endpoint: str) -> Store:
    address = blob_store.parse(url, s3_endpoint=s3_endpoint)
    if isinstance(address, BucketAddress):
        from controlplane.registry.stores.s3 import S3Store  # noqa: PLC0415 - the client's library is slow to import

        return S3Store(bucket=address.name, prefix=address.prefix, endpoint=address.endpoint)
    from controlplane.registry.stores.local import LocalStore  # noqa: PLC0415 - it needs what is above

    return LocalStore(address)
