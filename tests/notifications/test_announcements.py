"""What is announced shares the fate of the change that it tells, and reaches exactly those who want it."""

import secrets
from datetime import timedelta

import pytest

from controlplane.notifications.events import Event
from controlplane.notifications.models import Announcement, Delivery, Webhook
from controlplane.notifications.services import announce
from controlplane.notifications.services.announcements import MOST_LETTERS_AN_HOUR
from tenants.actor import acting_as, member_actor, system_actor

SYSTEM = system_actor("tests")


def webhook(tenant, *events, **fields):
    with acting_as(SYSTEM):
        return Webhook.objects.create(
            tenant=tenant, url="https://hooks.example/in", events=list(events), salt=secrets.token_hex(16), **fields
        )


def tell(tenant, event=Event.VERSION_READY, **more):
    words = {"headline": "Version 3 of tiny is ready.", "link_path": "/t/acme/versions/ver_1", "data": {"number": 3}}
    return announce(tenant=tenant, event=event, subject_id="ver_1", **(words | more))


def targets(told):
    with acting_as(SYSTEM):
        return {each.email or each.webhook_id for each in Delivery.objects.filter(announcement=told)}


def test_an_announcement_reaches_the_webhooks_that_want_it_and_nobody_elses(personas):
    wanting = webhook(personas.acme, "version.ready", "version.rejected")
    webhook(personas.acme, "version.rejected")
    webhook(personas.acme, "version.ready", disabled_at="2026-01-01T00:00Z", disabled_reason="Switched off.")
    webhook(personas.acme, "version.ready", deleted_at="2026-01-01T00:00Z")
    webhook(personas.evil, "version.ready")
    with acting_as(member_actor(personas.alice, "acme")):
        told = tell(personas.acme)
    assert targets(told) == {wanting.id}


def test_people_are_written_to_once_each_and_not_when_their_account_has_ended(personas):
    personas.bob.is_active = False
    people = [personas.alice, personas.root, personas.alice, personas.bob]
    with acting_as(SYSTEM):
        told = tell(personas.acme, people=people)
    assert targets(told) == {"alice@acme.example", "root@pagoda.example"}


def test_a_person_is_written_to_of_the_same_only_so_often_an_hour(personas):
    """Who may pause and resume a rollout, all day and by a script, fills no approver's mailbox."""
    people, alice, root = [personas.alice, personas.root], "alice@acme.example", "root@pagoda.example"
    hook = webhook(personas.acme, "version.ready")
    with acting_as(SYSTEM):
        early = [tell(personas.acme, people=[personas.alice]) for _ in range(MOST_LETTERS_AN_HOUR)]
        often = tell(personas.acme, people=people)
        other = tell(personas.acme, event=Event.VERSION_REJECTED, people=people)
        hour_ago = early[0].at - timedelta(hours=1)
        Announcement.objects.filter(pk__in=[told.pk for told in early]).update(at=hour_ago)
        later = tell(personas.acme, people=people)
    assert targets(often) == {hook.id, root}
    assert targets(other) == {alice, root}, "of something else they hear"
    assert targets(later) == {hook.id, alice, root}


def test_without_mail_nobody_is_written_to_and_the_announcement_is_there(personas, settings):
    settings.PAGODA_SENDS_MAIL = False
    with acting_as(SYSTEM):
        told = tell(personas.acme, people=[personas.alice])
        assert Announcement.objects.filter(pk=told.pk).exists()
    assert targets(told) == set()


def test_what_is_rolled_back_was_never_announced(personas):
    webhook(personas.acme, "version.ready")

    def change_that_fails():
        with acting_as(SYSTEM):
            tell(personas.acme, people=[personas.alice])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        change_that_fails()
    with acting_as(SYSTEM):
        assert (Announcement.objects.count(), Delivery.objects.count()) == (0, 0)


def test_an_announcement_needs_a_known_event_and_an_open_transaction(committed, personas):
    with pytest.raises(ValueError, match="not a valid Event"), acting_as(SYSTEM):
        tell(personas.acme, event="rollout.exploded")
    with pytest.raises(RuntimeError, match="transaction"):
        tell(personas.acme)


def test_a_headline_is_one_line(personas):
    with acting_as(SYSTEM):
        assert tell(personas.acme, headline="One\r\nBcc: all  two").headline == "One Bcc: all two"
