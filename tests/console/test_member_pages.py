import re

import pytest
from console_world import page
from django.core import mail
from django.test import Client

from tenants.actor import member_actor
from tenants.models import User
from tenants.roles import Role
from tenants.selectors import list_audit, list_invitations, list_members
from tenants.services import invite_member

PHRASE = "a long enough phrase"


@pytest.fixture
def owner(proven) -> Client:
    return proven("alice")


def invite(client: Client, email: str = "dave@acme.example", role: str = "developer") -> str:
    """Invite somebody and return the link, as the page shows it."""
    answer = client.post("/t/acme/members/invite", {"email": email, "role": role})
    assert answer.status_code == 201, answer.content.decode()
    (link,) = re.findall(r"http://testserver(/invitations/[\w-]+)<", answer.content.decode())
    return link


def roles(personas) -> dict[str, str]:
    return {member.user.email: member.role for member in list_members(actor=member_actor(personas.alice, "acme"))}


def test_members_are_listed_with_what_they_may_do(alice, signed_in):
    text = page(alice, "/t/acme/members")
    for words in (
        "alice@acme.example",
        "makes keys, models and deployments",
        "Change role",
        "Invite somebody",
        "Leave",
    ):
        assert words in text
    carol = page(signed_in("carol"), "/t/acme/members")
    assert "bob@acme.example" in carol
    assert "Change role" not in carol
    assert "Invite" not in carol


def test_what_changes_who_belongs_here_wants_the_password_again(alice, personas):
    for url in ("invite", f"{personas.bob.id}/role", f"{personas.bob.id}/remove"):
        for method in ("get", "post"):
            answer = getattr(alice, method)(f"/t/acme/members/{url}")
            assert answer["Location"] == f"/account/reauthenticate/?next=/t/acme/members/{url}"
    answer = alice.post("/t/acme/members/invite", headers={"hx-request": "true"})
    assert answer["HX-Redirect"] == "/account/reauthenticate/?next=/t/acme/members/invite"
    assert page(alice, "/account/reauthenticate/?next=/t/acme/members/invite")


def test_an_old_proof_counts_no_more(owner, settings, personas):
    page(owner, "/t/acme/members/invite")
    settings.ACCOUNT_REAUTHENTICATION_TIMEOUT = 0
    assert owner.get("/t/acme/members/invite").status_code == 302


def test_an_invitation_is_sent_and_its_link_shown_once(owner, personas):
    link = invite(owner)
    (letter,) = mail.outbox
    assert letter.to == ["dave@acme.example"]
    assert link in letter.body
    assert "alice@acme.example invites you to join Acme on Pagoda as developer" in letter.body
    token = link.rsplit("/", 1)[1]
    assert token not in page(owner, "/t/acme/members")
    assert "dave@acme.example" in page(owner, "/t/acme/members")
    assert token not in str([event.after for event in list_audit(actor=member_actor(personas.alice, "acme"))])


def test_where_no_letter_can_be_sent_the_page_says_to_pass_the_link_on(owner, settings):
    settings.PAGODA_SENDS_MAIL = False
    answer = owner.post("/t/acme/members/invite", {"email": "dave@acme.example", "role": "viewer"})
    assert "pass the link on yourself" in answer.content.decode()
    assert mail.outbox == []


def test_a_letter_that_cannot_be_sent_loses_no_invitation(owner, settings, personas):
    settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
    settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", 1
    answer = owner.post("/t/acme/members/invite", {"email": "dave@acme.example", "role": "viewer"})
    assert answer.status_code == 201
    assert "pass the link on yourself" in answer.content.decode()


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"email": "", "role": "viewer"}, "This field is required"),
        ({"email": "dave", "role": "viewer"}, "This is not an e-mail address"),
        ({"email": "dave@acme.example", "role": "root"}, "root is not one of the available choices"),
        ({"email": "bob@acme.example", "role": "viewer"}, "is a member already"),
    ],
)
def test_a_refused_invitation_comes_back_with_its_fault(fields, fault, owner, personas):
    answer = owner.post("/t/acme/members/invite", fields)
    assert answer.status_code == 422
    assert fault in answer.content.decode()
    assert list_invitations(actor=member_actor(personas.alice, "acme")) == []


def test_an_invitation_that_is_taken_back_leads_nowhere(owner, personas):
    link = invite(owner)
    (offer,) = list_invitations(actor=member_actor(personas.alice, "acme"))
    assert owner.post(f"/t/acme/invitations/{offer.id}/revoke").status_code == 302
    assert "no longer counts" in page(Client(), link)


def test_who_was_invited_and_has_an_account_joins_with_one_click(owner, personas):
    link = invite(owner, "mallory@evil.example", "viewer")
    mallory = Client()
    mallory.force_login(personas.mallory)
    assert "Join Acme" in page(mallory, link)
    assert mallory.post(link)["Location"] == "/t/acme/"
    assert roles(personas)["mallory@evil.example"] == Role.VIEWER
    assert "Welcome to Acme" in page(mallory, "/t/acme/")
    assert "no longer counts" in page(mallory, link)


