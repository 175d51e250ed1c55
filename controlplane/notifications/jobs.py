"""The job that delivers: rows are the queue, and each is sent outside of transactions, at least once.

Who dies between the receiver's answer and the commit leaves a claim that runs out; the message is then sent again, with
the same id, by which its receiver knows it.
"""

import asyncio
from smtplib import SMTPException

import structlog
from django.conf import settings
from django.utils import timezone

from controlplane.jobs.services import Lease
from controlplane.notifications import endpoints, messages, secrets, sender, services, signing
from controlplane.notifications.models import Delivery, Webhook
from controlplane.notifications.schedule import Outcome
from dataplane.contracts import failpoints

_log = structlog.get_logger(__name__)


def deliver(lease: Lease) -> None:
    """Send what is due, all of it at once, and write what came of each."""
    claimed = services.claim_due(actor=lease.actor)
    if not claimed:
        return
    outcomes = asyncio.run(_attempt_all(claimed))
    failpoints.hit("notifications.sent")
    for delivery, outcome in zip(claimed, outcomes, strict=True):
        services.settle(actor=lease.actor, delivery=delivery, outcome=outcome)


async def _attempt_all(claimed: list[Delivery]) -> list[Outcome]:
    return await asyncio.gather(*(_attempt(delivery) for delivery in claimed))


async def _attempt(delivery: Delivery) -> Outcome:
    try:
        if delivery.webhook is None:
            return await asyncio.to_thread(_write_to, delivery)
        return await _post_to(delivery.webhook, delivery)
    except Exception:  # noqa: BLE001
        # One that nobody foresaw would take with it all that is sent beside it, and come again before the others.
        _log.exception("delivery stumbled", delivery_id=delivery.pk)
        return Outcome(False, error="It could not be sent, by a fault on our side.")


async def _post_to(webhook: Webhook, delivery: Delivery) -> Outcome:
    if not webhook.enabled:
        return Outcome(False, error="The webhook is switched off.", final=True)
    allow_private = settings.PAGODA_WEBHOOK_ALLOW_PRIVATE
    try:
        endpoint = endpoints.read(webhook.url, allow_private=allow_private)
    except endpoints.EndpointError as error:  # saved under another setting
        return Outcome(False, error=str(error))
    now, body = timezone.now(), messages.body(delivery.announcement)
    signed = signing.headers(
        secrets.signing_secrets(webhook, now),
        message_id=delivery.announcement_id,
        unix_s=int(now.timestamp()),
        body=body,
    )
    headers = {**signed, "content-type": "application/json", "user-agent": "Pagoda-Webhooks/1"}
    return await sender.post(endpoint, headers, body, allow_private=allow_private)


def _write_to(delivery: Delivery) -> Outcome:
    try:
        messages.letter(delivery).send()
    except (SMTPException, OSError) as error:
        return Outcome(False, error=f"The mail server did not take it: {error}")
    return Outcome(True)
