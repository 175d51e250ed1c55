"""How far the catalog is behind what was committed, for those who run the platform."""

from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count, Min

from controlplane.deployments.models import CatalogHead
from tenants.actor import Actor, reading_as, require
from tenants.models import OutboxEvent
from tenants.roles import Permission


@dataclass(frozen=True, slots=True)
class Publishing:
    """The catalog and what waits to be in it.

    Args:
        number: the latest catalog's; 0 before the first.
        waiting: changes that no catalog has yet.
        waiting_since: when the oldest of them was committed.
    """

    number: int
    waiting: int
    waiting_since: datetime | None


def publishing(*, actor: Actor) -> Publishing:
    """Return how far the publisher is behind."""
    require(actor, Permission.PLATFORM_FLEET)
    with reading_as(actor):
        number = CatalogHead.objects.filter(pk=1).values_list("number", flat=True).first()
        waiting = OutboxEvent.objects.filter(published_at=None)
        counted = waiting.aggregate(waiting=Count("pk"), waiting_since=Min("created_at"))
    return Publishing(number=number or 0, **counted)
