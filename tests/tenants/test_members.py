import threading
from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from tenants import selectors, services
from tenants.actor import acting_as, member_actor, platform_actor, system_actor
from tenants.errors import Conflict, Forbidden, Invalid, NotFound, Unauthenticated
from tenants.models import Invitation, User
from tenants.roles import Role

SYSTEM = system_actor("test")


@pytest.fixture
def alice(personas):
    return member_actor(personas.alice, "acme")


def a_user(email):
    return User.objects.create_user(email, "a long enough phrase")


def test_an_invited_person_joins_with_the_offered_role(alice):
    issued = services.invite_member(actor=alice, email=" Dave@Acme.Example ", role=Role.DEVELOPER)
    dave = a_user("dave@acme.example")
    services.accept_invitation(user=dave, token=issued.token)
    assert member_actor(dave, "acme").role is Role.DEVELOPER
    assert selectors.list_invitations(actor=alice) == []
    with pytest.raises(Conflict, match="accepted already"):
        services.accept_invitation(user=dave, token=issued.token)


def test_an_invitation_is_for_one_address(alice, personas):
    issued = services.invite_member(actor=alice, email="dave@acme.example", role=Role.OWNER)
    with pytest.raises(Forbidden, match=r"dave@acme\.example"):
        services.accept_invitation(user=personas.mallory, token=issued.token)
    with pytest.raises(NotFound):
        services.accept_invitation(user=personas.mallory, token="no such token")


def test_a_revoked_or_old_invitation_opens_nothing(alice):
    dave = a_user("dave@acme.example")
    revoked = services.invite_member(actor=alice, email=dave.email, role=Role.VIEWER)
    services.revoke_invitation(actor=alice, invitation_id=revoked.invitation.id)
    with pytest.raises(Conflict, match="revoked"):
        services.accept_invitation(user=dave, token=revoked.token)
    old = services.invite_member(actor=alice, email=dave.email, role=Role.VIEWER)
    with acting_as(SYSTEM):
        Invitation.objects.filter(pk=old.invitation.pk).update(expires_at=timezone.now() - timedelta(seconds=1))
    with pytest.raises(NotFound, match="run out"):
        services.accept_invitation(user=dave, token=old.token)
    services.invite_member(actor=alice, email=dave.email, role=Role.VIEWER)


def test_an_address_has_one_open_invitation(alice, personas):
    services.invite_member(actor=alice, email="dave@acme.example", role=Role.VIEWER)
    with pytest.raises(Conflict, match="open invitation"):
        services.invite_member(actor=alice, email="dave@acme.example", role=Role.OWNER)
    with pytest.raises(Conflict, match="member already"):
        services.invite_member(actor=alice, email="bob@acme.example", role=Role.OWNER)
    services.invite_member(
        actor=member_actor(personas.mallory, "evil"), email="dave@acme.example", role=Role.VIEWER
    )  # another tenant's offer is its own affair


def test_what_is_no_address_is_refused(alice):
    for text in ("nobody", "a@b", "x" * 250 + "@acme.example"):
        with pytest.raises(Invalid) as refusal:
            services.invite_member(actor=alice, email=text, role=Role.VIEWER)
        assert list(refusal.value.fields) == ["email"]


@pytest.mark.parametrize("who", ["bob", "carol", "bill"])
def test_only_owners_change_who_belongs_here(who, alice, personas):
    actor = member_actor(getattr(personas, who), "acme")
    issued = services.invite_member(actor=alice, email="dave@acme.example", role=Role.VIEWER)
    for act in (
        lambda: services.invite_member(actor=actor, email="x@acme.example", role=Role.VIEWER),
        lambda: services.revoke_invitation(actor=actor, invitation_id=issued.invitation.id),
        lambda: services.change_role(actor=actor, user_id=actor.id, role=Role.OWNER),
        lambda: services.remove_member(actor=actor, user_id=personas.alice.id),
    ):
        with pytest.raises(Forbidden):
            act()


def test_a_stranger_finds_neither_members_nor_invitations(alice, personas):
    mallory = member_actor(personas.mallory, "evil")
    issued = services.invite_member(actor=alice, email="dave@acme.example", role=Role.VIEWER)
    for act in (
        lambda: services.change_role(actor=mallory, user_id=personas.bob.id, role=Role.OWNER),
        lambda: services.remove_member(actor=mallory, user_id=personas.bob.id),
        lambda: services.revoke_invitation(actor=mallory, invitation_id=issued.invitation.id),
    ):
        with pytest.raises(NotFound):
            act()


def test_a_role_changes_at_once(alice, personas):
    services.change_role(actor=alice, user_id=personas.carol.id, role=Role.DEVELOPER)
    assert member_actor(personas.carol, "acme").role is Role.DEVELOPER


def test_the_last_owner_stays(alice, personas):
    with pytest.raises(Conflict, match="at least one owner"):
        services.change_role(actor=alice, user_id=personas.alice.id, role=Role.VIEWER)
    with pytest.raises(Conflict, match="at least one owner"):
        services.remove_member(actor=alice, user_id=personas.alice.id)
    services.change_role(actor=alice, user_id=personas.bob.id, role=Role.OWNER)
    services.remove_member(actor=alice, user_id=personas.alice.id)
    with pytest.raises(NotFound):
        member_actor(personas.alice, "acme")


def test_of_two_owners_who_remove_each_other_one_stays(committed, personas):
    alice = member_actor(personas.alice, "acme")
    services.change_role(actor=alice, user_id=personas.bob.id, role=Role.OWNER)
    bob, barrier, outcomes = member_actor(personas.bob, "acme"), threading.Barrier(2), []

    def remove(actor, user_id):
        try:
            barrier.wait()
            services.remove_member(actor=actor, user_id=user_id)
            outcomes.append("removed")
        except (Conflict, NotFound) as lost:
            outcomes.append(lost.code)
        finally:
            connection.close()

    threads = [threading.Thread(target=remove, args=args) for args in ((alice, bob.id), (bob, alice.id))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["conflict", "removed"]


def test_who_leaves_takes_the_playground_key_along(alice, personas):
    bob = member_actor(personas.bob, "acme")
    text = services.playground_key(actor=bob)
    kept = services.issue_key(actor=bob, name="of the tenant")
    services.remove_member(actor=bob, user_id=personas.bob.id)
    with pytest.raises(Unauthenticated):
        services.authenticate_key(text)
    assert services.authenticate_key(kept.text).tenant == personas.acme


def test_memberships_are_listed_without_an_actor_for_oneself_only(personas):
    found = selectors.memberships(personas.bob)
    assert [(member.tenant.slug, member.role) for member in found] == [("acme", "developer")]
    assert selectors.memberships(personas.root) == []


def test_somebody_who_was_switched_off_acts_nowhere(personas):
    for user in (personas.bob, personas.root):
        user.is_active = False
    with pytest.raises(NotFound):
        member_actor(personas.bob, "acme")
    with pytest.raises(NotFound):
        platform_actor(personas.root)
