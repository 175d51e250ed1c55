"""Who calls becomes the actor of the call: in a tenant, or for the platform."""

from typing import Any

from django.contrib.auth.models import AnonymousUser
from rest_framework.request import Request
from rest_framework.views import APIView

from tenants.actor import Actor, member_actor, platform_actor, require
from tenants.errors import Invalid, NotFound, Unauthenticated
from tenants.roles import Permission
from tenants.selectors import memberships

_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


class TenantView(APIView):
    """A view that acts in one tenant: the key's, or the one that a person names by ``?tenant=``.

    ``writes`` is the permission that its changes need. The service asks for it too; asked here, somebody without it
    hears that, and not what is wrong with the input.
    """

    actor: Actor
    writes: Permission | None = None

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Find the actor before anything else is looked at."""
        super().initial(request, *args, **kwargs)
        self.actor = _tenant_actor(request)
        if self.writes is not None and request.method not in _SAFE_METHODS:
            require(self.actor, self.writes)


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


def _tenant_actor(request: Request) -> Actor:
    wanted = request.query_params.get("tenant")
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
        raise Invalid(reason, fields={"tenant": reason})
    return member_actor(request.user, slugs[0])
