"""What was used: the records as the spools sent them, one row per request, and the hours they add up to.

Deployments, versions, keys and replicas are named by their public ids, without foreign keys: usage outlives them all.
"""

from typing import ClassVar

import msgspec
from django.db import models
from django.db.models import F, Q
from django.utils import timezone

from controlplane.metering.pricing import TokenPrice
from controlplane.metering.settlement import State
from dataplane.contracts.ids import Kind
from dataplane.contracts.usage import Outcome, Phases, RecordKind, Source
from tenants.ids import ID_MAX_CHARS, PublicId
from tenants.managers import TenantManager
from tenants.models import Tenant

_FINAL_OUTCOMES = [outcome.value for outcome in Outcome if outcome is not Outcome.REDISPATCHED]


class SpoolRecord(models.Model):
    """One spool record, as received. ``body`` is the whole of it; the columns are what makes it unique."""

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    request_id = models.CharField(max_length=ID_MAX_CHARS)
    attempt = models.IntegerField()
    source = models.CharField(max_length=8)
    sequence = models.IntegerField()
    kind = models.CharField(max_length=8)
    body = models.JSONField()
    received_at = models.DateTimeField(default=timezone.now, editable=False)

    objects = TenantManager()

    class Meta:
        constraints = [
            models.UniqueConstraint(name="spool_record_once", fields=["request_id", "attempt", "source", "sequence"]),
            models.CheckConstraint(
                name="spool_record_source_known", condition=Q(source__in=[source.value for source in Source])
            ),
            models.CheckConstraint(
                name="spool_record_kind_known", condition=Q(kind__in=[kind.value for kind in RecordKind])
            ),
            models.CheckConstraint(name="spool_record_counts", condition=Q(attempt__gte=0, sequence__gte=0)),
        ]

    def __str__(self) -> str:
        return f"{self.request_id}/{self.attempt} {self.source} {self.sequence}"


class RejectedRecord(models.Model):
    """A record that no row could be made of, kept whole for a person to look at: it is neither lost nor in the way."""

    digest = models.CharField(primary_key=True, max_length=64)
    body = models.BinaryField()
    reason = models.CharField(max_length=300)
    received_at = models.DateTimeField(default=timezone.now, editable=False)

    objects: ClassVar[models.Manager["RejectedRecord"]] = models.Manager()

    def __str__(self) -> str:
        return self.reason


class Price(models.Model):
    """Micro-USD per million tokens, from a moment on. ``deployment_id`` empty is the platform's default."""

    deployment_id = models.CharField(max_length=ID_MAX_CHARS, blank=True, default="")
    input_microusd = models.BigIntegerField()
    output_microusd = models.BigIntegerField()
    effective_from = models.DateTimeField()

    objects: ClassVar[models.Manager["Price"]] = models.Manager()

    class Meta:
        ordering = ["-effective_from"]
        constraints = [
            models.UniqueConstraint(name="price_one_at_a_time", fields=["deployment_id", "effective_from"]),
            models.CheckConstraint(
                name="price_not_negative", condition=Q(input_microusd__gte=0, output_microusd__gte=0)
            ),
        ]

    def __str__(self) -> str:
        return f"{self.deployment_id or 'every deployment'} from {self.effective_from:%Y-%m-%d %H:%M}"

    @property
    def tokens(self) -> TokenPrice:
        """The price as the charge is computed from it."""
        return TokenPrice(input_microusd=self.input_microusd, output_microusd=self.output_microusd)


