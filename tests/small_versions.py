"""Ready versions whose few bytes are really in a store: for tests of what becomes of versions and of bytes."""

import io
from itertools import count

import msgspec
from domain import CONFIG, sha256

from controlplane.registry import blobs
from controlplane.registry.models import Model, ModelVersion, VersionState
from controlplane.registry.stores.local import LocalStore
from dataplane.contracts.catalog import VersionFile
from dataplane.contracts.verdict import version_digest
from tenants.actor import acting_as, system_actor
from tenants.models import Tenant

PLATFORM = system_actor("tests")
_numbers = count(1)


def files_of(texts: dict[str, str]) -> tuple[VersionFile, ...]:
    return tuple(VersionFile(name, sha256(text), len(text)) for name, text in sorted(texts.items()))


def ready(tenant: Tenant, texts: dict[str, str], store: LocalStore, *, name: str = "tiny") -> ModelVersion:
    """Store the texts and make a READY version of them, in the steps in which an import does."""
    listed = files_of(texts)
    with acting_as(PLATFORM):
        model, _ = Model.objects.get_or_create(tenant=tenant, name=name)
        blobs.announce(tenant_id=tenant.id, files=listed)
    while True:
        for text in texts.values():
            store.put(io.BytesIO(text.encode()), sha256=sha256(text), size_bytes=len(text))
        try:
            with acting_as(PLATFORM):
                return _record(tenant, model, listed, store)
        except blobs.BlobsGone:
            continue


def _record(tenant: Tenant, model: Model, listed: tuple[VersionFile, ...], store: LocalStore) -> ModelVersion:
    version = ModelVersion.objects.create(
        tenant=tenant, model=model, number=next(_numbers), digest=version_digest(listed), state=VersionState.READY,
        config=msgspec.to_builtins(CONFIG), context_tokens=512, num_parameters=100_000, weight_bytes=1,
        size_bytes=sum(file.size_bytes for file in listed), has_chat_template=True, source="tests", created_by="tests",
    )  # fmt: skip
    blobs.refer(version=version, files=listed, store=store)
    return version
