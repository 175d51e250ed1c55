"""What an announcement reads like: the body of a webhook's message, and the letter to a person."""

import json
from urllib.parse import urljoin

from django.conf import settings
from django.core.mail import EmailMessage
from django.template.loader import render_to_string

from controlplane.notifications.events import MEANINGS, Event
from controlplane.notifications.models import Announcement


def body(told: Announcement) -> bytes:
    """Return the JSON that a webhook is sent: the same bytes with every attempt."""
    data = {**told.data, "id": told.subject_id, "summary": told.headline, "link": link(told)}
    message = {"type": told.event, "timestamp": told.at.isoformat(), "data": data}
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()


def letter(told: Announcement, address: str) -> EmailMessage:
    """Return the letter to ``address``. The announcement comes with its tenant."""
    words = {"told": told, "meaning": MEANINGS.get(Event(told.event), ""), "link": link(told)}
    text = render_to_string("notifications/letter.txt", words)
    return EmailMessage(subject=f"{told.tenant.name}: {told.headline}", body=text, to=[address])


def link(told: Announcement) -> str:
    """Return the console's page of what happened, as a whole address."""
    return urljoin(settings.PAGODA_CONSOLE_URL, told.link_path)