def test_an_invitation_is_not_for_whoever_finds_it(owner, signed_in):
    link = invite(owner)
    mallory = signed_in("mallory")
    assert "You are signed in as mallory@evil.example" in page(mallory, link)
    assert mallory.post(link).status_code == 403


def test_a_link_that_never_was_is_not_found(db):
    assert Client().get("/invitations/nonsense").status_code == 404


def test_a_stranger_opens_an_account_through_the_link_and_lands_on_it(owner, settings, personas):
    settings.PAGODA_SENDS_MAIL = False
    link, visitor = invite(owner), Client()
    assert "dave%40acme.example" in page(visitor, link)
    assert "dave@acme.example" in page(visitor, f"/account/signup/?email=dave%40acme.example&next={link}")
    answer = visitor.post(
        f"/account/signup/?next={link}", {"email": "dave@acme.example", "password1": PHRASE, "next": link}
    )
    assert answer["Location"] == link, "an owner vouched for the address, and no code could have been sent"
    assert visitor.post(link)["Location"] == "/t/acme/"
    assert roles(personas)["dave@acme.example"] == Role.DEVELOPER


def test_an_invitation_opens_no_account_of_another_address_without_a_code(owner, settings):
    settings.PAGODA_SENDS_MAIL = False
    link, visitor = invite(owner), Client()
    page(visitor, link)
    visitor.post("/account/signup/", {"email": "eve@acme.example", "password1": PHRASE})
    assert "_auth_user_id" not in visitor.session


def test_an_owner_changes_roles_but_never_the_last_owners(owner, personas):
    assert owner.post(f"/t/acme/members/{personas.carol.id}/role", {"role": "developer"}).status_code == 302
    assert roles(personas)["carol@acme.example"] == Role.DEVELOPER
    answer = owner.post(f"/t/acme/members/{personas.alice.id}/role", {"role": "viewer"})
    assert answer.status_code == 422
    assert "at least one owner" in answer.content.decode()


def test_removing_wants_the_address(owner, personas):
    url = f"/t/acme/members/{personas.carol.id}/remove"
    assert owner.post(url, {"confirm": "carol"}).status_code == 422
    assert owner.post(url, {"confirm": "carol@acme.example"}).status_code == 302
    assert "carol@acme.example" not in roles(personas)
    assert owner.get(url).status_code == 404


def test_everybody_may_leave_but_the_last_owner(alice, signed_in, personas):
    bill = signed_in("bill")
    assert bill.post("/t/acme/members/leave", {"confirm": "ACME"}).status_code == 422
    assert bill.post("/t/acme/members/leave", {"confirm": "acme"})["Location"] == "/"
    assert "bill@acme.example" not in roles(personas)
    assert alice.post("/t/acme/members/leave", {"confirm": "acme"}).status_code == 422


def test_a_name_that_turns_the_direction_of_text_is_refused_everywhere(owner, alice):
    for sign in "\u202e\u2066\u200f\u061c":
        answer = alice.post(
            "/t/acme/keys/new", {"name": f"pay{sign}ment", "scopes": ["inference"], "lifetime_days": ""}
        )
        assert answer.status_code == 422
        assert "turn the direction of text" in answer.content.decode()
    assert alice.post("/account/you", {"name": "مرحبا"}).status_code == 302


def test_one_changes_ones_own_name_and_sees_where_one_belongs(alice, personas):
    text = page(alice, "/account/you")
    assert 'value="alice"' in text
    assert "Owner" in text
    alice.post("/account/you", {"name": "Alice A."})
    assert User.objects.get(pk=personas.alice.pk).name == "Alice A."
    assert "Alice A." in page(alice, "/t/acme/members")
    assert alice.post("/account/you", {"name": "a\nb"}).status_code == 422
    alice.post("/account/you", {"name": ""})
    assert User.objects.get(pk=personas.alice.pk).name == ""


@pytest.mark.parametrize("url", ["you", "email/", "password/change/", "2fa/", "sessions/"])
def test_the_pages_of_ones_account_have_the_consoles_frame(url, alice):
    text = page(alice, f"/account/{url}")
    assert 'href="/t/acme/"' in text
    assert 'aria-current="page"' in text


def test_sessions_are_listed_and_the_others_can_be_ended(personas, settings):
    settings.CACHES = {"default": {"BACKEND": "django.core.cache.backends.dummy.DummyCache"}}
    browsers = [Client(headers={"user-agent": f"Browser {number}"}) for number in (1, 2)]
    for browser in browsers:
        browser.post("/account/login/", {"login": "bob@acme.example", "password": "correct horse battery staple"})
    text = page(browsers[0], "/account/sessions/")
    assert "Browser 1" in text
    assert "Browser 2" in text
    browsers[0].post("/account/sessions/")
    assert browsers[1].get("/t/acme/").status_code == 302
    assert browsers[0].get("/t/acme/").status_code == 200


def test_an_invitation_is_for_the_tenant_that_made_it(proven, personas):
    invited = invite_member(actor=member_actor(personas.alice, "acme"), email="dave@acme.example", role=Role.VIEWER)
    url = f"/t/evil/invitations/{invited.invitation.id}/revoke"
    assert proven("mallory").post(url).status_code == 404
