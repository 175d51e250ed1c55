"""What an announcement reads like: the body of a webhook's message, and the letter to a person."""

import json
from urllib.parse import urljoin

from django.conf import settings
from django.core.mail import EmailMessage
from django.template.loader import render_to_string

from controlplane.notifications.events import MEANINGS, Event
from controlplane.notifications.models import Announcement, Delivery


def body(told: Announcement) -> bytes:
    """Return the JSON that a webhook is sent: the same bytes with every attempt."""
    data = {**told.data, "id": told.subject_id, "summary": told.headline, "link": link(told)}
    message = {"type": told.event, "timestamp": told.at.isoformat(), "data": data}
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()


def letter(delivery: Delivery) -> EmailMessage:
    """Return the letter of a delivery to a person. It comes with its announcement and that with its tenant."""
    told = delivery.announcement
    where = urljoin(settings.PAGODA_CONSOLE_URL, delivery.link_path or told.link_path)
    words = {"told": told, "meaning": MEANINGS.get(Event(told.event), ""), "link": where}
    text = render_to_string("notifications/letter.txt", words)
    return EmailMessage(subject=f"{told.tenant.name}: {told.headline}", body=text, to=[delivery.email])


def link(told: Announcement) -> str:
    """Return the console's page of what happened, as a whole address."""
    return urljoin(settings.PAGODA_CONSOLE_URL, told.link_path)
