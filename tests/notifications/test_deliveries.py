"""From an announcement to its receiver: signed, once, again after a failure, and never silently lost."""

import base64
import json
from datetime import timedelta
from functools import partial

import pytest
from django.core import mail
from django.utils import timezone
from telling import EVENT, SUBJECT, SYSTEM, deliver, hook, issued, let_time_pass, only_delivery, tell
from webhook_receiver import Receiver, is_accepted

from controlplane.jobs import run
from controlplane.jobs import services as job_services
from controlplane.jobs.lease import JobState
from controlplane.notifications import messages
from controlplane.notifications.models import Announcement, Delivery, Webhook
from controlplane.notifications.schedule import MAX_ATTEMPTS, MOST_OF_TENANT, Outcome
from controlplane.notifications.services import (
    claim_due,
    delete_webhook,
    resend_delivery,
    rotate_secret,
    send_test,
    settle,
    update_webhook,
)
from dataplane.contracts import failpoints
from tenants.actor import acting_as, member_actor
from tenants.errors import Conflict, NotFound
from tenants.models import AuditEvent


def accepts(receiver: Receiver, secret: str, number: int = -1) -> bool:
    got = receiver.received[number]
    return is_accepted(got.headers, got.body, secret)


def stored(webhook: Webhook) -> Webhook:
    with acting_as(SYSTEM):
        return Webhook.objects.get(pk=webhook.pk)


def test_a_receiver_gets_what_happened_signed_with_its_secret(personas, receiver):
    made = issued(personas.alice, receiver.url)
    told = tell(personas.acme)
    deliver()
    (got,) = receiver.received
    assert accepts(receiver, made.secret)
    assert got.headers["webhook-id"] == told.id
    assert abs(int(got.headers["webhook-timestamp"]) - timezone.now().timestamp()) < 300
    assert got.headers["content-type"] == "application/json"
    assert json.loads(got.body) == {
        "type": EVENT,
        "timestamp": told.at.isoformat(),
        "data": {
            "number": 3,
            "id": SUBJECT,
            "summary": "Version 3 of tiny is ready.",
            "link": "http://127.0.0.1:8000/t/acme/versions/v3",
        },
    }
    delivery = only_delivery()
    assert (delivery.state, delivery.attempts, delivery.status, delivery.error) == ("delivered", 1, 204, "")
    deliver()
    assert len(receiver.received) == 1


def test_the_job_that_ticks_is_the_one_that_delivers(personas, receiver, settings):
    settings.JOB_TICKS = {"notifications.deliver": settings.JOB_TICKS["notifications.deliver"]}
    hook(personas.alice, receiver.url)
    tell(personas.acme)
    (job_id,) = job_services.advance_ticks()
    assert run.run_job(job_id) is JobState.DONE
    assert len(receiver.received) == 1


def test_a_retry_has_the_same_id_and_body_and_a_signature_of_its_own_moment(personas, receiver):
    made = issued(personas.alice, receiver.url)
    told = tell(personas.acme)
    receiver.status = 500
    deliver()
    delivery = only_delivery()
    assert (delivery.state, delivery.attempts, delivery.error) == ("waiting", 1, "It answered 500.")
    assert delivery.next_at > timezone.now()
    deliver()
    assert len(receiver.received) == 1, "it waits before the next attempt"
    receiver.status = 200
    let_time_pass()
    deliver()
    first, second = receiver.received
    assert first.headers["webhook-id"] == second.headers["webhook-id"] == told.id
    assert first.body == second.body
    assert accepts(receiver, made.secret, 0)
    assert accepts(receiver, made.secret, 1)
    assert (only_delivery().state, only_delivery().attempts) == ("delivered", 2)


