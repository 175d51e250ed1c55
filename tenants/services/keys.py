"""Keys are issued, rolled with an overlap, and revoked. The text of a key is returned once and never stored."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Q
from django.utils import timezone

from dataplane.contracts import keys as codec
from dataplane.contracts.ids import Kind, is_id
from tenants import audit, inputs, outbox
from tenants.actor import Actor, acting_as, key_actor, looking_up, require
from tenants.chain import Json
from tenants.errors import Conflict, Forbidden, Invalid, NotFound, Unauthenticated
from tenants.keys import accepts, current_digest, is_live, playground_text
from tenants.models import ApiKey, ApiKeySecret, KeyKind, Quota, Tenant, User
from tenants.outbox import Topic
from tenants.roles import Permission, Scope

DEFAULT_LIFETIME_DAYS = 90
MAX_LIFETIME_DAYS = 365
DEFAULT_OVERLAP = timedelta(hours=24)
MAX_OVERLAP = timedelta(days=30)
MAX_KEYS = 500
"""Keys of a tenant that are not revoked: each is in the catalog, which every gateway holds for all tenants."""
_MAX_DEPLOYMENT_IDS = 100
_NAME_MAX_CHARS = 100


@dataclass(frozen=True, slots=True)
class IssuedKey:
    """A key and its text, which nobody can read again."""

    key: ApiKey
    text: str


def issue_key(
    *,
    actor: Actor,
    name: str,
    scopes: Collection[Scope] = (Scope.INFERENCE,),
    deployment_ids: Collection[str] | None = None,
    lifetime_days: int | None = DEFAULT_LIFETIME_DAYS,
    env: str = "live",
) -> IssuedKey:
    """Make a key for the actor's tenant.

    Args:
        actor: who makes it.
        name: what people call it.
        scopes: what it may be used for, at least one.
        deployment_ids: the deployments it may call; None is every one that the tenant may call.
        lifetime_days: 1 to 365; None never ends.
        env: one of ``live`` and ``test``, written into the key's text.

    Raises:
        Forbidden: the actor may not make keys.
        Invalid: an argument is refused.
        Conflict: the tenant has as many keys as it may.
    """
    require(actor, Permission.KEYS_WRITE)
    label = inputs.one_line(name, field="name", max_chars=_NAME_MAX_CHARS)
    _check_key_input(scopes, deployment_ids, lifetime_days, env)
    minted = codec.mint(env)
    with acting_as(actor):
        # Keys made at the same moment may pass together; what counts is that their number ends somewhere.
        if ApiKey.objects.for_tenant(actor.tenant).filter(revoked_at=None).count() >= MAX_KEYS:
            raise Conflict(f"A tenant has at most {MAX_KEYS} keys. Revoke those that nobody uses any more.")
        key = ApiKey.objects.create(
            tenant=actor.tenant,
            name=label,
            env=env,
            lookup=minted.lookup,
            scopes=sorted(scope.value for scope in set(scopes)),
            deployment_ids=None if deployment_ids is None else sorted(set(deployment_ids)),
            created_by=actor.user,
            expires_at=None if lifetime_days is None else timezone.now() + timedelta(days=lifetime_days),
        )
        Quota.objects.create(tenant=actor.tenant, key=key)
        _store_secret(key, minted.text)
        _announce(key)
        audit.record(actor=actor, verb="key.issue", target=key, after=_described(key))
    return IssuedKey(key, minted.text)


def roll_key(*, actor: Actor, key_id: str, overlap: timedelta = DEFAULT_OVERLAP) -> IssuedKey:
    """Give a key a new secret; the old one is accepted for ``overlap`` longer. Id, limits and history stay.

    A key that may change deployments acts for the person who made it, who then approves no rollout that it made. Nobody
    else is given its secret, and could approve what they had done with it.

    Raises:
        Forbidden: the actor may not make keys, or made not this one, which may change deployments.
        NotFound: there is no such key.
        Invalid: the overlap is negative or longer than 30 days.
        Conflict: the key is revoked or has ended, or is being rolled; an overlap of zero ends every older secret.
    """
    require(actor, Permission.KEYS_WRITE)
    if not timedelta(0) <= overlap <= MAX_OVERLAP:
        reason = f"An overlap lasts from zero to {MAX_OVERLAP.days} days."
        raise Invalid(reason, fields={"overlap": reason})
    now = timezone.now()
    with acting_as(actor):
        key = _locked(actor.tenant, key_id)
        if key.revoked_at is not None or not is_live(key.expires_at, now):
            raise Conflict("This key is revoked or has ended. Make a new one.")
        if Scope.DEPLOYMENTS in key.scopes and key.created_by != actor.user:
            raise Forbidden("A key that may change deployments is rolled by who made it. Revoke it, and make your own.")
        live = [secret for secret in key.secrets.all() if is_live(secret.expires_at, now)]
        if len(live) > 1 and overlap:
            raise Conflict("This key is being rolled: its older secret still counts. Wait, or roll without overlap.")
        ApiKeySecret.objects.filter(pk__in=[secret.pk for secret in live]).update(expires_at=now + overlap)
        minted = codec.mint(key.env, key.lookup)
        _store_secret(key, minted.text)
        _announce(key)
        audit.record(actor=actor, verb="key.roll", target=key, after={"overlap_s": int(overlap.total_seconds())})
    return IssuedKey(key, minted.text)


def revoke_key(*, actor: Actor, key_id: str) -> ApiKey:
    """End a key for good. Gateways hear of it within a second, running streams are cut within five.

    Raises:
        Forbidden: the actor may not make keys.
        NotFound: there is no such key.
        Conflict: it was revoked before.
    """
    require(actor, Permission.KEYS_WRITE)
    with acting_as(actor):
        key = _locked(actor.tenant, key_id)
        if key.revoked_at is not None:
            raise Conflict("This key was revoked already.")
        _revoke(key)
        audit.record(actor=actor, verb="key.revoke", target=key, before=_described(key))
    return key


def playground_key(*, actor: Actor) -> str:
    """Return the key with which the console calls for one member; made when first needed, derived every time.

    Raises:
        Forbidden: the actor may not use the playground.
    """
    require(actor, Permission.PLAYGROUND_USE)
    now = timezone.now()
    with acting_as(actor):
        # Race: two tabs at once. The tenant's row is the lock; the second tab finds the first one's key.
        Tenant.objects.select_for_update(no_key=True).get(pk=actor.tenant.pk)
        mine = ApiKey.objects.for_tenant(actor.tenant).filter(kind=KeyKind.PLAYGROUND, created_by=actor.user)
        key = mine.filter(revoked_at=None).first()
        made = key is None
        if key is None:
            key = ApiKey.objects.create(
                tenant=actor.tenant,
                name=f"Playground of {actor.label}"[:_NAME_MAX_CHARS],
                kind=KeyKind.PLAYGROUND,
                env="live",
                lookup=codec.new_lookup(),
                scopes=[Scope.INFERENCE.value],
                created_by=actor.user,
            )
            Quota.objects.create(tenant=actor.tenant, key=key)
        text = playground_text(key)
        if made or not accepts(text, key.secrets.all(), now):
            # The deriving secret or the pepper was replaced: what was derived before no longer counts.
            key.secrets.filter(expires_at=None).update(expires_at=now)
            _store_secret(key, text)
            _announce(key)
            audit.record(actor=actor, verb="key.playground", target=key, after=_described(key))
    return text


def revoke_playground_key(*, tenant: Tenant, user: User) -> None:
    """End the playground key of somebody who leaves, in the transaction that ends the membership."""
    mine = ApiKey.objects.for_tenant(tenant).filter(kind=KeyKind.PLAYGROUND, created_by=user, revoked_at=None)
    for key in mine.select_for_update(no_key=True):
        _revoke(key)


def authenticate_key(text: str) -> Actor:
    """Return the actor whose key ``text`` is.

    Raises:
        Unauthenticated: it is no key, or one that is revoked, has ended, or belongs to a suspended tenant.
    """
    refusal = Unauthenticated("This API key is not valid. Check it, or make a new one in the console.")
    parsed = codec.parse(text)
    if parsed is None:
        raise refusal
    now = timezone.now()
    with looking_up(lookup=parsed.lookup):
        # One query, whether there is such a key or not: how long a refusal takes does not tell either.
        secrets = list(ApiKeySecret.objects.select_related("key__tenant").filter(key__lookup=parsed.lookup))
    if not accepts(parsed.text, secrets, now):
        raise refusal
    key = secrets[0].key
    if key.revoked_at is not None or not is_live(key.expires_at, now) or not key.tenant.active:
        raise refusal
    return key_actor(key)


def note_key_use(*, actor: Actor, used_at: Mapping[str, datetime]) -> None:
    """Move the keys' ``last_used_at`` forward, never back; for the ingestion of usage, which leaves no audit row."""
    with acting_as(actor):
        for key_id, at in sorted(used_at.items()):
            older = Q(last_used_at=None) | Q(last_used_at__lt=at)
            ApiKey.objects.filter(older, pk=key_id).update(last_used_at=at)


