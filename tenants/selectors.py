"""What may be read, by whom. Each returns plain lists, read within the actor's transaction."""

from collections.abc import Collection
from datetime import datetime

from django.db.models import F, Q
from django.utils import timezone

from dataplane.contracts.catalog import KeyEntry, KeySecret, Limits, TenantEntry
from tenants.actor import Actor, looking_up, reading_as, require
from tenants.errors import NotFound
from tenants.models import ApiKey, AuditEvent, AuditHead, Invitation, KeyKind, Member, Quota, Tenant, User
from tenants.roles import Permission
from tenants.serving import ServingLimits

AUDIT_PAGE_ROWS = 50


def memberships(user: User) -> list[Member]:
    """Return the places of ``user``, with their tenants, by slug."""
    with looking_up(user_id=user.id):
        return list(Member.objects.select_related("tenant").filter(user=user).order_by("tenant__slug"))


def list_members(*, actor: Actor) -> list[Member]:
    """Return the members of the actor's tenant, with their users."""
    require(actor, Permission.MEMBERS_READ)
    with reading_as(actor):
        return list(Member.objects.for_tenant(actor.tenant).select_related("user").order_by("user__email"))


def get_member(*, actor: Actor, user_id: str) -> Member:
    """Return one member of the actor's tenant, with its user.

    Raises:
        NotFound: there is none.
    """
    require(actor, Permission.MEMBERS_READ)
    with reading_as(actor):
        member = Member.objects.for_tenant(actor.tenant).select_related("user").filter(user_id=user_id).first()
    if member is None:
        raise NotFound("There is no such member.")
    return member


def list_invitations(*, actor: Actor) -> list[Invitation]:
    """Return the invitations that are neither accepted nor revoked, newest first."""
    require(actor, Permission.MEMBERS_READ)
    with reading_as(actor):
        invitations = Invitation.objects.for_tenant(actor.tenant).filter(accepted_at=None, revoked_at=None)
        return list(invitations.order_by("-created_at"))


def find_invitation(*, token: str) -> Invitation:
    """Return the invitation whose link has ``token``, with its tenant: the link is all that a visitor needs.

    It may have been accepted or revoked; ``is_open`` says so.

    Raises:
        NotFound: there is none, or it has run out.
    """
    digest = Invitation.digest_of(token)
    with looking_up(lookup=digest):
        found = Invitation.objects.select_related("tenant", "invited_by").filter(token_digest=digest).first()
    if found is None or found.expires_at <= timezone.now():
        raise NotFound("This invitation does not exist or has run out. Ask for a new one.")
    return found


def list_keys(*, actor: Actor) -> list[ApiKey]:
    """Return the keys of the actor's tenant, revoked ones included, newest first; with makers, limits and secrets."""
    require(actor, Permission.KEYS_READ)
    with reading_as(actor):
        keys = ApiKey.objects.for_tenant(actor.tenant).filter(kind=KeyKind.NORMAL)
        return list(keys.select_related("created_by", "quota").prefetch_related("secrets").order_by("-created_at"))


def get_key(*, actor: Actor, key_id: str) -> ApiKey:
    """Return one key, with its maker, limits and secrets.

    Raises:
        NotFound: there is no such key.
    """
    require(actor, Permission.KEYS_READ)
    with reading_as(actor):
        keys = ApiKey.objects.for_tenant(actor.tenant).filter(kind=KeyKind.NORMAL, pk=key_id)
        key = keys.select_related("created_by", "quota").prefetch_related("secrets").first()
    if key is None:
        raise NotFound("There is no such key.")
    return key


def key_labels(*, actor: Actor, key_ids: Collection[str] | None = None) -> dict[str, tuple[str, str]]:
    """Return (name, prefix) of keys by id, newest first; the playground's own have no prefix to recognise.

    For the platform they are every tenant's.

    Args:
        actor: whose keys.
        key_ids: only these; None is all.
    """
    require(actor, Permission.KEYS_READ)
    with reading_as(actor):
        keys = ApiKey.objects.all() if actor.is_platform else ApiKey.objects.for_tenant(actor.tenant)
        if key_ids is not None:
            keys = keys.filter(pk__in=key_ids)
        return {
            key.pk: (key.name, key.prefix if key.kind == KeyKind.NORMAL else "") for key in keys.order_by("-created_at")
        }


def tenant_limits(*, actor: Actor) -> Limits:
    """Return the limits of the actor's tenant."""
    require(actor, Permission.QUOTA_READ)
    with reading_as(actor):
        quota = Quota.objects.for_tenant(actor.tenant).filter(key=None).first()
    return quota.limits if quota else Limits()


def tenant_serving(*, actor: Actor, tenant_id: str) -> ServingLimits:
    """Return the limits that a tenant has of its own for what it has served: for those who run the platform."""
    require(actor, Permission.PLATFORM_QUOTAS)
    with reading_as(actor):
        quota = Quota.objects.filter(tenant_id=tenant_id, key=None).first()
    return quota.serving if quota else ServingLimits()


def list_tenants(*, actor: Actor) -> list[tuple[Tenant, Limits]]:
    """Return every tenant with its limits, by slug: for those who run the platform."""
    require(actor, Permission.PLATFORM_TENANTS)
    with reading_as(actor):
        quotas = {quota.tenant_id: quota.limits for quota in Quota.objects.filter(key=None)}
        return [(tenant, quotas.get(tenant.id, Limits())) for tenant in Tenant.objects.order_by("slug")]


