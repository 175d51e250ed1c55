"""The outbox: what the data plane must hear of, committed with the change that made it true.

A trigger sends a NOTIFY on :data:`CHANNEL` for each insert, so that a publisher wakes at once; one that was away finds
the rows all the same. Ids are not in the order of commits: a publisher takes what is unpublished, never "after id N".
"""

from collections.abc import Collection
from enum import StrEnum

from django.utils import timezone

from tenants.chain import Json
from tenants.models import OutboxEvent, Tenant

CHANNEL = "pagoda_outbox"


class Topic(StrEnum):
    """What has changed."""

    TENANT = "tenant"
    KEY = "key"
    QUOTA = "quota"
    DEPLOYMENT = "deployment"
    GRANT = "grant"
    VERSION = "version"


def emit(topic: Topic, *, tenant: Tenant | None, **ids: Json) -> None:
    """Write an event in the open transaction. It carries ids only: readers look up what is true by then."""
    OutboxEvent.objects.create(topic=topic.value, tenant=tenant, payload=ids)


def unpublished(limit: int) -> list[OutboxEvent]:
    """Take up to ``limit`` waiting events, oldest first, that no other publisher holds; locked until the commit."""
    rows = OutboxEvent.objects.select_for_update(skip_locked=True).filter(published_at__isnull=True)
    return list(rows.order_by("id")[:limit])


def mark_published(event_ids: Collection[int]) -> None:
    """Say that the data plane has heard of these events."""
    OutboxEvent.objects.filter(id__in=event_ids).update(published_at=timezone.now())
