"""Webhooks are made, changed, rotated with an overlap, tried and deleted. A secret is returned once, stored never."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta

from django.conf import settings
from django.utils import timezone

from controlplane.notifications import endpoints, secrets, signing
from controlplane.notifications.events import MEANINGS, Event
from controlplane.notifications.models import Announcement, Delivery, DeliveryState, Webhook
from tenants import audit
from tenants.actor import Actor, acting_as, require
from tenants.chain import Json
from tenants.errors import Conflict, Invalid, NotFound
from tenants.models import Tenant
from tenants.roles import Permission

MAX_WEBHOOKS = 20
"""Of a tenant: each of its events is sent to every one that wants it."""
DEFAULT_OVERLAP = timedelta(hours=24)
MAX_OVERLAP = timedelta(days=30)


@dataclass(frozen=True, slots=True)
class IssuedWebhook:
    """A webhook and the text of its secret, which is not shown again."""

    webhook: Webhook
    secret: str


def create_webhook(*, actor: Actor, url: str, events: Collection[str]) -> IssuedWebhook:
    """Make a webhook for the actor's tenant.

    Args:
        actor: who makes it.
        url: where messages go: https, on the public internet.
        events: what it is sent; of :data:`controlplane.notifications.events.MEANINGS`.

    Raises:
        Forbidden: the actor may not make webhooks.
        Invalid: the URL or an event is refused.
        Conflict: the tenant has as many as it may.
    """
    require(actor, Permission.WEBHOOKS_WRITE)
    _check(url, events)
    with acting_as(actor):
        # Webhooks made at the same moment may pass together; what counts is that their number ends somewhere.
        if Webhook.objects.for_tenant(actor.tenant).filter(deleted_at=None).count() >= MAX_WEBHOOKS:
            raise Conflict(f"A tenant has at most {MAX_WEBHOOKS} webhooks. Delete those that nobody uses any more.")
        webhook = Webhook.objects.create(
            tenant=actor.tenant,
            url=url,
            events=_ordered(events),
            salt=secrets.new_salt(),
            created_by=actor.user,
        )
        audit.record(actor=actor, verb="webhook.create", target=webhook, after=_described(webhook))
    return _issued(webhook)


def update_webhook(
    *,
    actor: Actor,
    webhook_id: str,
    url: str | None = None,
    events: Collection[str] | None = None,
    enabled: bool | None = None,
) -> Webhook:
    """Change a webhook; None leaves as it is. What waits to be delivered goes to the new address.

    Raises:
        Forbidden: the actor may not change webhooks.
        NotFound: there is no such webhook.
        Invalid: the URL or an event is refused, or nothing is to change.
    """
    require(actor, Permission.WEBHOOKS_WRITE)
    if url is None and events is None and enabled is None:
        raise Invalid("Say what is to change: url, events or enabled.")
    _check(url, events)
    with acting_as(actor):
        webhook = locked(actor.tenant, webhook_id)
        before = _described(webhook)
        if url is not None and url != webhook.url:
            webhook.url, webhook.failing_since = url, None
        if events is not None:
            webhook.events = _ordered(events)
        if enabled is True and not webhook.enabled:
            webhook.disabled_at, webhook.disabled_reason, webhook.failing_since = None, "", None
        if enabled is False and webhook.enabled:
            webhook.disabled_at, webhook.disabled_reason = timezone.now(), f"Switched off by {actor.label}."
        webhook.save()
        audit.record(actor=actor, verb="webhook.update", target=webhook, before=before, after=_described(webhook))
    return webhook


def rotate_secret(*, actor: Actor, webhook_id: str, overlap: timedelta = DEFAULT_OVERLAP) -> IssuedWebhook:
    """Give a webhook a new secret. For ``overlap`` messages are signed with the old one too, then with the new alone.

    Raises:
        Forbidden: the actor may not change webhooks.
        NotFound: there is no such webhook.
        Invalid: the overlap is negative or longer than 30 days.
        Conflict: the secret before still counts; an overlap of zero ends it.
    """
    require(actor, Permission.WEBHOOKS_WRITE)
    if not timedelta(0) <= overlap <= MAX_OVERLAP:
        reason = f"An overlap lasts from zero to {MAX_OVERLAP.days} days."
        raise Invalid(reason, fields={"overlap": reason})
    now = timezone.now()
    with acting_as(actor):
        # Race: rotated twice at once. The lock puts them in line; the second hears that one is under way.
        webhook = locked(actor.tenant, webhook_id)
        if overlap and webhook.old_salt_until is not None and webhook.old_salt_until > now:
            raise Conflict("The secret before still counts. Wait until it ends, or rotate without overlap.")
        webhook.old_salt, webhook.old_salt_until = (webhook.salt, now + overlap) if overlap else ("", None)
        webhook.salt = secrets.new_salt()
        webhook.save(update_fields=["salt", "old_salt", "old_salt_until"])
        after: dict[str, Json] = {"overlap_s": int(overlap.total_seconds())}
        audit.record(actor=actor, verb="webhook.rotate", target=webhook, after=after)
    return _issued(webhook)


def delete_webhook(*, actor: Actor, webhook_id: str) -> None:
    """End a webhook for good. What waits to be delivered to it is not sent any more.

    Raises:
        Forbidden: the actor may not change webhooks.
        NotFound: there is no such webhook.
    """
    require(actor, Permission.WEBHOOKS_WRITE)
    with acting_as(actor):
        webhook = locked(actor.tenant, webhook_id)
        webhook.deleted_at = timezone.now()
        webhook.save(update_fields=["deleted_at"])
        audit.record(actor=actor, verb="webhook.delete", target=webhook, before=_described(webhook))


def send_test(*, actor: Actor, webhook_id: str) -> Announcement:
    """Send a message to this webhook alone, so that its receiver can be tried.

    Raises:
        Forbidden: the actor may not change webhooks.
        NotFound: there is no such webhook.
        Conflict: it is switched off, or a test waits to be delivered already.
    """
    require(actor, Permission.WEBHOOKS_WRITE)
    with acting_as(actor):
        webhook = locked(actor.tenant, webhook_id)
        if not webhook.enabled:
            raise Conflict("This webhook is switched off. Switch it on first.")
        waiting = Delivery.objects.for_tenant(actor.tenant).filter(webhook=webhook, state=DeliveryState.WAITING)
        if waiting.filter(announcement__event=Event.WEBHOOK_TEST).exists():
            raise Conflict("A test waits to be delivered already. Look at what came of it.")
        told = Announcement.objects.create(
            tenant=actor.tenant,
            event=Event.WEBHOOK_TEST,
            subject_id=webhook.pk,
            headline=f"A test that {actor.label} asked for.",
            link_path=f"/t/{actor.tenant.slug}/webhooks/{webhook.pk}",
        )
        Delivery.objects.create(tenant=actor.tenant, announcement=told, webhook=webhook)
        audit.record(actor=actor, verb="webhook.test", target=webhook)
    return told


def locked(tenant: Tenant, webhook_id: str) -> Webhook:
    """Lock a webhook of ``tenant`` in the open transaction.

    Raises:
        NotFound: there is no such webhook.
    """
    webhooks = Webhook.objects.for_tenant(tenant).filter(deleted_at=None)
    webhook = webhooks.select_for_update(no_key=True).filter(pk=webhook_id).first()
    if webhook is None:
        raise NotFound("There is no such webhook.")
    return webhook


def _check(url: str | None, events: Collection[str] | None) -> None:
    faults: dict[str, str] = {}
    if url is not None:
        try:
            endpoints.read(url, allow_private=settings.PAGODA_WEBHOOK_ALLOW_PRIVATE)
        except endpoints.EndpointError as error:
            faults["url"] = str(error)
    if events is not None and (not events or not set(events) <= set(MEANINGS)):
        faults["events"] = f"Choose at least one of {', '.join(MEANINGS)}."
    if faults:
        raise Invalid(" ".join(faults.values()), fields=faults)


def _ordered(events: Collection[str]) -> list[str]:
    return [event.value for event in MEANINGS if event in events]


def _issued(webhook: Webhook) -> IssuedWebhook:
    return IssuedWebhook(webhook, signing.secret_text(secrets.current_secret(webhook)))


def _described(webhook: Webhook) -> dict[str, Json]:
    return {"url": webhook.url, "events": list(webhook.events), "enabled": webhook.enabled}