def get_tenant(*, actor: Actor, slug: str) -> Tenant:
    """Return the tenant called ``slug``: for those who run the platform.

    Raises:
        NotFound: there is no such tenant.
    """
    require(actor, Permission.PLATFORM_TENANTS)
    with reading_as(actor):
        tenant = Tenant.objects.filter(slug=slug).first()
    if tenant is None:
        raise NotFound(f"There is no tenant {slug!r}.")
    return tenant


def list_audit(
    *,
    actor: Actor,
    before_sequence: int | None = None,
    since: datetime | None = None,
    verbs: Collection[str] | None = None,
    actor_label: str = "",
    target: str = "",
) -> list[AuditEvent]:
    """Return a page of the actor's chain, newest first: the tenant's, or the platform's for a platform actor.

    Args:
        actor: whose chain.
        before_sequence: where the page before ended.
        since: nothing older than this.
        verbs: only of these; what stands before a dot names all that it begins, such as ``key.``.
        actor_label: only what somebody did whose label has this in it.
        target: only what was done to this id, or to something whose label has this in it.
    """
    require(actor, Permission.AUDIT_READ if actor.home is not None else Permission.PLATFORM_AUDIT)
    with reading_as(actor):
        events = AuditEvent.objects.filter(_wanted(since, verbs, actor_label, target), tenant=actor.home)
        if before_sequence is not None:
            events = events.filter(sequence__lt=before_sequence)
        return list(events.order_by("-sequence")[:AUDIT_PAGE_ROWS])


def list_every_audit(
    *,
    actor: Actor,
    before: str | None = None,
    slug: str | None = None,
    since: datetime | None = None,
    verbs: Collection[str] | None = None,
    actor_label: str = "",
    target: str = "",
) -> list[AuditEvent]:
    """Return a page of all chains together, newest first, each row with its tenant: for those who run the platform.

    Args:
        actor: who reads.
        before: the id of the last row of the page before: ids sort by the time they were minted.
        slug: only this tenant's chain; empty is the platform's own, None is all.
        since: as of :func:`list_audit`.
        verbs: likewise.
        actor_label: likewise.
        target: likewise.
    """
    require(actor, Permission.PLATFORM_AUDIT)
    with reading_as(actor):
        events = AuditEvent.objects.filter(_wanted(since, verbs, actor_label, target)).select_related("tenant")
        if slug is not None:
            events = events.filter(tenant__slug=slug) if slug else events.filter(tenant=None)
        if before is not None:
            events = events.filter(pk__lt=before)
        return list(events.order_by("-pk")[:AUDIT_PAGE_ROWS])


def _wanted(since: datetime | None, verbs: Collection[str] | None, actor_label: str, target: str) -> Q:
    wanted = Q()
    for verb in verbs or ():
        wanted |= Q(verb__startswith=verb) if verb.endswith(".") else Q(verb=verb)
    if since is not None:
        wanted &= Q(at__gte=since)
    if actor_label:
        wanted &= Q(actor_label__icontains=actor_label)
    if target:
        wanted &= Q(target_id=target) | Q(target_label__icontains=target)
    return wanted


def list_chains(*, actor: Actor) -> list[AuditHead]:
    """Return the heads of the chains that the actor reads, with their tenants: the tenant's one, or all by slug."""
    require(actor, Permission.AUDIT_READ if actor.home is not None else Permission.PLATFORM_AUDIT)
    with reading_as(actor):
        heads = AuditHead.objects.all() if actor.is_platform else AuditHead.objects.for_tenant(actor.tenant)
        return list(heads.select_related("tenant").order_by(F("tenant__slug").asc(nulls_first=True)))


def catalog_tenants(*, actor: Actor) -> dict[str, TenantEntry]:
    """Return every tenant as the data plane sees it, by id."""
    return {
        tenant.id: TenantEntry(id=tenant.id, name=tenant.slug, active=tenant.active, limits=limits)
        for tenant, limits in list_tenants(actor=actor)
    }


def catalog_keys(*, actor: Actor) -> dict[str, KeyEntry]:
    """Return every key that is not revoked, by its lookup part. What ends later carries its end; readers judge it."""
    require(actor, Permission.PLATFORM_TENANTS)
    with reading_as(actor):
        keys = ApiKey.objects.filter(revoked_at=None).select_related("quota").prefetch_related("secrets")
        return {key.lookup: _key_entry(key) for key in keys}


def _key_entry(key: ApiKey) -> KeyEntry:
    quota: Quota | None = getattr(key, "quota", None)
    return KeyEntry(
        id=key.id,
        tenant_id=key.tenant_id,
        secrets=tuple(
            KeySecret(
                pepper_id=secret.pepper_id,
                digest=secret.digest,
                expires_at_ms=int(secret.expires_at.timestamp() * 1000) if secret.expires_at else None,
            )
            for secret in sorted(key.secrets.all(), key=lambda secret: secret.pk)
        ),
        scopes=tuple(key.scopes),
        limits=quota.limits if quota else Limits(),
        deployment_ids=None if key.deployment_ids is None else tuple(key.deployment_ids),
        expires_at_ms=int(key.expires_at.timestamp() * 1000) if key.expires_at else None,
    )
