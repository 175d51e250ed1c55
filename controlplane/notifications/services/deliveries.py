"""The steps of a delivery, each one transaction: claimed by one deliverer, settled under that claim, sent again."""

import random
from datetime import datetime, timedelta

import structlog
from django.db.models import F, Q, Window
from django.db.models.functions import Now, RowNumber
from django.utils import timezone

from controlplane.notifications import schedule
from controlplane.notifications.models import REASON_MAX_CHARS, Delivery, DeliveryState, Webhook
from controlplane.notifications.schedule import MOST_AT_ONCE, MOST_OF_TENANT, Outcome
from controlplane.notifications.services.webhooks import locked
from tenants import audit
from tenants.actor import Actor, acting_as, require
from tenants.errors import Conflict, NotFound
from tenants.roles import Permission

CLAIM = timedelta(seconds=60)
"""How long a deliverer has; longer than an attempt may take. Who died in it is followed by another after it."""
_log = structlog.get_logger(__name__)


def claim_due(*, actor: Actor) -> list[Delivery]:
    """Take the deliveries to send now, with their announcements and webhooks; nobody else sends them meanwhile."""
    with acting_as(actor):
        free = Q(claimed_until=None) | Q(claimed_until__lte=Now())
        due = Delivery.objects.filter(free, state=DeliveryState.WAITING, next_at__lte=Now()).order_by("next_at", "id")
        # Counted over all that is due: of a part, one tenant's backlog could be the whole.
        place = Window(RowNumber(), partition_by="tenant_id", order_by=["next_at", "id"])
        first = due.annotate(place=place).filter(place__lte=MOST_OF_TENANT)
        chosen = list(first.values_list("id", flat=True)[:MOST_AT_ONCE])
        related = due.filter(id__in=chosen).select_related("announcement__tenant", "webhook")
        # Race: several deliverers at once. Each takes the rows that no other has locked, and finds those claimed that
        # another has just committed.
        claimed = list(related.select_for_update(of=("self",), skip_locked=True, no_key=True))
        rows = Delivery.objects.filter(id__in=[delivery.pk for delivery in claimed])
        rows.update(turn=F("turn") + 1, claimed_until=Now() + CLAIM)
        for delivery in claimed:
            delivery.turn += 1
    return claimed


def settle(*, actor: Actor, delivery: Delivery, outcome: Outcome) -> None:
    """Write what came of the attempt that ``delivery`` was claimed for; nothing, where the claim has run out."""
    with acting_as(actor):
        webhook = _locked_webhook(delivery)
        rows = Delivery.objects.select_for_update(no_key=True).select_related("announcement")
        # Race: a deliverer that slept past its claim against the one that has the row now: the turn tells them apart.
        held = rows.filter(pk=delivery.pk, turn=delivery.turn, state=DeliveryState.WAITING).first()
        if held is None:
            _log.warning("delivery claim lost", delivery_id=delivery.pk)
            return
        now = timezone.now()
        _apply(held, outcome, now)
        held.save()
        if webhook is not None:
            _note(webhook, outcome, now, actor)


def resend_delivery(*, actor: Actor, webhook_id: str, message_id: str) -> Delivery:
    """Send a message once more, now: one that failed, waits for its next attempt, or was delivered.

    It has the same id, so a receiver that has it can tell.

    Raises:
        Forbidden: the actor may not change webhooks.
        NotFound: there is no such webhook, or it was never sent this message.
        Conflict: the webhook is switched off, or the message is being sent at this moment.
    """
    require(actor, Permission.WEBHOOKS_WRITE)
    with acting_as(actor):
        webhook = locked(actor.tenant, webhook_id)
        rows = Delivery.objects.for_tenant(actor.tenant).select_for_update(no_key=True)
        delivery = rows.filter(webhook=webhook, announcement_id=message_id).first()
        if delivery is None:
            raise NotFound("There is no such message of this webhook.")
        if not webhook.enabled:
            raise Conflict("This webhook is switched off. Switch it on first.")
        if _is_on_its_way(delivery):
            raise Conflict("This message is on its way. Wait a few seconds for what comes of it.")
        before = delivery.state
        delivery.state, delivery.next_at, delivery.delivered_at = DeliveryState.WAITING, timezone.now(), None
        delivery.save()
        audit.record(
            actor=actor, verb="webhook.resend", target=webhook,
            before={"state": before}, after={"state": delivery.state, "message_id": message_id},
        )  # fmt: skip
    return delivery


def _is_on_its_way(delivery: Delivery) -> bool:
    now = timezone.now()
    if delivery.claimed_until is not None and delivery.claimed_until > now:
        return True
    return delivery.next_at is not None and delivery.next_at <= now


def _locked_webhook(delivery: Delivery) -> Webhook | None:
    """Lock the webhook before its delivery: in the order of every service that takes both."""
    if delivery.webhook is None:
        return None
    return Webhook.objects.select_for_update(no_key=True).get(pk=delivery.webhook.pk)


def _apply(delivery: Delivery, outcome: Outcome, now: datetime) -> None:
    delivery.attempts += 1
    delivery.claimed_until, delivery.attempted_at = None, now
    delivery.status, delivery.error = outcome.status, outcome.error[:REASON_MAX_CHARS]
    if outcome.delivered:
        delivery.state, delivery.next_at, delivery.delivered_at = DeliveryState.DELIVERED, None, now
        return
    pause = None if outcome.final else schedule.pause(delivery.attempts, random.random())  # noqa: S311 - spreads retries
    if pause is None:
        delivery.state, delivery.next_at = DeliveryState.FAILED, None
    else:
        delivery.next_at = now + pause


def _note(webhook: Webhook, outcome: Outcome, now: datetime, actor: Actor) -> None:
    """Write on the webhook how it fares, and switch it off where nothing gets through to it."""
    if outcome.delivered:
        webhook.delivered_at, webhook.failing_since = now, None
    elif not webhook.enabled:
        return
    elif outcome.gone or schedule.has_failed_for_good(webhook.failing_since, now):
        webhook.disabled_at, webhook.disabled_reason = now, _reason(webhook, outcome)
    else:
        webhook.failing_since = webhook.failing_since or now
    webhook.save(update_fields=["delivered_at", "failing_since", "disabled_at", "disabled_reason"])
    if webhook.disabled_at == now:
        audit.record(
            actor=actor, verb="webhook.disable", target=webhook, tenant=webhook.tenant,
            before={"enabled": True}, after={"enabled": False, "reason": webhook.disabled_reason},
        )  # fmt: skip


def _reason(webhook: Webhook, outcome: Outcome) -> str:
    if outcome.gone or webhook.failing_since is None:
        return outcome.error
    return f"No attempt got through since {webhook.failing_since:%Y-%m-%d %H:%M} UTC. {outcome.error}"[
        :REASON_MAX_CHARS
    ]
