import re

import pytest
from console_world import page
from django.test import Client

from tenants.actor import member_actor
from tenants.models import AuditEvent
from tenants.selectors import list_audit, list_keys

FORM = {"name": "checkout", "scopes": ["inference"], "deployment_ids": [], "lifetime_days": "90"}


def make(client: Client, **fields: object) -> str:
    """Make a key and return its text, as the page shows it."""
    answer = client.post("/t/acme/keys/new", FORM | fields)
    assert answer.status_code == 201, answer.content.decode()
    return shown(answer.content.decode())


def shown(text: str) -> str:
    (key,) = re.findall(r"pgd_live_\w{8}_\w+_\w+", text)
    return key


def key_id(personas) -> str:
    return list_keys(actor=member_actor(personas.alice, "acme"))[0].id


def test_a_key_is_shown_once_and_nowhere_else(alice, personas):
    text = make(alice)
    secret = text.split("_")[3]
    for url in ("/t/acme/keys", f"/t/acme/keys/{key_id(personas)}/revoke", f"/t/acme/keys/{key_id(personas)}/roll"):
        assert secret not in page(alice, url)
        assert "checkout" in page(alice, url)
    events = list_audit(actor=member_actor(personas.alice, "acme"))
    assert secret not in str([(event.before, event.after) for event in events])
    assert isinstance(events[0], AuditEvent)


def test_the_answer_with_the_key_is_kept_nowhere(alice):
    assert "no-store" in alice.post("/t/acme/keys/new", FORM)["Cache-Control"]


def test_no_key_reaches_the_log(alice, caplog, capsys):
    text = make(alice)
    written = caplog.text + "".join(capsys.readouterr())
    assert text not in written


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"name": ""}, "This field is required"),
        ({"name": "x" * 101}, "at most 100 characters"),
        ({"scopes": []}, "This field is required"),
        ({"scopes": ["root"]}, "root is not one of the available choices"),
        ({"deployment_ids": ["dep_of_another"]}, "is not one of the available choices"),
        ({"lifetime_days": "400"}, "400 is not one of the available choices"),
    ],
)
def test_a_refused_form_comes_back_with_the_fault_at_its_field(fields, fault, alice, personas):
    answer = alice.post("/t/acme/keys/new", FORM | fields)
    assert answer.status_code == 422
    assert fault in answer.content.decode()
    assert 'class="error"' in answer.content.decode()
    assert list_keys(actor=member_actor(personas.alice, "acme")) == []


def test_a_fault_that_only_the_service_finds_stands_at_its_field_too(alice):
    answer = alice.post("/t/acme/keys/new", FORM | {"name": "a\nb"})
    assert answer.status_code == 422
    assert "error" in answer.content.decode()


def test_a_key_may_be_for_one_deployment_and_never_end(alice, busy, personas):
    make(alice, name="narrow", deployment_ids=[busy.deployment.id], lifetime_days="")
    key = next(key for key in list_keys(actor=member_actor(personas.alice, "acme")) if key.name == "narrow")
    assert (key.deployment_ids, key.expires_at) == ([busy.deployment.id], None)
    assert "1 deployment only" in page(alice, "/t/acme/keys")


def test_a_rolled_key_has_a_new_text_and_says_until_when_the_old_one_counts(alice, personas):
    old = make(alice)
    answer = alice.post(f"/t/acme/keys/{key_id(personas)}/roll")
    assert answer.status_code == 201
    new = shown(answer.content.decode())
    assert new != old
    assert new.split("_")[2] == old.split("_")[2]
    assert "its old secret" in page(alice, "/t/acme/keys")
    assert alice.post(f"/t/acme/keys/{key_id(personas)}/roll").status_code == 409


def test_revoking_wants_the_name(alice, personas):
    make(alice)
    url = f"/t/acme/keys/{key_id(personas)}/revoke"
    for wrong in ("", "Checkout", "checkout "):
        answer = alice.post(url, {"confirm": wrong})
        assert answer.status_code == 422
        assert "not the key’s name" in answer.content.decode() or "not the key&#x27;s name" in answer.content.decode()
    assert alice.post(url, {"confirm": "checkout"}).status_code == 302
    text = page(alice, "/t/acme/keys")
    assert "Revoked" in text
    assert "is revoked" in text
    assert alice.post(url, {"confirm": "checkout"}).status_code == 409


def test_a_key_of_another_tenant_does_not_exist(alice, signed_in, personas):
    make(alice)
    mallory = signed_in("mallory")
    for act in ("roll", "revoke"):
        assert mallory.get(f"/t/evil/keys/{key_id(personas)}/{act}").status_code == 404
        assert mallory.post(f"/t/evil/keys/{key_id(personas)}/{act}", {"confirm": "checkout"}).status_code == 404