def test_while_a_secret_is_rotated_receivers_with_either_accept(personas, receiver):
    alice = member_actor(personas.alice, "acme")
    old = issued(personas.alice, receiver.url)
    new = rotate_secret(actor=alice, webhook_id=old.webhook.id)
    tell(personas.acme)
    deliver()
    assert accepts(receiver, old.secret)
    assert accepts(receiver, new.secret)
    with pytest.raises(Conflict, match="still counts"):
        rotate_secret(actor=alice, webhook_id=old.webhook.id)
    with acting_as(SYSTEM):
        Webhook.objects.update(old_salt_until=timezone.now())
    tell(personas.acme)
    deliver()
    assert not accepts(receiver, old.secret)
    assert accepts(receiver, new.secret)
    newest = rotate_secret(actor=alice, webhook_id=old.webhook.id, overlap=timedelta(0))
    tell(personas.acme)
    deliver()
    assert not accepts(receiver, new.secret)
    assert accepts(receiver, newest.secret)


def test_a_secret_is_in_no_column_and_another_key_makes_another(personas, receiver, settings):
    made = issued(personas.alice, receiver.url)
    raw = base64.b64decode(made.secret.removeprefix("whsec_"))
    with acting_as(SYSTEM):
        row = str(Webhook.objects.values().get())
        events = str(list(AuditEvent.objects.values()))
    assert len(raw) == 32
    for told in (made.secret, raw.hex(), made.secret.removeprefix("whsec_")):
        assert told not in row
        assert told not in events
    settings.PAGODA_WEBHOOK_SECRET = b"n" * 32
    tell(personas.acme)
    deliver()
    assert not accepts(receiver, made.secret)


def test_gone_switches_the_webhook_off_at_once_and_says_why(personas, receiver):
    webhook = hook(personas.alice, receiver.url)
    tell(personas.acme)
    receiver.status = 410
    deliver()
    assert (only_delivery().state, only_delivery().next_at) == ("failed", None)
    assert (stored(webhook).enabled, stored(webhook).disabled_reason) == (
        False, "It answered 410: it wants no more messages.",
    )  # fmt: skip
    with acting_as(SYSTEM):
        last = AuditEvent.objects.filter(tenant=personas.acme).order_by("-sequence").first()
    assert (last.verb, last.actor_label) == ("webhook.disable", "job:notifications.deliver")
    tell(personas.acme)
    assert only_delivery(), "nothing more is queued for it"


def test_after_its_last_attempt_a_message_has_failed(personas, receiver):
    hook(personas.alice, receiver.url)
    tell(personas.acme)
    receiver.status = 503
    for _ in range(MAX_ATTEMPTS):
        let_time_pass()
        deliver()
    assert (only_delivery().state, only_delivery().attempts) == ("failed", MAX_ATTEMPTS)
    let_time_pass()
    deliver()
    assert len(receiver.received) == MAX_ATTEMPTS


def test_a_webhook_of_which_everything_failed_for_a_day_is_switched_off_with_the_reason(personas, receiver):
    webhook = hook(personas.alice, receiver.url)
    tell(personas.acme)
    receiver.status = 500
    deliver()
    assert stored(webhook).enabled
    assert stored(webhook).failing_since is not None
    with acting_as(SYSTEM):
        Webhook.objects.update(failing_since=timezone.now() - timedelta(hours=25))
    let_time_pass()
    deliver()
    assert not stored(webhook).enabled
    assert stored(webhook).disabled_reason.startswith("No attempt got through since ")
    assert stored(webhook).disabled_reason.endswith("It answered 500.")
    on = update_webhook(actor=member_actor(personas.alice, "acme"), webhook_id=webhook.id, enabled=True)
    assert (on.enabled, on.disabled_reason, on.failing_since) == (True, "", None)


def test_one_message_that_gets_through_begins_the_day_anew(personas, receiver):
    webhook = hook(personas.alice, receiver.url)
    with acting_as(SYSTEM):
        Webhook.objects.update(failing_since=timezone.now() - timedelta(hours=25))
    tell(personas.acme)
    deliver()
    assert (stored(webhook).enabled, stored(webhook).failing_since) == (True, None)


