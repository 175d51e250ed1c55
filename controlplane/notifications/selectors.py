"""What people see of webhooks: where events go, what became of each, and what was announced at all."""

from django.db.models import Count, Q

from controlplane.notifications.models import Announcement, Delivery, Webhook
from tenants.actor import Actor, reading_as, require
from tenants.errors import NotFound
from tenants.roles import Permission


def list_webhooks(*, actor: Actor) -> list[Webhook]:
    """Return the webhooks of the actor's tenant, newest first."""
    require(actor, Permission.WEBHOOKS_READ)
    with reading_as(actor):
        return list(Webhook.objects.for_tenant(actor.tenant).filter(deleted_at=None).order_by("-id"))


def get_webhook(*, actor: Actor, webhook_id: str) -> Webhook:
    """Return one webhook, with its maker.

    Raises:
        NotFound: there is no such webhook.
    """
    require(actor, Permission.WEBHOOKS_READ)
    with reading_as(actor):
        webhooks = Webhook.objects.for_tenant(actor.tenant).filter(deleted_at=None, pk=webhook_id)
        webhook = webhooks.select_related("created_by").first()
    if webhook is None:
        raise NotFound("There is no such webhook.")
    return webhook


def list_deliveries(*, actor: Actor, webhook_id: str, limit: int = 50) -> list[Delivery]:
    """Return what was sent to a webhook, or is to be, with what it tells, newest first."""
    require(actor, Permission.WEBHOOKS_READ)
    with reading_as(actor):
        deliveries = Delivery.objects.for_tenant(actor.tenant).filter(webhook_id=webhook_id)
        return list(deliveries.select_related("announcement").order_by("-id")[:limit])


def list_announcements(*, actor: Actor, limit: int = 20) -> list[Announcement]:
    """Return what happened last, newest first, with ``num_webhooks`` and ``num_letters``: how many are told."""
    require(actor, Permission.WEBHOOKS_READ)
    told = Announcement.objects.for_tenant(actor.tenant).annotate(
        num_webhooks=Count("deliveries", filter=Q(deliveries__webhook__isnull=False)),
        num_letters=Count("deliveries", filter=~Q(deliveries__email="") & Q(deliveries__isnull=False)),
    )
    with reading_as(actor):
        return list(told.order_by("-at")[:limit])
