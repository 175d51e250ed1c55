"""People join a tenant by invitation, change roles and leave."""

import secrets
from dataclasses import dataclass
from datetime import timedelta

from django.utils import timezone

from tenants import audit, inputs
from tenants.actor import Actor, acting_as, invitee_actor, require
from tenants.conflicts import refusing
from tenants.errors import Conflict, Forbidden, NotFound
from tenants.models import Invitation, Member, Tenant, User
from tenants.roles import Permission, Role
from tenants.selectors import find_invitation
from tenants.services.keys import revoke_playground_key

INVITATION_LIFETIME = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class IssuedInvitation:
    """An invitation and the token of its link, which is shown once."""

    invitation: Invitation
    token: str


def invite_member(*, actor: Actor, email: str, role: Role) -> IssuedInvitation:
    """Offer a place to an address for a week. An offer that has run out gives way to the new one.

    Raises:
        Forbidden: the actor may not change who belongs here.
        Invalid: the address is refused.
        Conflict: the address is a member's, or has an open invitation.
    """
    require(actor, Permission.MEMBERS_WRITE)
    address = inputs.email_address(email)
    token = secrets.token_urlsafe(32)
    now = timezone.now()
    with refusing("invitation_open_once", f"{address} has an open invitation; revoke it first."), acting_as(actor):
        if Member.objects.for_tenant(actor.tenant).filter(user__email=address).exists():
            raise Conflict(f"{address} is a member already.")
        open_ones = Invitation.objects.for_tenant(actor.tenant).filter(accepted_at=None, revoked_at=None)
        open_ones.filter(email=address, expires_at__lte=now).update(revoked_at=now)
        invitation = Invitation.objects.create(
            tenant=actor.tenant,
            email=address,
            role=role.value,
            token_digest=Invitation.digest_of(token),
            invited_by=actor.user,
            expires_at=now + INVITATION_LIFETIME,
        )
        audit.record(actor=actor, verb="member.invite", target=invitation, after={"email": address, "role": role.value})
    return IssuedInvitation(invitation, token)


def revoke_invitation(*, actor: Actor, invitation_id: str) -> Invitation:
    """Take an open invitation back.

    Raises:
        Forbidden: the actor may not change who belongs here.
        NotFound: there is no such invitation.
        Conflict: it was accepted or revoked before.
    """
    require(actor, Permission.MEMBERS_WRITE)
    with acting_as(actor):
        invitation = _locked_invitation(actor.tenant, invitation_id)
        _require_open(invitation)
        invitation.revoked_at = timezone.now()
        invitation.save(update_fields=["revoked_at"])
        audit.record(actor=actor, verb="member.uninvite", target=invitation, before={"email": invitation.email})
    return invitation


def accept_invitation(*, user: User, token: str) -> Member:
    """Take the place that an invitation offers to ``user``'s address.

    Raises:
        NotFound: no invitation has this token, or it has run out.
        Forbidden: it is for another address.
        Conflict: it was accepted or revoked before, or the user is a member already.
    """
    found = find_invitation(token=token)
    if found.email != user.email:
        raise Forbidden(f"This invitation is for {found.email}. Sign in with that address to take it.")
    actor = invitee_actor(user, found.tenant)
    with refusing("member_once", f"You are a member of {found.tenant.slug} already."), acting_as(actor):
        # Race: one link opened twice. The lock lets one through; the other finds the invitation taken.
        invitation = _locked_invitation(actor.tenant, found.id)
        _require_open(invitation)
        invitation.accepted_at = timezone.now()
        invitation.save(update_fields=["accepted_at"])
        member = Member.objects.create(tenant=actor.tenant, user=user, role=invitation.role)
        audit.record(actor=actor, verb="member.join", target=user, after={"role": invitation.role})
    return member


def change_role(*, actor: Actor, user_id: str, role: Role) -> Member:
    """Give a member another role.

    Raises:
        Forbidden: the actor may not change who belongs here.
        NotFound: the user is no member.
        Conflict: the tenant would be left without an owner.
    """
    require(actor, Permission.MEMBERS_WRITE)
    with acting_as(actor):
        member = _locked_member(actor.tenant, user_id)
        before = member.role
        if before == Role.OWNER and role is not Role.OWNER:
            _require_another_owner(member)
        member.role = role.value
        member.save(update_fields=["role"])
        audit.record(
            actor=actor, verb="member.role", target=member.user, before={"role": before}, after={"role": role.value}
        )
    return member


def remove_member(*, actor: Actor, user_id: str) -> None:
    """End a membership; everybody may leave. The keys it made stay the tenant's, its playground key is revoked.

    Raises:
        Forbidden: the actor may not change who belongs here.
        NotFound: the user is no member.
        Conflict: the tenant would be left without an owner.
    """
    if actor.user is None or actor.user.id != user_id:
        require(actor, Permission.MEMBERS_WRITE)
    with acting_as(actor):
        member = _locked_member(actor.tenant, user_id)
        if member.role == Role.OWNER:
            _require_another_owner(member)
        member.delete()
        revoke_playground_key(tenant=actor.tenant, user=member.user)
        audit.record(actor=actor, verb="member.remove", target=member.user, before={"role": member.role})


def _require_open(invitation: Invitation) -> None:
    if invitation.accepted_at is not None:
        raise Conflict("This invitation was accepted already.")
    if invitation.revoked_at is not None:
        raise Conflict("This invitation was revoked.")


def _locked_invitation(tenant: Tenant, invitation_id: str) -> Invitation:
    invitation = Invitation.objects.for_tenant(tenant).select_for_update(no_key=True).filter(pk=invitation_id).first()
    if invitation is None:
        raise NotFound("There is no such invitation.")
    return invitation


def _locked_member(tenant: Tenant, user_id: str) -> Member:
    # Race: two owners remove each other. Locking the tenant first lets one of them see that it is the last.
    Tenant.objects.select_for_update(no_key=True).get(pk=tenant.pk)
    members = Member.objects.for_tenant(tenant).select_for_update(of=("self",), no_key=True).select_related("user")
    member = members.filter(user_id=user_id).first()
    if member is None:
        raise NotFound("There is no such member.")
    return member


def _require_another_owner(member: Member) -> None:
    others = Member.objects.filter(tenant_id=member.tenant_id, role=Role.OWNER.value).exclude(pk=member.pk)
    if not others.exists():
        raise Conflict("A tenant keeps at least one owner. Make somebody else an owner first.")
