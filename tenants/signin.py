"""Sign-in is django-allauth's; what is ours is who may open an account."""

from allauth.account.adapter import DefaultAccountAdapter
from django.conf import settings
from django.http import HttpRequest

from tenants.models import User

INVITATION = "invitation_token"
"""The session's entry for the invitation that its visitor followed."""


class AccountAdapter(DefaultAccountAdapter):  # type: ignore[misc]  # allauth has no types
    """An account is opened by invitation, unless the operator has opened sign-up to everybody."""

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        """Say whether this visitor may open an account."""
        return bool(settings.PAGODA_SIGNUP_OPEN or INVITATION in request.session)

    def clean_email(self, email: str) -> str:
        """Keep addresses in lower case, as the database wants them."""
        return str(super().clean_email(email)).lower()

    def populate_username(self, request: HttpRequest, user: User) -> None:
        """Do nothing: there are no user names."""
