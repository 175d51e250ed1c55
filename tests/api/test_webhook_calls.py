"""A person's program makes a webhook over the API, tries it, and reads what became of each message."""

import msgspec
import pytest
from django.test import Client
from telling import deliver, tell
from webhook_receiver import is_accepted, receiving


@pytest.fixture
def receiver(settings):
    settings.PAGODA_WEBHOOK_ALLOW_PRIVATE = True
    with receiving() as told:
        yield told


@pytest.fixture
def bob(personas) -> Client:
    client = Client()
    client.force_login(personas.bob)
    return client


def call(client: Client, method: str, path: str, body: object = None, status: int = 200) -> dict:
    raw = b"" if body is None else msgspec.json.encode(body)
    answer = client.generic(method, f"/api/v1/webhooks{path}", raw, content_type="application/json")
    assert answer.status_code == status, answer.content
    return answer.json() if answer.content else {}


def test_a_webhook_from_its_making_to_its_end(bob, personas, receiver):
    made = call(bob, "POST", "", {"url": receiver.url, "events": ["version.ready"]}, 201)
    webhook_id, secret = made["webhook"]["id"], made["secret"]
    assert made["webhook"]["enabled"]
    assert secret.startswith("whsec_")
    assert secret not in str(call(bob, "GET", "")) + str(call(bob, "GET", f"/{webhook_id}"))

    tested = call(bob, "POST", f"/{webhook_id}/test", status=202)
    told = tell(personas.acme)
    receiver.status = 500
    deliver()
    assert all(is_accepted(got.headers, got.body, secret) for got in receiver.received)
    newest, oldest = call(bob, "GET", f"/{webhook_id}/deliveries")["data"]
    assert (newest["message_id"], oldest["message_id"]) == (told.id, tested["message_id"])
    assert (newest["state"], newest["attempts"], newest["status"]) == ("waiting", 1, 500)
    assert (newest["event"], newest["error"]) == ("version.ready", "It answered 500.")

    receiver.status = 200
    assert call(bob, "POST", f"/{webhook_id}/deliveries/{told.id}/resend", status=202) == {"message_id": told.id}
    deliver()
    assert call(bob, "GET", f"/{webhook_id}/deliveries")["data"][0]["state"] == "delivered"

    assert call(bob, "POST", f"/{webhook_id}/rotate", {"overlap_s": 60})["secret"] != secret
    changed = call(bob, "PATCH", f"/{webhook_id}", {"enabled": False})
    assert (changed["enabled"], changed["disabled_reason"]) == (False, "Switched off by bob@acme.example.")
    call(bob, "DELETE", f"/{webhook_id}", status=204)
    call(bob, "GET", f"/{webhook_id}", status=404)
    assert call(bob, "GET", "") == {"data": []}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"url": "https://hooks.example/", "events": ["version.exploded"]}, "events.0"),
        ({"url": "https://hooks.example/", "events": []}, "events"),
        ({"url": "https://127.0.0.1/", "events": ["version.ready"]}, "url"),
        ({"url": "https://hooks.example/", "events": ["version.ready"], "secret": "mine"}, "secret"),
    ],
)
def test_what_is_refused_is_named(body, field, bob):
    fault = call(bob, "POST", "", body, 422)["error"]
    assert field in fault["fields"]


def test_no_cache_keeps_a_secret(bob):
    body = msgspec.json.encode({"url": "https://hooks.example/", "events": ["version.ready"]})
    made = bob.post("/api/v1/webhooks", body, content_type="application/json")
    assert made["Cache-Control"] == "no-store"
