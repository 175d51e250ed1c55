"""What a tenant keeps here against what it may keep. Announced bytes count before they flow."""

from dataclasses import dataclass

import msgspec
from django.db.models import Count, Sum

from controlplane.registry.models import COMING, Artifact, ModelVersion, UploadFile
from tenants.actor import Actor, reading_as, require
from tenants.errors import Conflict
from tenants.models import Quota, Tenant
from tenants.roles import Permission
from tenants.storage import DEFAULT_STORAGE, StorageLimits


@dataclass(frozen=True, slots=True)
class Storage:
    """What is kept, what open uploads announced included, and what may be; the limits are all set.

    An upload is open until its version is ready or rejected.
    """

    stored_bytes: int
    stored_files: int
    open_uploads: int
    limits: StorageLimits


class StorageLimitReached(Conflict):
    """The tenant may not keep that much."""

    code = "storage_limit"


def get_storage(*, actor: Actor) -> Storage:
    """Return what the actor's tenant keeps.

    Raises:
        Forbidden: the actor may not see models.
    """
    require(actor, Permission.MODELS_READ)
    with reading_as(actor):
        return _storage(actor.tenant)


def claim(tenant: Tenant, *, num_bytes: int, num_files: int) -> None:
    """Admit one more upload of this size in the open transaction, which writes it down.

    Raises:
        StorageLimitReached: it would pass a limit; the message says which, and what is left.
    """
    # Race: uploads of one tenant begun at once. The tenant's row lets them pass one by one, each counting the others.
    Tenant.objects.select_for_update(no_key=True).get(pk=tenant.pk)
    kept = _storage(tenant)
    for what, used, more, limit in (
        ("bytes kept", kept.stored_bytes, num_bytes, kept.limits.stored_bytes),
        ("files kept", kept.stored_files, num_files, kept.limits.stored_files),
        ("uploads at a time", kept.open_uploads, 1, kept.limits.open_uploads),
    ):
        if limit is not None and used + more > limit:
            raise StorageLimitReached(
                f"This upload adds {more:,} to {used:,} {what}, and {limit:,} are allowed. Delete versions or abort "
                "uploads that are not needed, or ask the platform for a higher limit."
            )


def _storage(tenant: Tenant) -> Storage:
    kept = Artifact.objects.for_tenant(tenant).filter(deleted_at=None)
    coming = UploadFile.objects.for_tenant(tenant).filter(sha256=None, version__state__in=COMING)
    sums = [rows.aggregate(size=Sum("size_bytes", default=0), number=Count("pk")) for rows in (kept, coming)]
    # What is being validated counts: else a tenant could line up validations without end before everybody else's.
    underway = ModelVersion.objects.for_tenant(tenant).filter(state__in=COMING).count()
    quota = Quota.objects.for_tenant(tenant).filter(key=None).first()
    own = msgspec.structs.asdict(quota.storage) if quota else {}
    return Storage(
        stored_bytes=sum(part["size"] for part in sums),
        stored_files=sum(part["number"] for part in sums),
        open_uploads=underway,
        limits=msgspec.structs.replace(DEFAULT_STORAGE, **{name: own[name] for name in own if own[name] is not None}),
    )
