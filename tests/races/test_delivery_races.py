"""Deliverers at once, on real PostgreSQL, with a real receiver that counts."""

from functools import partial

import pytest
from racing import at_once
from telling import SYSTEM, deliver, hook, tell
from webhook_receiver import receiving

from controlplane.notifications.models import Delivery
from controlplane.notifications.services import resend_delivery
from tenants.actor import acting_as, member_actor


@pytest.fixture
def receiver(settings):
    settings.PAGODA_WEBHOOK_ALLOW_PRIVATE = True
    with receiving() as told:
        yield told


def test_of_ten_deliverers_at_once_one_sends(committed, personas, receiver):
    hook(personas.alice, receiver.url)
    for _ in range(3):
        tell(personas.acme)
    at_once(*[deliver] * 10)
    ids = [got.headers["webhook-id"] for got in receiver.received]
    assert len(ids) == len(set(ids)) == 3
    with acting_as(SYSTEM):
        assert set(Delivery.objects.values_list("state", "attempts", "turn")) == {("delivered", 1, 1)}


def test_of_many_who_send_a_message_again_at_once_one_does(committed, personas, receiver):
    alice, webhook = member_actor(personas.alice, "acme"), hook(personas.alice, receiver.url)
    told = tell(personas.acme)
    deliver()
    answers = at_once(*[partial(resend_delivery, actor=alice, webhook_id=webhook.id, message_id=told.id)] * 8)
    assert sum(isinstance(answer, Delivery) for answer in answers) == 1
    deliver()
    assert len(receiver.received) == 2