class UsageRow(models.Model):
    """What one request used and is charged: the stored :class:`~controlplane.metering.settlement.Settlement`.

    ``arm`` is the one that served. ``lost_arm`` is one whose replica was lost under it before, which the caller did not
    notice. ``phases`` holds what is known of :class:`~dataplane.contracts.usage.Phases`, and nothing where nobody said.
    ``seen_at`` is the database's time of the last new record: a long silence is how the sweep finds the abandoned.
    """

    request_id = PublicId(Kind.REQUEST)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    deployment_id = models.CharField(max_length=ID_MAX_CHARS, blank=True)
    version_id = models.CharField(max_length=ID_MAX_CHARS, blank=True)
    key_id = models.CharField(max_length=ID_MAX_CHARS, blank=True)
    replica_id = models.CharField(max_length=64, blank=True)
    arm = models.CharField(max_length=16, blank=True)
    lost_arm = models.CharField(max_length=16, blank=True, default="")
    endpoint = models.CharField(max_length=64, blank=True)
    stream = models.BooleanField()
    forced = models.BooleanField(default=False)
    state = models.CharField(max_length=8)
    waits_for = models.CharField(max_length=8, null=True)
    presumed_over = models.BooleanField(default=False)
    attempts = models.IntegerField()
    prompt_tokens = models.IntegerField()
    cached_tokens = models.IntegerField()
    completion_tokens = models.IntegerField()
    delivered_tokens = models.IntegerField()
    generated_tokens = models.IntegerField()
    charge_microusd = models.BigIntegerField()
    outcome = models.CharField(max_length=16, null=True)
    error_code = models.CharField(max_length=64, blank=True)
    started_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)
    queue_ms = models.IntegerField(null=True)
    ttft_ms = models.IntegerField(null=True)
    duration_ms = models.IntegerField(null=True)
    phases = models.JSONField(default=dict)
    seen_at = models.DateTimeField()

    objects = TenantManager()

    class Meta:
        indexes = [
            models.Index(name="usage_by_age", fields=["tenant", "-request_id"]),
            models.Index(name="usage_by_tenant", fields=["tenant", "started_at"]),
            models.Index(name="usage_open", fields=["seen_at"], condition=Q(state=State.OPEN.value)),
            # How the arms of a deployment do since a moment: read every few seconds, over all its tenants.
            models.Index(
                name="usage_by_arm",
                fields=["deployment_id", "arm", "started_at"],
                condition=Q(state=State.SETTLED.value),
            ),
            models.Index(
                name="usage_by_lost_arm",
                fields=["deployment_id", "lost_arm", "started_at"],
                condition=Q(state=State.SETTLED.value) & ~Q(lost_arm=""),
            ),
        ]
        constraints = [
            models.CheckConstraint(name="usage_state_known", condition=Q(state__in=[state.value for state in State])),
            models.CheckConstraint(
                name="usage_ends_when_settled",
                condition=Q(
                    state=State.OPEN.value,
                    outcome__isnull=True,
                    ended_at__isnull=True,
                    charge_microusd=0,
                    waits_for__in=[source.value for source in Source],
                )
                | Q(
                    state=State.SETTLED.value,
                    outcome__in=_FINAL_OUTCOMES,
                    ended_at__isnull=False,
                    waits_for__isnull=True,
                ),
            ),
            models.CheckConstraint(
                name="usage_delivered_billed_generated",
                condition=Q(
                    delivered_tokens__gte=0,
                    completion_tokens__gte=F("delivered_tokens"),
                    generated_tokens__gte=F("completion_tokens"),
                ),
            ),
            models.CheckConstraint(
                name="usage_counts",
                condition=Q(attempts__gte=1, prompt_tokens__gte=0, cached_tokens__gte=0, charge_microusd__gte=0),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.request_id} {self.state}"

    @property
    def known_phases(self) -> Phases:
        """The stored phases as a struct."""
        return msgspec.convert(self.phases, Phases)


class UsageHour(models.Model):
    """The settled requests of one hour (by their start), added up. It can always be computed again from the rows."""

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    hour = models.DateTimeField()
    deployment_id = models.CharField(max_length=ID_MAX_CHARS, blank=True)
    version_id = models.CharField(max_length=ID_MAX_CHARS, blank=True)
    key_id = models.CharField(max_length=ID_MAX_CHARS, blank=True)
    requests = models.BigIntegerField()
    failed_requests = models.BigIntegerField()
    refused_requests = models.BigIntegerField()
    prompt_tokens = models.BigIntegerField()
    cached_tokens = models.BigIntegerField()
    completion_tokens = models.BigIntegerField()
    charge_microusd = models.BigIntegerField()

    objects = TenantManager()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                name="usage_hour_once", fields=["tenant", "hour", "deployment_id", "version_id", "key_id"]
            ),
            models.CheckConstraint(
                name="usage_hour_counts",
                condition=Q(
                    requests__gte=1, failed_requests__gte=0, refused_requests__gte=0, prompt_tokens__gte=0,
                    cached_tokens__gte=0, completion_tokens__gte=0, charge_microusd__gte=0,
                ),
            ),
        ]  # fmt: skip

    def __str__(self) -> str:
        return f"{self.tenant_id} {self.hour:%Y-%m-%d %H}h"


class DirtyHour(models.Model):
    """An hour whose rows changed since it was added up: the queue of the roll-up."""

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    hour = models.DateTimeField()
    marked_at = models.DateTimeField()

    objects = TenantManager()

    class Meta:
        constraints = [models.UniqueConstraint(name="dirty_hour_once", fields=["tenant", "hour"])]

    def __str__(self) -> str:
        return f"{self.tenant_id} {self.hour:%Y-%m-%d %H}h"


class EndedReplica(models.Model):
    """A replica that is no more: nothing that it has not recorded by now will ever be."""

    replica_id = models.CharField(primary_key=True, max_length=64)
    ended_at = models.DateTimeField()

    objects: ClassVar[models.Manager["EndedReplica"]] = models.Manager()

    def __str__(self) -> str:
        return self.replica_id
