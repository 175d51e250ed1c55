"""What happened is announced in the transaction that made it happen, and delivered after it was committed."""

from collections.abc import Mapping, Sequence
from datetime import timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import Count

from controlplane.notifications.events import Event
from controlplane.notifications.models import HEADLINE_MAX_CHARS, Announcement, Delivery, Webhook
from tenants.chain import Json
from tenants.models import Tenant, User

MOST_LETTERS_AN_HOUR = 3
"""To one person of one event of one subject; who holds a rollout can pause and resume it all day."""


def announce(
    *,
    tenant: Tenant,
    event: str,
    subject_id: str,
    data: Mapping[str, Json],
    headline: str,
    link_path: str,
    people: Sequence[User] = (),
    platform_link_path: str = "",
) -> Announcement:
    """Tell the webhooks of ``tenant`` that want the event, and ``people`` by e-mail, once the transaction is committed.

    It only adds rows and locks none, so it may stand anywhere before the audit row. Where no mail is sent
    (``settings.PAGODA_SENDS_MAIL``) people are not written to, nor is who was
    written to of the same :data:`MOST_LETTERS_AN_HOUR` times of late; the announcement is there all the same.

    Args:
        tenant: whose event it is.
        event: one of :class:`controlplane.notifications.events.Event`.
        subject_id: the public id of what it happened to.
        data: more that a receiver may need; it reads it beside ``id``, ``summary`` and ``link``.
        headline: one sentence that says it to a person.
        link_path: the console's page of it, such as ``/t/acme/rollouts/rol_...``.
        people: who is written to; platform admins may be among them.
        platform_link_path: the page for those: they are no members, and find none at ``link_path``.

    Raises:
        ValueError: there is no such event.
        RuntimeError: no transaction is open: what is announced could be rolled back.
    """
    if not transaction.get_connection().in_atomic_block:
        raise RuntimeError("an announcement is written in the transaction of what it tells")
    told = Announcement.objects.create(
        tenant=tenant,
        event=Event(event).value,
        subject_id=subject_id,
        headline=" ".join(headline.split())[:HEADLINE_MAX_CHARS],
        link_path=link_path,
        data=dict(data),
    )
    wanting = Webhook.objects.for_tenant(tenant).filter(
        events__contains=[told.event], disabled_at=None, deleted_at=None
    )
    # Race: a webhook switched off or deleted at this moment. It gets a row all the same, which its deliverer ends.
    to_webhooks = [Delivery(tenant=tenant, announcement=told, webhook=webhook) for webhook in wanting.order_by("pk")]
    readers = {person.email: person for person in people if person.is_active} if settings.PAGODA_SENDS_MAIL else {}
    for address in _told_enough(told) if readers else ():
        readers.pop(address, None)
    to_people = [
        Delivery(
            tenant=tenant, announcement=told, email=address,
            link_path=platform_link_path if person.is_platform_admin else "",
        )
        for address, person in sorted(readers.items())
    ]  # fmt: skip
    Delivery.objects.bulk_create(to_webhooks + to_people)
    return told


def _told_enough(told: Announcement) -> list[str]:
    """Return the addresses that were written to of the same often enough of late: a loop must fill nobody's mailbox."""
    same = Delivery.objects.filter(
        announcement__tenant_id=told.tenant_id,
        announcement__at__gte=told.at - timedelta(hours=1),
        announcement__event=told.event,
        announcement__subject_id=told.subject_id,
    )
    often = (
        same.exclude(email="").values("email").annotate(letters=Count("pk")).filter(letters__gte=MOST_LETTERS_AN_HOUR)
    )
    return list(often.values_list("email", flat=True))
