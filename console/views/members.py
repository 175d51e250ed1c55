"""Members: who belongs to the tenant, in which role, and who is invited."""

from smtplib import SMTPException
from typing import Any

from django import forms
from django.conf import settings
from django.contrib import messages
from django.core.mail import send_mail
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.template.loader import render_to_string
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from console.access import member_page
from console.errors import show_faults
from tenants import selectors
from tenants.actor import Actor
from tenants.errors import Conflict, Invalid
from tenants.roles import Permission, Role
from tenants.services import members

ROLES = {
    Role.OWNER: ("Owner", "does everything, members included"),
    Role.DEVELOPER: ("Developer", "makes keys, models and deployments"),
    Role.VIEWER: ("Viewer", "looks, and uses the playground"),
    Role.BILLING: ("Billing", "sees usage and cost"),
}
"""What a role is called, and what it does."""
_ROLE_CHOICES = [(role.value, f"{name}: {may}") for role, (name, may) in ROLES.items()]


class RoleForm(forms.Form):
    """What somebody may do here."""

    role = forms.ChoiceField(choices=_ROLE_CHOICES, widget=forms.RadioSelect, initial=Role.DEVELOPER.value)


class InvitationForm(RoleForm):
    """Who is invited, as what."""

    field_order = ("email", "role")
    email = forms.CharField(
        label="Email address", max_length=254, widget=forms.EmailInput(attrs={"autocomplete": "off"})
    )


def _sent(request: HttpRequest) -> QueryDict | None:
    """Return the form that was sent, an empty one included; None where a page was asked for."""
    return request.POST if request.method == "POST" else None


@require_GET
@member_page(Permission.MEMBERS_READ)
def index(request: HttpRequest, actor: Actor) -> HttpResponse:
    """List the members and the open invitations."""
    context = {
        "members": [(member, ROLES[Role(member.role)]) for member in selectors.list_members(actor=actor)],
        "invitations": [(offer, ROLES[Role(offer.role)][0]) for offer in selectors.list_invitations(actor=actor)],
        "may_change": actor.may(Permission.MEMBERS_WRITE),
    }
    return render(request, "console/pages/members.html", context)


@require_http_methods(["GET", "POST"])
@member_page(Permission.MEMBERS_WRITE, recently=True)
def invite(request: HttpRequest, actor: Actor) -> HttpResponse:
    """Offer a place; the link is shown once, and sent where letters can be sent."""
    form = InvitationForm(_sent(request), use_required_attribute=False)
    if request.method == "GET":
        return render(request, "console/pages/member_invite.html", {"form": form})
    if form.is_valid():
        try:
            issued = members.invite_member(
                actor=actor, email=form.cleaned_data["email"], role=Role(form.cleaned_data["role"])
            )
        except Invalid as error:
            show_faults(form, error)
        except Conflict as error:
            form.add_error("email", error.message)
        else:
            link = request.build_absolute_uri(reverse("console:invitation", args=[issued.token]))
            context = {"invitation": issued.invitation, "link": link, "is_sent": _send(actor, issued, link)}
            return render(request, "console/pages/member_invited.html", context, status=201)
    return render(request, "console/pages/member_invite.html", {"form": form}, status=422)


def _send(actor: Actor, issued: members.IssuedInvitation, link: str) -> bool:
    """Send the link and say whether that could be done; it was shown, so it is not lost if not."""
    if not settings.PAGODA_SENDS_MAIL:
        return False
    invitation = issued.invitation
    words = {"actor": actor, "invitation": invitation, "role": ROLES[Role(invitation.role)][0].lower(), "link": link}
    try:
        send_mail(
            subject=f"Your invitation to {actor.tenant.name} on Pagoda",
            message=render_to_string("console/letters/invitation.txt", words),
            from_email=None,
            recipient_list=[invitation.email],
        )
    except (SMTPException, OSError):
        return False
    return True


@require_POST
@member_page(Permission.MEMBERS_WRITE)
def revoke_invitation(request: HttpRequest, actor: Actor, invitation_id: str) -> HttpResponse:
    """Take an offer back: its link leads nowhere from now on."""
    invitation = members.revoke_invitation(actor=actor, invitation_id=invitation_id)
    messages.success(request, f"The invitation of {invitation.email} is taken back.")
    return redirect("console:members", tenant=actor.tenant.slug)


@require_http_methods(["GET", "POST"])
@member_page(Permission.MEMBERS_WRITE, recently=True)
def role(request: HttpRequest, actor: Actor, user_id: str) -> HttpResponse:
    """Give a member another role."""
    member = selectors.get_member(actor=actor, user_id=user_id)
    form = RoleForm(_sent(request), initial={"role": member.role}, use_required_attribute=False)
    if request.method == "POST" and form.is_valid():
        try:
            members.change_role(actor=actor, user_id=user_id, role=Role(form.cleaned_data["role"]))
        except Conflict as error:
            form.add_error("role", error.message)
        else:
            chosen, _ = ROLES[Role(form.cleaned_data["role"])]
            messages.success(request, f"{member.user.email} is {chosen.lower()} now.")
            return redirect("console:members", tenant=actor.tenant.slug)
    status = 200 if request.method == "GET" else 422
    return render(request, "console/pages/member_role.html", {"member": member, "form": form}, status=status)


@require_http_methods(["GET", "POST"])
@member_page(Permission.MEMBERS_WRITE, recently=True)
def remove(request: HttpRequest, actor: Actor, user_id: str) -> HttpResponse:
    """Name what ends, ask for the address, then end a membership."""
    member = selectors.get_member(actor=actor, user_id=user_id)
    context: dict[str, Any] = {"member": member}
    if request.method == "POST":
        context["fault"] = _removed(actor, user_id, request.POST.get("confirm", ""), member.user.email)
        if not context["fault"]:
            messages.success(request, f"{member.user.email} is no member any more.")
            return redirect("console:members", tenant=actor.tenant.slug)
    status = 200 if request.method == "GET" else 422
    return render(request, "console/pages/member_remove.html", context, status=status)


@require_http_methods(["GET", "POST"])
@member_page(Permission.TENANT_READ)
def leave(request: HttpRequest, actor: Actor) -> HttpResponse:
    """End one's own membership; everybody may, but for the last owner."""
    context: dict[str, Any] = {}
    if request.method == "POST":
        context["fault"] = _removed(actor, actor.id, request.POST.get("confirm", ""), actor.tenant.slug)
        if not context["fault"]:
            messages.success(request, f"You have left {actor.tenant.name}.")
            return redirect("console:enter")
    status = 200 if request.method == "GET" else 422
    return render(request, "console/pages/member_leave.html", context, status=status)


def _removed(actor: Actor, user_id: str, written: str, asked: str) -> str:
    """End a membership if what was written is what was asked for; return what is wrong, or nothing."""
    if written != asked:
        return f"Write {asked} to confirm."
    try:
        members.remove_member(actor=actor, user_id=user_id)
    except Conflict as error:
        return error.message
    return ""
