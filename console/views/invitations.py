"""The link of an invitation: who opens it learns what is offered, and takes it with the address that was invited."""

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.cache import add_never_cache_headers
from django.views.decorators.http import require_http_methods

from console.views.members import ROLES
from tenants.roles import Role
from tenants.selectors import find_invitation
from tenants.services.members import accept_invitation
from tenants.signin import INVITATION


@require_http_methods(["GET", "POST"])
def invitation(request: HttpRequest, token: str) -> HttpResponse:
    """Show the offer; a signed-in person takes it, a visitor signs in or opens an account first."""
    user = request.user if request.user.is_authenticated else None
    if request.method == "POST" and user is not None:
        member = accept_invitation(user=user, token=token)
        request.session.pop(INVITATION, None)
        messages.success(request, f"Welcome to {member.tenant.name}.")
        return redirect("console:home", tenant=member.tenant.slug)
    offer = find_invitation(token=token)
    if user is None and offer.is_open:
        request.session[INVITATION] = token  # with it the visitor may open an account
    name, may = ROLES[Role(offer.role)]
    context = {"offer": offer, "role": name, "may": may, "is_for_you": user is not None and user.email == offer.email}
    answer = render(request, "console/pages/invitation.html", context)
    add_never_cache_headers(answer)
    return answer
