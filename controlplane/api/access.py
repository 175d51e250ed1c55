"""Who calls becomes the actor of the call: in a tenant, or for the platform."""

from typing import Any

from django.contrib.auth.models import AnonymousUser
from rest_framework.request import Request
from rest_framework.views import APIView

from tenants.actor import Actor, member_actor, platform_actor, require
from tenants.errors import Invalid, NotFound, Unauthenticated
from tenants.roles import Permission
from tenants.selectors import memberships

TENANT = "tenant"
"""The query parameter by which a person in several tenants says which."""
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


class TenantView(APIView):
    """A view that acts in one tenant: the key's, or the one that a person names by ``?tenant=``.

    ``writes`` is the permission that its changes need. The service asks for it too; asked here, somebody without it
    hears that, and not what is wrong with the input. ``takes`` names the query parameters beside ``tenant``.
    """

    actor: Actor
    writes: Permission | None = None
    takes: frozenset[str] = frozenset()

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Find the actor before anything else is looked at."""
        super().initial(request, *args, **kwargs)
        self.actor = _tenant_actor(request)
        if self.writes is not None and request.method not in _SAFE_METHODS:
            require(self.actor, self.writes)
        _refuse_unknown(request, known=self.takes | {TENANT})


class PlatformView(APIView):
    """A view for those who run the platform. To others it does not exist."""

    actor: Actor

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Find the actor before anything else is looked at."""
        super().initial(request, *args, **kwargs)
        if isinstance(request.auth, Actor):
            raise NotFound("There is nothing here for a key.")
        if isinstance(request.user, AnonymousUser):
            raise Unauthenticated("Sign in as a platform admin.")
        self.actor = platform_actor(request.user)
        _refuse_unknown(request, known=frozenset())


def _refuse_unknown(request: Request, *, known: frozenset[str]) -> None:
    """Refuse query parameters that nobody reads: a filter that was mistyped would show everything."""
    unknown = sorted(set(request.query_params) - known)
    if unknown:
        reason = f"There is no such parameter. Known: {', '.join(sorted(known)) or 'none'}."
        raise Invalid(" ".join(f"{name}: {reason}" for name in unknown), fields=dict.fromkeys(unknown, reason))


def _tenant_actor(request: Request) -> Actor:
    wanted = request.query_params.get(TENANT)
    if isinstance(request.auth, Actor):
        if wanted is not None and wanted != request.auth.tenant.slug:
            raise NotFound(f"There is no tenant {wanted!r} for this key.")
        return request.auth
    if isinstance(request.user, AnonymousUser):
        raise Unauthenticated("Show an API key: Authorization: Bearer pgd_...")
    if wanted is not None:
        return member_actor(request.user, wanted)
    slugs = [member.tenant.slug for member in memberships(request.user)]
    if not slugs:
        raise NotFound("You are a member of no tenant.")
    if len(slugs) > 1:
        reason = f"Say which tenant you mean: one of {', '.join(slugs)}."
        raise Invalid(reason, fields={TENANT: reason})
    return member_actor(request.user, slugs[0])
