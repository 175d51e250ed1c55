"""API keys as a way to say who one is. People are known by the console's session, which is the framework's own."""

from django.contrib.auth.models import AnonymousUser
from rest_framework import authentication
from rest_framework.request import Request

from controlplane.api.errors import AUTHENTICATE
from tenants.actor import Actor
from tenants.services import authenticate_key

_SCHEME = "bearer"


class KeyAuthentication(authentication.BaseAuthentication):
    """``Authorization: Bearer pgd_...``. The key's scopes say what it may do here."""

    def authenticate(self, request: Request) -> tuple[AnonymousUser, Actor] | None:
        """Return the key's actor as the request's ``auth``; None where no key is shown.

        Raises:
            Unauthenticated: the key is not valid.
        """
        scheme, _, text = request.META.get("HTTP_AUTHORIZATION", "").partition(" ")
        if scheme.lower() != _SCHEME:
            return None
        return AnonymousUser(), authenticate_key(text.strip())

    def authenticate_header(self, request: Request) -> str:
        """Say how to come back with a key."""
        return AUTHENTICATE
