"""Sign-in is django-allauth's; what is ours is who may open an account."""

from typing import ClassVar

from allauth.account.adapter import DefaultAccountAdapter
from django.conf import settings
from django.http import HttpRequest

from tenants.errors import NotFound
from tenants.models import Invitation, User
from tenants.selectors import find_invitation

INVITATION = "invitation_token"
"""The session's entry for the invitation that its visitor followed."""


class AccountAdapter(DefaultAccountAdapter):  # type: ignore[misc]  # allauth has no types
    """An account is opened by invitation, unless the operator has opened sign-up to everybody."""

    error_messages: ClassVar[dict[str, object]] = {
        **DefaultAccountAdapter.error_messages,
        "too_many_login_attempts": (
            f"Five wrong passwords lock sign-in for this address for {settings.SIGN_IN_LOCK_S // 60} minutes, the "
            "right password included. Wait, then try again."
        ),
    }

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        """Say whether this visitor may open an account."""
        return bool(settings.PAGODA_SIGNUP_OPEN or _offer(request) is not None)

    def is_email_verified(self, request: HttpRequest, email: str) -> bool:
        """Say whether the address needs no code: an owner vouched for it, and no code could be sent.

        Where letters are sent, an invitation proves nothing: its link is shown to whoever invites, too.
        """
        if super().is_email_verified(request, email):
            return True
        offer = None if settings.PAGODA_SENDS_MAIL else _offer(request)
        return offer is not None and offer.email == email.lower()

    def clean_email(self, email: str) -> str:
        """Keep addresses in lower case, as the database wants them."""
        return str(super().clean_email(email)).lower()

    def populate_username(self, request: HttpRequest, user: User) -> None:
        """Do nothing: there are no user names."""


def _offer(request: HttpRequest) -> Invitation | None:
    """Return the invitation that the visitor followed, while it is open: one that was taken back lets nobody in."""
    token = request.session.get(INVITATION)
    if token is None:
        return None
    try:
        found = find_invitation(token=token)
    except NotFound:
        return None
    return found if found.is_open else None
