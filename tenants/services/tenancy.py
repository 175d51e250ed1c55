"""Tenants and people come, and tenants are suspended."""

from allauth.account.models import EmailAddress
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.utils import timezone

from tenants import audit, inputs, outbox
from tenants.actor import Actor, acting_as, person_actor, require
from tenants.chain import Json
from tenants.conflicts import refusing
from tenants.errors import Conflict, Invalid, NotFound
from tenants.models import Member, Quota, Tenant, User
from tenants.outbox import Topic
from tenants.roles import Permission, Role

_NAME_MAX_CHARS = 100
_REASON_MAX_CHARS = 300


def create_user(*, actor: Actor, email: str, password: str, name: str = "", is_platform_admin: bool = False) -> User:
    """Make a person whose address counts as verified: an operator vouches for it.

    Raises:
        Forbidden: the actor does not run the platform.
        Invalid: the address or the password is refused.
        Conflict: the address has an account.
    """
    require(actor, Permission.PLATFORM_TENANTS)
    address = inputs.email_address(email)
    user = User(email=address, is_platform_admin=is_platform_admin)
    if name:
        user.name = inputs.one_line(name, field="name", max_chars=_NAME_MAX_CHARS)
    try:
        validate_password(password, user)
    except ValidationError as error:
        reason = " ".join(error.messages)
        raise Invalid(f"The password is refused. {reason}", fields={"password": reason}) from error
    user.set_password(password)
    with refusing("tenants_user_email_key", f"{address} has an account already."), acting_as(actor):
        user.save()
        EmailAddress.objects.create(user=user, email=address, verified=True, primary=True)
        audit.record(actor=actor, verb="user.create", target=user, after={"is_platform_admin": is_platform_admin})
    return user


def rename_user(*, user: User, name: str) -> User:
    """Let somebody change how others see its name; empty is none.

    Raises:
        Invalid: the name is refused.
    """
    chosen = inputs.one_line(name, field="name", max_chars=_NAME_MAX_CHARS) if name.strip() else ""
    actor = person_actor(user)
    with acting_as(actor):
        person = User.objects.select_for_update(no_key=True).get(pk=user.pk)
        before, person.name = person.name, chosen
        person.save(update_fields=["name"])
        audit.record(actor=actor, verb="user.rename", target=person, before={"name": before}, after={"name": chosen})
    return person


def create_tenant(*, actor: Actor, slug: str, name: str, owner: User) -> Tenant:
    """Make a tenant and its first owner, without limits of its own.

    Raises:
        Forbidden: the actor does not run the platform.
        Invalid: the slug or the name is refused.
        Conflict: the slug is taken.
    """
    require(actor, Permission.PLATFORM_TENANTS)
    tenant = Tenant(slug=inputs.slug(slug), name=inputs.one_line(name, field="name", max_chars=_NAME_MAX_CHARS))
    with refusing("tenants_tenant_slug_key", f"A tenant called {slug} exists already."), acting_as(actor):
        tenant.save()
        Quota.objects.create(tenant=tenant)
        Member.objects.create(tenant=tenant, user=owner, role=Role.OWNER.value)
        outbox.emit(Topic.TENANT, tenant=tenant, tenant_id=tenant.id)
        after: dict[str, Json] = {"slug": tenant.slug, "name": tenant.name, "owner": owner.email}
        audit.record(actor=actor, verb="tenant.create", target=tenant, tenant=tenant, after=after)
    return tenant


def suspend_tenant(*, actor: Actor, tenant_id: str, reason: str) -> Tenant:
    """Stop serving a tenant's keys; its running streams are cut within seconds. Its pages stay.

    Raises:
        Forbidden: the actor does not run the platform.
        NotFound: there is no such tenant.
        Conflict: it is suspended already.
    """
    require(actor, Permission.PLATFORM_TENANTS)
    why = inputs.one_line(reason, field="reason", max_chars=_REASON_MAX_CHARS)
    with acting_as(actor):
        tenant = _locked(tenant_id)
        if not tenant.active:
            raise Conflict(f"{tenant.slug} is suspended already: {tenant.suspension_reason}")
        tenant.suspended_at, tenant.suspension_reason = timezone.now(), why
        tenant.save(update_fields=["suspended_at", "suspension_reason"])
        outbox.emit(Topic.TENANT, tenant=tenant, tenant_id=tenant.id)
        audit.record(
            actor=actor, verb="tenant.suspend", target=tenant, tenant=tenant,
            before={"active": True}, after={"active": False, "reason": why},
        )  # fmt: skip
    return tenant


def resume_tenant(*, actor: Actor, tenant_id: str) -> Tenant:
    """Serve a suspended tenant again.

    Raises:
        Forbidden: the actor does not run the platform.
        NotFound: there is no such tenant.
        Conflict: it is not suspended.
    """
    require(actor, Permission.PLATFORM_TENANTS)
    with acting_as(actor):
        tenant = _locked(tenant_id)
        if tenant.active:
            raise Conflict(f"{tenant.slug} is not suspended.")
        reason = tenant.suspension_reason
        tenant.suspended_at, tenant.suspension_reason = None, ""
        tenant.save(update_fields=["suspended_at", "suspension_reason"])
        outbox.emit(Topic.TENANT, tenant=tenant, tenant_id=tenant.id)
        audit.record(
            actor=actor, verb="tenant.resume", target=tenant, tenant=tenant,
            before={"active": False, "reason": reason}, after={"active": True},
        )  # fmt: skip
    return tenant


def _locked(tenant_id: str) -> Tenant:
    # Race: two admins suspend and resume at once; the row's lock puts them in line, the second sees the first's state.
    tenant = Tenant.objects.select_for_update(no_key=True).filter(pk=tenant_id).first()
    if tenant is None:
        raise NotFound("There is no such tenant.")
    return tenant
