import re
import time

import pytest
from allauth.mfa.models import Authenticator
from allauth.mfa.totp.internal.auth import format_hotp_value, hotp_value
from django.core import mail
from django.core.cache import cache
from django.test import Client
from django.urls import reverse
from django_fixtures import PASSWORD

from tenants import services
from tenants.actor import member_actor, platform_actor
from tenants.models import User
from tenants.roles import Role
from tenants.signin import INVITATION

pytestmark = pytest.mark.usefixtures("django_redis", "clean_cache")


@pytest.fixture
def clean_cache(django_redis):
    cache.clear()


def sign_in(client, email, password=PASSWORD):
    return client.post(reverse("account_login"), {"login": email, "password": password})


def totp(secret):
    return format_hotp_value(hotp_value(secret, int(time.time()) // 30))


def is_signed_in(client):
    return "_auth_user_id" in client.session


def test_a_member_signs_in_by_e_mail_and_out_again(personas, client):
    assert b"password" in client.get(reverse("account_login")).content
    answer = sign_in(client, "Alice@Acme.example")
    assert (answer.status_code, answer["Location"], is_signed_in(client)) == (302, "/", True)
    client.post(reverse("account_logout"))
    assert not is_signed_in(client)


def test_a_wrong_password_and_an_unknown_address_get_the_same_answer(personas, client):
    wrong, unknown = sign_in(client, "alice@acme.example", "wrong"), sign_in(client, "nobody@acme.example", "wrong")
    assert not is_signed_in(client)
    assert wrong.context["form"].errors == unknown.context["form"].errors != {}


def test_guessing_is_stopped_after_five_tries_even_with_the_right_password(personas, client):
    for _ in range(5):
        sign_in(client, "alice@acme.example", "wrong")
    answer = sign_in(client, "alice@acme.example")
    assert not is_signed_in(client)
    assert b"Five wrong passwords lock sign-in for this address for 5 minutes" in answer.content
    sign_in(client, "bob@acme.example")
    assert is_signed_in(client)


def test_somebody_who_was_switched_off_cannot_sign_in(personas, client):
    User.objects.filter(pk=personas.bob.pk).update(is_active=False)
    answer = sign_in(client, personas.bob.email)
    assert answer["Location"] == reverse("account_inactive")
    assert not is_signed_in(client)


def test_with_a_second_factor_the_password_is_not_enough(personas, client):
    secret = "JBSWY3DPEHPK3PXP"
    Authenticator.objects.create(user=personas.alice, type=Authenticator.Type.TOTP, data={"secret": secret})
    answer = sign_in(client, personas.alice.email)
    assert answer["Location"] == reverse("mfa_authenticate")
    assert not is_signed_in(client)
    code = totp(secret)
    client.post(reverse("mfa_authenticate"), {"code": f"{(int(code) + 1) % 10**6:06}"})
    assert not is_signed_in(client)
    client.post(reverse("mfa_authenticate"), {"code": code})
    assert is_signed_in(client)


def test_a_second_factor_can_be_set_up_after_signing_in_again(personas, client):
    sign_in(client, personas.alice.email)
    begin = reverse("mfa_activate_totp")
    assert client.get(begin)["Location"].startswith(reverse("account_reauthenticate"))
    client.post(reverse("account_reauthenticate"), {"password": PASSWORD})
    secret = client.get(begin).context["form"].secret
    client.post(begin, {"code": totp(secret)})
    assert Authenticator.objects.filter(user=personas.alice, type=Authenticator.Type.TOTP).exists()


def test_nobody_opens_an_account_uninvited(personas, client):
    answer = client.post(reverse("account_signup"), {"email": "x@acme.example", "password1": "a long enough phrase"})
    assert not User.objects.filter(email="x@acme.example").exists()
    assert b"closed" in answer.content.lower()


def test_an_invited_person_opens_an_account_proves_the_address_and_joins(personas, client):
    issued = services.invite_member(
        actor=member_actor(personas.alice, "acme"), email="dave@acme.example", role=Role.DEVELOPER
    )
    session = client.session
    session[INVITATION] = issued.token
    session.save()
    client.post(reverse("account_signup"), {"email": "Dave@acme.example", "password1": "a long enough phrase"})
    assert not is_signed_in(client), "the address is not proven yet"
    code = re.search(r"^\s*([A-Z0-9-]{6,9})\s*$", mail.outbox[-1].body, re.MULTILINE)[1]
    client.post(reverse("account_email_verification_sent"), {"code": code})
    assert is_signed_in(client)
    dave = User.objects.get(email="dave@acme.example")
    services.accept_invitation(user=dave, token=issued.token)
    assert member_actor(dave, "acme").role is Role.DEVELOPER


def test_an_invitation_that_was_taken_back_opens_no_account(personas, client):
    alice = member_actor(personas.alice, "acme")
    issued = services.invite_member(actor=alice, email="dave@acme.example", role=Role.DEVELOPER)
    session = client.session
    session[INVITATION] = issued.token
    session.save()
    services.revoke_invitation(actor=alice, invitation_id=issued.invitation.id)
    client.post(reverse("account_signup"), {"email": "eve@evil.example", "password1": "a long enough phrase"})
    assert not User.objects.filter(email="eve@evil.example").exists()


def test_a_weak_password_is_refused(personas, client, settings):
    settings.PAGODA_SIGNUP_OPEN = True
    client.post(reverse("account_signup"), {"email": "dave@acme.example", "password1": "password"})
    assert not User.objects.filter(email="dave@acme.example").exists()


def test_a_forgotten_password_is_reset_by_a_code(personas, client):
    phrase = "another long phrase"
    client.post(reverse("account_reset_password"), {"email": personas.bob.email})
    code = re.search(r"^\s*([A-Z0-9-]{6,9})\s*$", mail.outbox[-1].body, re.MULTILINE)[1]
    client.post(reverse("account_confirm_password_reset_code"), {"code": code})
    client.post(reverse("account_complete_password_reset"), {"password1": phrase, "password2": phrase})
    fresh = Client()
    sign_in(fresh, personas.bob.email, phrase)
    assert is_signed_in(fresh)


def test_an_operator_makes_people_who_can_sign_in_at_once(personas, client):
    services.create_user(
        actor=platform_actor(personas.root), email="new@acme.example", password="a long enough phrase", name="New"
    )
    sign_in(client, "new@acme.example", "a long enough phrase")
    assert is_signed_in(client)


def test_pages_carry_the_headers_that_keep_browsers_safe(client, db):
    answer = client.get(reverse("account_login"))
    policy = answer["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert (answer["X-Frame-Options"], answer["X-Content-Type-Options"]) == ("DENY", "nosniff")
    assert answer["X-Request-ID"].startswith("req_")


def test_sign_in_goes_on_and_guessing_is_still_stopped_while_redis_is_away(personas, client, settings):
    settings.CACHES = {"default": {**settings.CACHES["default"], "LOCATION": "redis://127.0.0.1:1/0"}}
    for _ in range(5):
        sign_in(client, "alice@acme.example", "wrong")
    sign_in(client, "alice@acme.example")
    assert not is_signed_in(client)
    sign_in(client, "bob@acme.example")
    assert is_signed_in(client)


def test_a_static_file_is_served_whole_with_its_type(client, db):
    answer = client.get("/static/django_htmx/htmx-2.min.js")
    assert (answer.status_code, answer["Content-Type"]) == (200, 'text/javascript; charset="utf-8"')
    assert len(answer.content) == int(answer["Content-Length"]) > 10_000
    again = client.get("/static/django_htmx/htmx-2.min.js", headers={"If-Modified-Since": answer["Last-Modified"]})
    assert (again.status_code, again.content) == (304, b"")
    assert client.get("/static/no-such-file.js").status_code == 404
    assert client.get("/static/../manage.py").status_code == 404