@pytest.mark.parametrize("end", ["switched off", "deleted"])
def test_what_waits_for_a_webhook_that_ends_is_not_sent(end, personas, receiver):
    alice, webhook = member_actor(personas.alice, "acme"), hook(personas.alice, receiver.url)
    tell(personas.acme)
    if end == "deleted":
        delete_webhook(actor=alice, webhook_id=webhook.id)
    else:
        update_webhook(actor=alice, webhook_id=webhook.id, enabled=False)
    deliver()
    assert receiver.received == []
    assert (only_delivery().state, only_delivery().error) == ("failed", "The webhook is switched off.")


def test_what_was_saved_for_a_private_address_is_not_sent_once_that_is_not_allowed(personas, receiver, settings):
    hook(personas.alice, receiver.url)
    tell(personas.acme)
    settings.PAGODA_WEBHOOK_ALLOW_PRIVATE = False
    deliver()
    assert receiver.received == []
    assert only_delivery().error == "Write a URL that begins with https://."


def test_a_slow_receiver_of_one_tenant_keeps_no_other_waiting_for_its_turn(personas, receiver):
    hook(personas.alice, receiver.url)
    hook(personas.mallory, f"http://127.0.0.1:{receiver.port}/evil", slug="evil")
    for _ in range(30):
        tell(personas.evil)
    tell(personas.acme)
    deliver()
    assert [got.path for got in receiver.received].count("/hooks?from=pagoda") == 1


def test_a_backlog_of_one_tenant_leaves_room_for_others_however_long_it_is(personas, receiver):
    evil, acme = hook(personas.mallory, receiver.url, slug="evil"), hook(personas.alice, receiver.url)
    told = tell(personas.evil)
    rows = [Announcement(tenant=personas.evil, event=told.event, headline="x", link_path="/") for _ in range(1_100)]
    with acting_as(SYSTEM):
        made = Announcement.objects.bulk_create(rows)
        Delivery.objects.bulk_create(Delivery(tenant=personas.evil, announcement=each, webhook=evil) for each in made)
    tell(personas.acme)
    claimed = claim_due(actor=SYSTEM)
    assert [delivery.webhook_id for delivery in claimed].count(acme.pk) == 1
    assert len(claimed) == 1 + MOST_OF_TENANT


def test_one_that_cannot_be_sent_at_all_holds_up_no_other(personas, receiver, monkeypatch):
    def broken(delivery):
        raise ValueError("no letter can be made of this")

    monkeypatch.setattr(messages, "letter", broken)
    hook(personas.alice, receiver.url)
    tell(personas.acme, people=[personas.bob])
    deliver()
    assert len(receiver.received) == 1
    with acting_as(SYSTEM):
        ends = {each.email: (each.state, each.attempts, each.error) for each in Delivery.objects.all()}
    assert ends == {
        "": ("delivered", 1, ""),
        "bob@acme.example": ("waiting", 1, "It could not be sent, by a fault on our side."),
    }


def test_people_get_a_letter_with_a_link(personas):
    told = tell(personas.acme, people=[personas.bob])
    deliver()
    (letter,) = mail.outbox
    assert (letter.to, letter.subject) == (["bob@acme.example"], "Acme: Version 3 of tiny is ready.")
    assert "http://127.0.0.1:8000/t/acme/versions/v3" in letter.body
    assert "An uploaded version passed every check and can be deployed." in letter.body
    assert told.headline in letter.body
    assert only_delivery().state == "delivered"
    deliver()
    assert len(mail.outbox) == 1


def test_who_runs_the_platform_gets_the_link_of_the_platforms_page(personas):
    tell(personas.acme, people=[personas.root, personas.bob], platform_link_path="/platform/versions/v3")
    deliver()
    read = {letter.to[0]: "/t/acme/versions/v3" in letter.body for letter in mail.outbox}
    assert read == {"bob@acme.example": True, "root@pagoda.example": False}
    assert any("/platform/versions/v3" in letter.body for letter in mail.outbox)


def test_a_letter_that_the_mail_server_does_not_take_is_tried_again(personas, settings):
    settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
    settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", 1
    tell(personas.acme, people=[personas.bob])
    deliver()
    assert (only_delivery().state, only_delivery().attempts) == ("waiting", 1)
    assert only_delivery().error.startswith("The mail server did not take it")
    settings.EMAIL_BACKEND = "django.core.mail.backends.locmem.EmailBackend"
    let_time_pass()
    deliver()
    assert only_delivery().state == "delivered"


