"""The periodic job that gives up uploads of which nothing is heard, and clears the store of what ended ones left."""

from datetime import timedelta
from itertools import islice

from django.utils import timezone

from controlplane.jobs import services as jobs
from controlplane.jobs.services import Lease
from controlplane.registry import stores, uploads
from controlplane.registry.lifecycle import locked
from controlplane.registry.models import COMING, ModelVersion
from controlplane.registry.stores import Store
from tenants.actor import acting_as
from tenants.errors import NotFound

_BATCH = 50
_ABANDONED = timedelta(days=1)


def sweep_uploads(lease: Lease) -> None:
    """Give up expired uploads, then remove the bytes of all that are neither coming nor being validated."""
    while _give_up(lease):
        pass
    store = stores.from_settings()
    lying = store.uploads()
    while batch := list(islice(lying, _BATCH)):
        _discard(lease, batch, store)
    store.tidy(timezone.now() - _ABANDONED)


def _give_up(lease: Lease) -> bool:
    """End a batch of expired uploads; say whether there may be more."""
    with acting_as(lease.actor):
        batch = list(uploads.expired(timezone.now()).values_list("pk", flat=True)[:_BATCH])
    for version_id in batch:
        with jobs.advancing(lease):
            # Race: a part announced, or the upload completed, this moment. Under the lock it is seen to live on.
            try:
                version = locked(uploads.expired(timezone.now()), version_id)
            except NotFound:
                continue
            hours = uploads.LIFETIME // timedelta(hours=1)
            uploads.end(lease.actor, version, reason=f"Nothing was heard of the upload for {hours} hours.")
    return len(batch) == _BATCH


def _discard(lease: Lease, batch: list[str], store: Store) -> None:
    owners = {upload: stores.key_of(upload).partition("/")[0] for upload in batch}
    with jobs.advancing(lease):
        needed = ModelVersion.objects.filter(pk__in=set(owners.values()), state__in=COMING)
        living = set(needed.values_list("pk", flat=True))
    # Race: an upload that begins now has its row before anything of it lies in the store, so it was seen above.
    for upload, version_id in owners.items():
        if version_id not in living:
            store.discard(upload)
