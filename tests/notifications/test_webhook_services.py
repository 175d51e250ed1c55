"""Who may change webhooks, and what is refused."""

from datetime import timedelta

import pytest
from telling import EVENT, SYSTEM, hook, issued, tell

from controlplane.notifications import selectors
from controlplane.notifications.events import MEANINGS, Event
from controlplane.notifications.services import (
    create_webhook,
    delete_webhook,
    resend_delivery,
    rotate_secret,
    send_test,
    update_webhook,
    webhooks,
)
from tenants.actor import acting_as, member_actor, platform_actor
from tenants.errors import Conflict, Forbidden, Invalid, NotFound
from tenants.models import AuditEvent

URL = "https://hooks.example/in"


def changes(actor, webhook_id):
    """Every change of a webhook, by name."""
    return {
        "update": lambda: update_webhook(actor=actor, webhook_id=webhook_id, enabled=False),
        "rotate": lambda: rotate_secret(actor=actor, webhook_id=webhook_id),
        "test": lambda: send_test(actor=actor, webhook_id=webhook_id),
        "resend": lambda: resend_delivery(actor=actor, webhook_id=webhook_id, message_id="msg_none"),
        "delete": lambda: delete_webhook(actor=actor, webhook_id=webhook_id),
    }


@pytest.mark.parametrize("name", ["update", "rotate", "test", "resend", "delete"])
def test_a_viewer_may_change_nothing_and_a_stranger_finds_nothing(name, personas):
    webhook = hook(personas.alice, URL)
    with pytest.raises(Forbidden):
        changes(member_actor(personas.carol, "acme"), webhook.id)[name]()
    with pytest.raises(Forbidden):
        changes(platform_actor(personas.root), webhook.id)[name]()
    with pytest.raises(NotFound):
        changes(member_actor(personas.mallory, "evil"), webhook.id)[name]()
    with pytest.raises(Forbidden):
        create_webhook(actor=member_actor(personas.carol, "acme"), url=URL, events=[EVENT])


def test_a_developer_makes_webhooks_and_each_change_is_in_the_audit(personas):
    bob = member_actor(personas.bob, "acme")
    webhook = create_webhook(actor=bob, url=URL, events=[EVENT]).webhook
    update_webhook(actor=bob, webhook_id=webhook.id, events=[Event.ROLLOUT_PAUSED, EVENT])
    rotate_secret(actor=bob, webhook_id=webhook.id)
    send_test(actor=bob, webhook_id=webhook.id)
    delete_webhook(actor=bob, webhook_id=webhook.id)
    with acting_as(SYSTEM):
        rows = list(AuditEvent.objects.filter(target_id=webhook.id).order_by("sequence"))
    assert [row.verb.removeprefix("webhook.") for row in rows] == ["create", "update", "rotate", "test", "delete"]
    assert rows[1].before["events"] == ["version.ready"]
    assert rows[1].after["events"] == ["rollout.paused", "version.ready"]
    assert {row.actor_label for row in rows} == {"bob@acme.example"}


@pytest.mark.parametrize(
    ("fields", "at_fault"),
    [
        ({"url": "http://hooks.example/"}, {"url"}),
        ({"url": "https://169.254.169.254/latest"}, {"url"}),
        ({"events": []}, {"events"}),
        ({"events": ["webhook.test"]}, {"events"}),
        ({"events": ["budget.reached"]}, {"events"}),
        ({"url": "", "events": []}, {"url", "events"}),
    ],
)
def test_what_is_refused_is_named_field_by_field(fields, at_fault, personas):
    alice, webhook = member_actor(personas.alice, "acme"), hook(personas.alice, URL)
    with pytest.raises(Invalid) as made:
        create_webhook(actor=alice, **({"url": URL, "events": [EVENT]} | fields))
    with pytest.raises(Invalid) as changed:
        update_webhook(actor=alice, webhook_id=webhook.id, **fields)
    assert set(made.value.fields) == set(changed.value.fields) == at_fault


def test_a_change_of_nothing_is_refused_and_an_overlap_has_bounds(personas):
    alice, webhook = member_actor(personas.alice, "acme"), hook(personas.alice, URL)
    with pytest.raises(Invalid, match="what is to change"):
        update_webhook(actor=alice, webhook_id=webhook.id)
    for overlap in (timedelta(seconds=-1), timedelta(days=31)):
        with pytest.raises(Invalid):
            rotate_secret(actor=alice, webhook_id=webhook.id, overlap=overlap)


def test_the_webhooks_of_a_tenant_end_somewhere_and_a_deleted_one_makes_room(personas, monkeypatch):
    monkeypatch.setattr(webhooks, "MAX_WEBHOOKS", 2)
    first, _ = hook(personas.alice, URL), hook(personas.alice, URL)
    with pytest.raises(Conflict, match="at most 2"):
        hook(personas.alice, URL)
    hook(personas.mallory, URL, slug="evil")
    delete_webhook(actor=member_actor(personas.alice, "acme"), webhook_id=first.id)
    hook(personas.alice, URL)


def test_secrets_of_two_webhooks_and_two_rotations_differ(personas):
    alice = member_actor(personas.alice, "acme")
    one, other = issued(personas.alice, URL), issued(personas.alice, URL)
    again = rotate_secret(actor=alice, webhook_id=one.webhook.id)
    assert len({one.secret, other.secret, again.secret}) == 3


def test_a_viewer_may_not_look_and_a_stranger_sees_nothing(personas):
    webhook = hook(personas.alice, URL)
    tell(personas.acme)
    with pytest.raises(Forbidden):
        selectors.list_webhooks(actor=member_actor(personas.carol, "acme"))
    mallory = member_actor(personas.mallory, "evil")
    assert selectors.list_webhooks(actor=mallory) == []
    assert selectors.list_deliveries(actor=mallory, webhook_id=webhook.id) == []
    assert selectors.list_announcements(actor=mallory) == []
    with pytest.raises(NotFound):
        selectors.get_webhook(actor=mallory, webhook_id=webhook.id)


def test_every_event_but_the_test_can_be_wanted():
    assert set(MEANINGS) == set(Event) - {Event.WEBHOOK_TEST}
