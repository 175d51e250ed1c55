"""How uploads end that become no version: given up, and what is left of them in the store removed; at last by a job."""

from collections.abc import Sequence
from datetime import timedelta
from itertools import islice

import structlog
from django.db.models import QuerySet
from django.utils import timezone

from controlplane.jobs import services as jobs
from controlplane.jobs.services import Lease
from controlplane.registry import stores
from controlplane.registry.lifecycle import locked, move
from controlplane.registry.models import (
    COMING,
    ModelVersion,
    StepState,
    UploadFile,
    UploadPart,
    VersionCheck,
    VersionState,
)
from controlplane.registry.stores import Store, StoreError
from tenants import audit
from tenants.actor import Actor, acting_as
from tenants.errors import NotFound

LIFETIME = timedelta(hours=24)
"""An upload of which nothing has been heard for so long is given up."""
_BATCH = 50
_ABANDONED = timedelta(days=1)
_log = structlog.get_logger(__name__)


def give_up(actor: Actor, version: ModelVersion, *, reason: str) -> None:
    """Give a locked upload up in the open transaction; :func:`discard` removes its bytes after that."""
    old = move(version, VersionState.REJECTED)
    version.expires_at = None
    version.save(update_fields=["state", "expires_at"])
    UploadPart.objects.filter(file__version=version).delete()
    now = timezone.now()
    VersionCheck.objects.create(
        tenant_id=version.tenant_id, version=version, position=0, name="upload", title="Every part arrives",
        state=StepState.FAILED, reason=reason, mend="Upload the files again.", started_at=version.created_at,
        ended_at=now,
    )  # fmt: skip
    audit.record(
        actor=actor, verb="upload.abort", target=version, tenant=version.tenant,
        before={"state": old.value}, after={"state": version.state, "reason": reason},
    )  # fmt: skip


def discard(files: Sequence[UploadFile], store: Store) -> None:
    """Remove what an ended upload left in the store; what cannot be removed now is swept later."""
    for file in files:
        try:
            store.discard(file.multipart_id or f"{file.version_id}/{file.name} ")
        except (StoreError, OSError) as error:
            _log.warning("upload not discarded", version_id=file.version_id, file=file.name, reason=str(error))


def sweep_uploads(lease: Lease) -> None:
    """Give up expired uploads, then remove the bytes of all that are neither coming nor being validated."""
    while _give_up_expired(lease):
        pass
    store = stores.from_settings()
    lying = store.uploads()
    while batch := list(islice(lying, _BATCH)):
        _discard_ended(lease, batch, store)
    store.tidy(timezone.now() - _ABANDONED)


def _give_up_expired(lease: Lease) -> bool:
    """End a batch of expired uploads; say whether there may be more."""
    with acting_as(lease.actor):
        batch = list(_expired().values_list("pk", flat=True)[:_BATCH])
    for version_id in batch:
        with jobs.advancing(lease):
            # Race: a part announced, or the upload completed, this moment. Under the lock it is seen to live on.
            try:
                version = locked(_expired(), version_id)
            except NotFound:
                continue
            hours = LIFETIME // timedelta(hours=1)
            give_up(lease.actor, version, reason=f"Nothing was heard of the upload for {hours} hours.")
    return len(batch) == _BATCH


def _discard_ended(lease: Lease, batch: list[str], store: Store) -> None:
    owners = {upload: stores.key_of(upload).partition("/")[0] for upload in batch}
    with jobs.advancing(lease):
        needed = ModelVersion.objects.filter(pk__in=set(owners.values()), state__in=COMING)
        living = set(needed.values_list("pk", flat=True))
    # Race: an upload that begins now has its row before anything of it lies in the store, so it was seen above.
    for upload, version_id in owners.items():
        if version_id not in living:
            store.discard(upload)


def _expired() -> QuerySet[ModelVersion]:
    """Return the uploads whose time is over, oldest first."""
    expired = ModelVersion.objects.filter(state=VersionState.UPLOADING, expires_at__lte=timezone.now())
    return expired.order_by("expires_at")
