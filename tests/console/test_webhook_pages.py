import re

import pytest
from console_world import FRAME_QUERIES, num_queries, page
from django.test import Client
from telling import deliver, hook, tell
from webhook_receiver import receiving

from controlplane.notifications.selectors import list_webhooks
from tenants.actor import member_actor
from tenants.selectors import list_audit

FORM = {"url": "https://hooks.example/pagoda", "events": ["version.ready", "rollout.paused"]}


@pytest.fixture
def receiver(settings):
    settings.PAGODA_WEBHOOK_ALLOW_PRIVATE = True
    with receiving() as told:
        yield told


def webhook_url(personas, act: str = "") -> str:
    (webhook,) = list_webhooks(actor=member_actor(personas.alice, "acme"))
    return f"/t/acme/webhooks/{webhook.id}{act}"


def shown(text: str) -> str:
    (secret,) = re.findall(r"whsec_[\w+/]+=*", text)
    return secret


def make(client: Client, **fields: object) -> str:
    answer = client.post("/t/acme/webhooks/new", FORM | fields)
    assert answer.status_code == 201, answer.content.decode()
    return shown(answer.content.decode())


def test_a_secret_is_shown_once_and_nowhere_else(alice, personas):
    secret = make(alice)
    for act in ("", "/change", "/rotate", "/delete"):
        text = page(alice, webhook_url(personas, act))
        assert "hooks.example" in text
        assert secret not in text
    assert secret not in page(alice, "/t/acme/webhooks")
    events = list_audit(actor=member_actor(personas.alice, "acme"))
    assert secret not in str([(event.before, event.after) for event in events])
    assert "no-store" in alice.post(webhook_url(personas, "/rotate"))["Cache-Control"]


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"url": ""}, "This field is required"),
        ({"url": "http://hooks.example/"}, "begins with https"),
        ({"url": "https://10.0.0.1/"}, "not an address of the public internet"),
        ({"url": "https://localhost/"}, "name of a local network"),
        ({"events": []}, "This field is required"),
        ({"events": ["webhook.test"]}, "is not one of the available choices"),
    ],
)
def test_a_refused_form_comes_back_with_the_fault_at_its_field(fields, fault, alice, personas):
    answer = alice.post("/t/acme/webhooks/new", FORM | fields)
    assert answer.status_code == 422
    assert fault in answer.content.decode()
    assert 'class="error"' in answer.content.decode()
    assert list_webhooks(actor=member_actor(personas.alice, "acme")) == []


def test_a_webhook_is_changed_switched_off_and_on_and_deleted_by_its_hosts_name(alice, personas):
    make(alice)
    here = webhook_url(personas)
    changed = alice.post(f"{here}/change", FORM | {"url": "https://other.example/in"}, follow=True).content.decode()
    assert "The webhook is changed." in changed
    assert "https://other.example/in" in changed
    off = alice.post(f"{here}/switch", follow=True).content.decode()
    assert "Switched off by alice@acme.example." in off
    assert "Send a test" not in off
    assert alice.post(f"{here}/test").status_code == 409
    assert "Send a test" in alice.post(f"{here}/switch", {"on": "1"}, follow=True).content.decode()
    assert alice.post(f"{here}/delete", {"confirm": "other"}).status_code == 422
    assert alice.post(f"{here}/delete", {"confirm": "other.example"}).status_code == 302
    assert alice.get(here).status_code == 404
    assert "No webhook yet" in page(alice, "/t/acme/webhooks")


def test_what_became_of_a_test_is_shown_and_can_be_sent_again(alice, personas, receiver):
    make(alice, url=receiver.url)
    here = webhook_url(personas)
    receiver.status = 500
    assert "A test is on its way" in alice.post(f"{here}/test", follow=True).content.decode()
    deliver()
    text = page(alice, here, **{"HX-Request": "true"})
    assert "It answered 500." in text
    assert "<html" not in text
    assert ">Waiting</span>" in text
    assert ">Failing</span>" in text
    receiver.status = 204
    (again,) = re.findall(r'action="([^"]+/resend)"', text)
    assert "with the same id" in alice.post(again, follow=True).content.decode()
    deliver()
    text = page(alice, here)
    assert ">Delivered</span>" in text
    assert ">Active</span>" in text
    assert receiver.received[0].headers["webhook-id"] == receiver.received[1].headers["webhook-id"]


def test_what_happened_is_shown_with_who_is_told_even_where_no_mail_is_sent(alice, personas, settings):
    hook(personas.alice, "https://hooks.example/in")
    tell(personas.acme, people=[personas.bob, personas.root])
    settings.PAGODA_SENDS_MAIL = False
    tell(personas.acme, people=[personas.bob], event="rollout.paused", headline="A rollout of chat is paused.")
    text = page(alice, "/t/acme/webhooks")
    assert "1 webhook, 2 people by mail" in text
    assert "A rollout of chat is paused." in text
    assert ">nobody</span>" in text
    assert "this installation sends no mail" in text


def test_pages_ask_the_database_as_often_for_much_as_for_little(alice, personas):
    webhook = hook(personas.alice, "https://hooks.example/in")
    for _ in range(2):
        assert num_queries(alice, "/t/acme/webhooks") == FRAME_QUERIES + 2
        assert num_queries(alice, f"/t/acme/webhooks/{webhook.id}") == FRAME_QUERIES + 2
        for _ in range(3):
            tell(personas.acme, people=[personas.bob])


def test_a_webhook_of_another_tenant_does_not_exist(alice, signed_in, personas):
    make(alice)
    here = webhook_url(personas).replace("/acme/", "/evil/")
    mallory = signed_in("mallory")
    for act in ("", "/change", "/rotate", "/delete"):
        assert mallory.get(f"{here}{act}").status_code == 404
    for act in ("/switch", "/test", "/rotate", "/delete"):
        assert mallory.post(f"{here}{act}", {"confirm": "hooks.example"}).status_code == 404
    assert "Webhooks" not in page(signed_in("carol"), "/t/acme/")
