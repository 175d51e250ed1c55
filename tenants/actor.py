"""Who is acting, and the only door to the tables: a transaction that carries the actor's tenant."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

from asgiref.local import Local
from django.db import connection, transaction

from tenants import rls
from tenants.errors import Forbidden, NotFound
from tenants.models import ApiKey, Member, Tenant, User
from tenants.roles import (
    PLATFORM_ADMIN_PERMISSIONS,
    ROLE_PERMISSIONS,
    SCOPE_PERMISSIONS,
    SYSTEM_PERMISSIONS,
    Permission,
    Role,
    Scope,
)


class ActorKind(StrEnum):
    """What acts."""

    USER = "user"
    KEY = "key"
    PLATFORM_ADMIN = "platform_admin"
    SYSTEM = "system"


@dataclass(frozen=True, slots=True)
class Actor:
    """Who asks, where, and with which permissions. Made by the functions below, never by hand.

    Args:
        kind: what acts.
        id: the public id of the user or key, or the name of the process.
        label: what people call it, copied into audit rows.
        permissions: what it may do.
        home: its tenant; None acts for the platform.
        user: the person, where there is one.
    """

    kind: ActorKind
    id: str
    label: str
    permissions: frozenset[Permission]
    home: Tenant | None = None
    user: User | None = None
    role: Role | None = None

    @property
    def tenant(self) -> Tenant:
        """The actor's tenant.

        Raises:
            NotFound: it acts for the platform, which has no tenant's pages.
        """
        if self.home is None:
            raise NotFound("This actor belongs to no tenant.")
        return self.home

    @property
    def is_platform(self) -> bool:
        """Whether it sees every tenant's rows."""
        return self.kind in (ActorKind.PLATFORM_ADMIN, ActorKind.SYSTEM) and self.home is None

    def may(self, permission: Permission) -> bool:
        """Say whether it may do what ``permission`` names."""
        return permission in self.permissions


def member_actor(user: User, slug: str) -> Actor:
    """Return ``user`` acting in the tenant called ``slug``.

    Raises:
        NotFound: there is no such tenant, or the user is not a member: a stranger cannot tell the two apart.
    """
    with looking_up(user_id=user.id):
        member = Member.objects.select_related("tenant").filter(user=user, tenant__slug=slug).first()
    if member is None or not user.is_active:
        raise NotFound(f"There is no tenant {slug!r} for you.")
    role = Role(member.role)
    return Actor(
        kind=ActorKind.USER,
        id=user.id,
        label=user.email,
        permissions=ROLE_PERMISSIONS[role],
        home=member.tenant,
        user=user,
        role=role,
    )


def invitee_actor(user: User, tenant: Tenant) -> Actor:
    """Return ``user`` on the doorstep of ``tenant``: an invitation was shown, nothing else is permitted."""
    return Actor(kind=ActorKind.USER, id=user.id, label=user.email, permissions=frozenset(), home=tenant, user=user)


def person_actor(user: User) -> Actor:
    """Return ``user`` acting on its own account, which belongs to no tenant: the platform's chain keeps the change."""
    return Actor(kind=ActorKind.USER, id=user.id, label=user.email, permissions=frozenset(), user=user)


def key_actor(key: ApiKey) -> Actor:
    """Return ``key`` acting in its tenant. That the key is live and its secret right was checked before."""
    permissions = frozenset[Permission]().union(*(SCOPE_PERMISSIONS[Scope(scope)] for scope in key.scopes))
    return Actor(kind=ActorKind.KEY, id=key.id, label=key.name, permissions=permissions, home=key.tenant)


def platform_actor(user: User) -> Actor:
    """Return ``user`` acting for the platform.

    Raises:
        NotFound: the user is no platform admin; to others these pages do not exist.
    """
    if not (user.is_platform_admin and user.is_active):
        raise NotFound("There is no such page for you.")
    return Actor(
        kind=ActorKind.PLATFORM_ADMIN,
        id=user.id,
        label=user.email,
        permissions=PLATFORM_ADMIN_PERMISSIONS,
        user=user,
    )


def system_actor(process: str, tenant: Tenant | None = None) -> Actor:
    """Return one of the product's own processes, for the platform or for one tenant."""
    return Actor(kind=ActorKind.SYSTEM, id=process, label=process, permissions=SYSTEM_PERMISSIONS, home=tenant)


def require(actor: Actor, permission: Permission) -> None:
    """Refuse an actor that may not do what ``permission`` names.

    Raises:
        Forbidden: its role or scopes do not allow it.
    """
    if permission not in actor.permissions:
        what = f"As {actor.role.value}, you" if actor.role else f"{actor.label}"
        raise Forbidden(f"{what} may not do this: it needs the permission {permission.value}.")


_open = Local(thread_critical=True)
"""The actor of the transaction that this thread's connection has open."""


@contextmanager
def acting_as(actor: Actor) -> Iterator[None]:
    """Open the actor's transaction: what it reads and writes is its tenant's, and is committed once, at the end.

    Raises:
        RuntimeError: a transaction is open already. A service is one transaction and never part of another.
    """
    settings = {rls.TENANT: actor.home.id} if actor.home is not None else {rls.PLATFORM: "on"}
    with _transaction(settings):
        _open.actor = actor
        try:
            yield
        finally:
            del _open.actor


@contextmanager
def reading_as(actor: Actor) -> Iterator[None]:
    """Read within the actor's transaction, or in one of its own where none is open: for selectors.

    Raises:
        RuntimeError: the open transaction belongs to another actor.
    """
    current: Actor | None = getattr(_open, "actor", None)
    if current is None:
        with acting_as(actor):
            yield
    elif current == actor:
        yield
    else:
        raise RuntimeError("the open transaction belongs to another actor")


@contextmanager
def looking_up(*, user_id: str = "", lookup: str = "") -> Iterator[None]:
    """Open a transaction in which only one's own memberships, or the row of one secret, can be read.

    It is how an actor is found before there is one. ``lookup`` is a key's lookup part or an invitation's digest.
    """
    with _transaction({rls.USER: user_id, rls.LOOKUP: lookup}):
        yield


@contextmanager
def _transaction(settings: dict[str, str]) -> Iterator[None]:
    with transaction.atomic(durable=True):
        _set(settings)
        yield
    if connection.in_atomic_block:
        # A test's transaction goes on around this one, and a released savepoint keeps what was set in it.
        _set(dict.fromkeys(settings, ""))


def _set(settings: dict[str, str]) -> None:
    """Set transaction-local settings; PostgreSQL forgets them at the end of the transaction."""
    columns = ", ".join("set_config(%s, %s, true)" for _ in settings)
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {columns}", [part for pair in settings.items() for part in pair])