def _check_key_input(
    scopes: Collection[Scope], deployment_ids: Collection[str] | None, lifetime_days: int | None, env: str
) -> None:
    faults: dict[str, str] = {}
    if not scopes:
        faults["scopes"] = f"Choose at least one of {', '.join(Scope)}."
    if deployment_ids is not None and not all(is_id(text, Kind.DEPLOYMENT) for text in deployment_ids):
        faults["deployment_ids"] = "These are ids of deployments (dep_...)."
    elif deployment_ids is not None and len(deployment_ids) > _MAX_DEPLOYMENT_IDS:
        faults["deployment_ids"] = f"A key names at most {_MAX_DEPLOYMENT_IDS} deployments, or none for all."
    if lifetime_days is not None and not 1 <= lifetime_days <= MAX_LIFETIME_DAYS:
        faults["lifetime_days"] = f"A key lives for 1 to {MAX_LIFETIME_DAYS} days, or for ever."
    if env not in codec.ENVIRONMENTS:
        faults["env"] = f"This is one of {', '.join(codec.ENVIRONMENTS)}."
    if faults:
        raise Invalid(" ".join(faults.values()), fields=faults)


def _locked(tenant: Tenant, key_id: str) -> ApiKey:
    # Race: a key rolled and revoked at once. The lock puts them in line; a revoked key is never rolled.
    keys = ApiKey.objects.for_tenant(tenant).filter(kind=KeyKind.NORMAL)
    key = keys.select_for_update(no_key=True).filter(pk=key_id).first()
    if key is None:
        raise NotFound("There is no such key.")
    return key


def _store_secret(key: ApiKey, text: str) -> None:
    pepper_id, digest = current_digest(text)
    ApiKeySecret.objects.create(key=key, tenant_id=key.tenant_id, pepper_id=pepper_id, digest=digest)


def _revoke(key: ApiKey) -> None:
    key.revoked_at = timezone.now()
    key.save(update_fields=["revoked_at"])
    _announce(key)


def _announce(key: ApiKey) -> None:
    outbox.emit(Topic.KEY, tenant=key.tenant, key_id=key.id)


def _described(key: ApiKey) -> dict[str, Json]:
    return {
        "name": key.name,
        "prefix": key.prefix,
        "scopes": list(key.scopes),
        "deployment_ids": None if key.deployment_ids is None else list(key.deployment_ids),
        "expires_at": key.expires_at.isoformat() if key.expires_at else None,
    }
