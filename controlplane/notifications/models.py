"""Webhooks, announcements and their deliveries."""

from urllib.parse import urlsplit

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q
from django.utils import timezone

from controlplane.notifications.events import MEANINGS, Event
from dataplane.contracts.ids import Kind
from tenants.ids import ID_MAX_CHARS, PublicId
from tenants.managers import TenantManager
from tenants.models import Tenant, User

URL_MAX_CHARS = 1_000
REASON_MAX_CHARS = 300
HEADLINE_MAX_CHARS = 300


class Webhook(models.Model):
    """An address of a tenant that events are sent to. What the secret is derived from: :mod:`.secrets`.

    ``delivered_at`` is when it last took a message, ``failing_since`` the first attempt after that which failed.
    ``deleted_at`` is a tombstone, so that nobody's announcement fails for a webhook that ends at the same moment.
    """

    id = PublicId(Kind.WEBHOOK)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    url = models.CharField(max_length=URL_MAX_CHARS)
    events = ArrayField(models.CharField(max_length=40))
    salt = models.CharField(max_length=32)
    old_salt = models.CharField(max_length=32, blank=True, default="")
    old_salt_until = models.DateTimeField(null=True, blank=True)
    created_by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+", null=True)
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    disabled_at = models.DateTimeField(null=True, blank=True)
    disabled_reason = models.CharField(max_length=REASON_MAX_CHARS, blank=True, default="")
    delivered_at = models.DateTimeField(null=True, blank=True)
    failing_since = models.DateTimeField(null=True, blank=True)
    deleted_at = models.DateTimeField(null=True, blank=True)

    objects = TenantManager()

    class Meta:
        constraints = [
            models.CheckConstraint(
                name="webhook_events_known",
                condition=Q(events__contained_by=[event.value for event in MEANINGS]) & Q(events__len__gt=0),
            ),
            models.CheckConstraint(name="webhook_salt_form", condition=Q(salt__regex=r"^[0-9a-f]{32}$")),
            models.CheckConstraint(
                name="webhook_old_salt_ends",
                condition=Q(old_salt="", old_salt_until__isnull=True)
                | Q(old_salt__regex=r"^[0-9a-f]{32}$", old_salt_until__isnull=False),
            ),
            models.CheckConstraint(
                name="webhook_disabled_for_a_reason",
                condition=Q(disabled_at__isnull=True, disabled_reason="")
                | (Q(disabled_at__isnull=False) & ~Q(disabled_reason="")),
            ),
        ]

    def __str__(self) -> str:
        return self.url

    @property
    def host(self) -> str:
        """The host in the URL: what people call the webhook by."""
        return urlsplit(self.url).netloc

    @property
    def enabled(self) -> bool:
        """Whether anything is sent to it."""
        return self.disabled_at is None and self.deleted_at is None


class Announcement(models.Model):
    """Something that happened, as it is told. Its id is the message's: the same with every attempt to deliver it."""

    id = PublicId(Kind.MESSAGE)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    event = models.CharField(max_length=40, choices=[(event.value, event.value) for event in Event])
    subject_id = models.CharField(max_length=ID_MAX_CHARS)
    headline = models.CharField(max_length=HEADLINE_MAX_CHARS)
    link_path = models.CharField(max_length=300)
    data = models.JSONField(default=dict)
    at = models.DateTimeField(default=timezone.now, editable=False)

    objects = TenantManager()

    class Meta:
        indexes = [models.Index(name="announcement_by_time", fields=["tenant", "-at"])]
        constraints = [
            models.CheckConstraint(
                name="announcement_event_known", condition=Q(event__in=[event.value for event in Event])
            ),
        ]

    def __str__(self) -> str:
        return f"{self.event} {self.subject_id}"


class DeliveryState(models.TextChoices):
    """Where a delivery is: WAITING for its first or next attempt, or over."""

    WAITING = "waiting"
    DELIVERED = "delivered"
    FAILED = "failed"


class Delivery(models.Model):
    """One announcement on its way to one webhook or one e-mail address.

    ``link_path`` is where its reader finds what happened, empty where that is the announcement's.
    ``turn`` counts claims; whoever settles shows the turn of its claim. ``claimed_until`` is set while somebody sends.
    """

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    announcement = models.ForeignKey(Announcement, on_delete=models.PROTECT, related_name="deliveries")
    webhook = models.ForeignKey(Webhook, on_delete=models.PROTECT, related_name="deliveries", null=True)
    email = models.EmailField(max_length=254, blank=True, default="")
    link_path = models.CharField(max_length=300, blank=True, default="")
    state = models.CharField(max_length=16, choices=DeliveryState.choices, default=DeliveryState.WAITING)
    attempts = models.IntegerField(default=0)
    turn = models.BigIntegerField(default=0)
    next_at = models.DateTimeField(null=True, default=timezone.now)
    claimed_until = models.DateTimeField(null=True)
    attempted_at = models.DateTimeField(null=True)
    status = models.IntegerField(null=True)
    error = models.CharField(max_length=REASON_MAX_CHARS, blank=True, default="")
    delivered_at = models.DateTimeField(null=True)

    objects = TenantManager()

    class Meta:
        indexes = [
            models.Index(name="delivery_due", fields=["next_at"], condition=Q(state=DeliveryState.WAITING)),
        ]
        constraints = [
            models.CheckConstraint(name="delivery_state_known", condition=Q(state__in=DeliveryState.values)),
            models.CheckConstraint(
                name="delivery_to_one",
                condition=Q(webhook__isnull=False, email="") | (Q(webhook__isnull=True) & ~Q(email="")),
            ),
            models.CheckConstraint(name="delivery_counts_not_negative", condition=Q(attempts__gte=0, turn__gte=0)),
            models.CheckConstraint(
                name="delivery_next_while_waiting",
                condition=Q(state=DeliveryState.WAITING, next_at__isnull=False)
                | (~Q(state=DeliveryState.WAITING) & Q(next_at__isnull=True, claimed_until__isnull=True)),
            ),
            models.CheckConstraint(
                name="delivery_moment_when_delivered",
                condition=Q(state=DeliveryState.DELIVERED, delivered_at__isnull=False)
                | (~Q(state=DeliveryState.DELIVERED) & Q(delivered_at__isnull=True)),
            ),
            models.UniqueConstraint(
                name="delivery_once_a_webhook", fields=["announcement", "webhook"], condition=Q(webhook__isnull=False)
            ),
            models.UniqueConstraint(
                name="delivery_once_an_address", fields=["announcement", "email"], condition=~Q(email="")
            ),
        ]

    def __str__(self) -> str:
        return f"{self.announcement_id} to {self.email or self.webhook_id}"