# --- crashes


def test_who_dies_after_the_answer_leaves_it_to_be_sent_again_with_the_same_id(personas, receiver, monkeypatch):
    hook(personas.alice, receiver.url)
    told = tell(personas.acme)
    monkeypatch.setattr(failpoints, "_armed", failpoints.parse("notifications.sent=raise"))
    monkeypatch.setattr(failpoints, "_hits", {})
    with pytest.raises(failpoints.FailpointError):
        deliver()
    assert only_delivery().state == "waiting"
    deliver()
    assert len(receiver.received) == 1, "another deliverer leaves the claim of the dead alone until it runs out"
    let_time_pass()
    deliver()
    assert [got.headers["webhook-id"] for got in receiver.received] == [told.id, told.id]
    assert (only_delivery().state, only_delivery().attempts) == ("delivered", 1)


def test_who_sleeps_past_a_claim_settles_nothing(personas, receiver):
    hook(personas.alice, receiver.url)
    tell(personas.acme)
    (late,) = claim_due(actor=SYSTEM)
    let_time_pass()
    receiver.status = 500
    deliver()
    settle(actor=SYSTEM, delivery=late, outcome=Outcome(True, 204))
    assert (only_delivery().state, only_delivery().attempts, only_delivery().status) == ("waiting", 1, 500)


# --- sent again, and tests


def test_a_failed_message_is_sent_again_with_the_same_id(personas, receiver):
    alice, webhook = member_actor(personas.alice, "acme"), hook(personas.alice, receiver.url)
    told = tell(personas.acme)
    receiver.status = 500
    for _ in range(MAX_ATTEMPTS):
        let_time_pass()
        deliver()
    receiver.status = 200
    resend_delivery(actor=alice, webhook_id=webhook.id, message_id=told.id)
    deliver()
    assert (only_delivery().state, only_delivery().attempts) == ("delivered", MAX_ATTEMPTS + 1)
    assert {got.headers["webhook-id"] for got in receiver.received} == {told.id}


def test_a_message_is_not_sent_again_while_it_is_on_its_way_or_its_webhook_is_off(personas, receiver):
    alice, webhook = member_actor(personas.alice, "acme"), hook(personas.alice, receiver.url)
    told = tell(personas.acme)
    again = partial(resend_delivery, actor=alice, webhook_id=webhook.id, message_id=told.id)
    with pytest.raises(Conflict, match="on its way"):
        again()
    (claimed,) = claim_due(actor=SYSTEM)
    with pytest.raises(Conflict, match="on its way"):
        again()
    settle(actor=SYSTEM, delivery=claimed, outcome=Outcome(False, 500, "It answered 500."))
    again()
    update_webhook(actor=alice, webhook_id=webhook.id, enabled=False)
    with pytest.raises(Conflict, match="switched off"):
        again()
    with pytest.raises(NotFound):
        resend_delivery(actor=alice, webhook_id=webhook.id, message_id="msg_other")
    with pytest.raises(NotFound):
        resend_delivery(actor=member_actor(personas.mallory, "evil"), webhook_id=webhook.id, message_id=told.id)


def test_a_test_goes_to_its_webhook_alone_and_one_at_a_time(personas, receiver):
    alice, webhook = member_actor(personas.alice, "acme"), hook(personas.alice, receiver.url)
    hook(personas.alice, f"http://127.0.0.1:{receiver.port}/other")
    send_test(actor=alice, webhook_id=webhook.id)
    with pytest.raises(Conflict, match="already"):
        send_test(actor=alice, webhook_id=webhook.id)
    deliver()
    (got,) = receiver.received
    assert (got.path, json.loads(got.body)["type"]) == ("/hooks?from=pagoda", "webhook.test")
    assert json.loads(got.body)["data"]["id"] == webhook.id
    send_test(actor=alice, webhook_id=webhook.id)
