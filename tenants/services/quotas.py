"""Limits of tenants and keys: here is only what they are. They are decided where each is used up."""

import msgspec

from dataplane.contracts.catalog import Limits
from tenants import audit, outbox
from tenants.actor import Actor, acting_as, require
from tenants.errors import Invalid, NotFound
from tenants.models import ApiKey, KeyKind, Quota, Tenant
from tenants.outbox import Topic
from tenants.roles import Permission
from tenants.serving import ServingLimits
from tenants.storage import StorageLimits

LIMIT_MAX = 2**31 - 1
STORED_BYTES_MAX = 2**50


def set_tenant_quota(*, actor: Actor, tenant_id: str, limits: Limits) -> Quota:
    """Replace the limits of a tenant.

    Raises:
        Forbidden: the actor does not run the platform.
        NotFound: there is no such tenant.
        Invalid: a limit is not a positive number.
    """
    require(actor, Permission.PLATFORM_QUOTAS)
    _check(limits)
    with acting_as(actor):
        tenant = Tenant.objects.select_for_update(no_key=True).filter(pk=tenant_id).first()
        if tenant is None:
            raise NotFound("There is no such tenant.")
        return _replace(actor, Quota.objects.get_or_create(tenant=tenant, key=None)[0], tenant, limits)


def set_key_quota(*, actor: Actor, key_id: str, limits: Limits) -> Quota:
    """Replace the limits of a key. The tenant's own limits hold besides.

    Raises:
        Forbidden: the actor may not limit keys.
        NotFound: there is no such key.
        Invalid: a limit is not a positive number.
    """
    require(actor, Permission.KEY_QUOTA_WRITE)
    _check(limits)
    with acting_as(actor):
        keys = ApiKey.objects.for_tenant(actor.tenant).filter(kind=KeyKind.NORMAL)
        key = keys.select_for_update(no_key=True).filter(pk=key_id).first()
        if key is None:
            raise NotFound("There is no such key.")
        return _replace(actor, Quota.objects.get_or_create(tenant=actor.tenant, key=key)[0], actor.tenant, limits)


def set_tenant_storage(*, actor: Actor, tenant_id: str, limits: StorageLimits) -> Quota:
    """Replace the limits of what a tenant may keep. What it keeps already stays.

    Raises:
        Forbidden: the actor does not run the platform.
        NotFound: there is no such tenant.
        Invalid: a limit is not a positive number.
    """
    return _replace_of_tenant(actor, tenant_id, limits, verb="quota.set_storage")


def set_tenant_serving(*, actor: Actor, tenant_id: str, limits: ServingLimits) -> Quota:
    """Replace the limits of what a tenant may have served. What is served already stays.

    Raises:
        Forbidden: the actor does not run the platform.
        NotFound: there is no such tenant.
        Invalid: a limit is not a positive number.
    """
    return _replace_of_tenant(actor, tenant_id, limits, verb="quota.set_serving")


def _replace_of_tenant(actor: Actor, tenant_id: str, limits: StorageLimits | ServingLimits, *, verb: str) -> Quota:
    """Replace limits that the control plane itself decides by: no other process needs to hear of them."""
    require(actor, Permission.PLATFORM_QUOTAS)
    _check(limits)
    with acting_as(actor):
        tenant = Tenant.objects.select_for_update(no_key=True).filter(pk=tenant_id).first()
        if tenant is None:
            raise NotFound("There is no such tenant.")
        quota = Quota.objects.get_or_create(tenant=tenant, key=None)[0]
        after = msgspec.structs.asdict(limits)
        before = {name: getattr(quota, name) for name in after}
        for name, value in after.items():
            setattr(quota, name, value)
        quota.save()
        audit.record(actor=actor, verb=verb, target=quota, tenant=tenant, before=before, after=after)
        return quota


def _check(limits: Limits | StorageLimits | ServingLimits) -> None:
    most = {"stored_bytes": STORED_BYTES_MAX}
    faults = {
        name: f"A limit is a whole number from 1 to {most.get(name, LIMIT_MAX)}, or empty for none of its own."
        for name, value in msgspec.structs.asdict(limits).items()
        if value is not None and not (type(value) is int and 1 <= value <= most.get(name, LIMIT_MAX))
    }
    if faults:
        raise Invalid(f"Refused: {', '.join(faults)}. {next(iter(faults.values()))}", fields=faults)


def _replace(actor: Actor, quota: Quota, tenant: Tenant, limits: Limits) -> Quota:
    before = msgspec.structs.asdict(quota.limits)
    after = msgspec.structs.asdict(limits)
    for name, value in after.items():
        setattr(quota, name, value)
    quota.save()
    outbox.emit(Topic.QUOTA, tenant=tenant, key_id=quota.key_id)
    audit.record(actor=actor, verb="quota.set", target=quota, tenant=tenant, before=before, after=after)
    return quota
