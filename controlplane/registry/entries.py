"""A version as the data plane knows it: what it fetches, keeps and loads."""

from controlplane.registry.models import ModelVersion
from dataplane.contracts.catalog import VersionEntry, VersionFile


def version_entry(version: ModelVersion) -> VersionEntry:
    """Return the entry of a version whose content is known.

    Raises:
        ValueError: its digest or its context is not known yet.
    """
    if version.digest is None or version.context_tokens is None:
        raise ValueError(f"version {version.id} is {version.state} and cannot be loaded")
    return VersionEntry(
        id=version.id,
        tenant_id=version.tenant_id,
        model=version.model.name,
        number=version.number,
        digest=version.digest,
        files=version_files(version),
        context_tokens=version.context_tokens,
        created_at_ms=int(version.created_at.timestamp() * 1000),
        aliases=tuple(alias.name for alias in version.aliases.all()),
    )


def version_files(version: ModelVersion) -> tuple[VersionFile, ...]:
    """Return the files of a version by name, each with its content address."""
    listed = [
        VersionFile(name=file.name, sha256=file.artifact.sha256, size_bytes=file.artifact.size_bytes)
        for file in version.files.all()
    ]
    return tuple(sorted(listed, key=lambda file: file.name))
