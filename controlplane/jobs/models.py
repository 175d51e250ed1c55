"""Jobs, which are the queue, and ticks, which say when the periodic ones are due."""

from typing import ClassVar

from django.db import models
from django.db.models import Q
from django.utils import timezone

from controlplane.jobs.lease import JobLife, JobState
from dataplane.contracts.ids import Kind
from tenants.ids import PublicId
from tenants.managers import TenantManager
from tenants.models import Tenant


class Job(models.Model):
    """One piece of work, once: ``kind`` and ``key`` name its effect. ``payload`` carries ids, never content."""

    id = PublicId(Kind.JOB)
    kind = models.CharField(max_length=64)
    key = models.CharField(max_length=200)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+", null=True)
    payload = models.JSONField(default=dict)
    periodic = models.BooleanField(default=False)
    state = models.CharField(max_length=16, choices=[(state.value, state.value) for state in JobState])
    run_at = models.DateTimeField()
    attempts = models.IntegerField(default=0)
    fence = models.BigIntegerField(default=0)
    expires_at = models.DateTimeField(null=True)
    worker = models.CharField(max_length=100, blank=True, default="")
    error = models.TextField(blank=True, default="")
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    ended_at = models.DateTimeField(null=True)

    objects = TenantManager()

    class Meta:
        constraints = [
            models.UniqueConstraint(name="job_once", fields=["kind", "key"]),
            models.CheckConstraint(name="job_state_known", condition=Q(state__in=[state.value for state in JobState])),
            models.CheckConstraint(name="job_counts_not_negative", condition=Q(attempts__gte=0, fence__gte=0)),
            models.CheckConstraint(
                name="job_lease_while_running",
                condition=Q(state=JobState.RUNNING, expires_at__isnull=False)
                | (~Q(state=JobState.RUNNING) & Q(expires_at__isnull=True)),
            ),
            models.CheckConstraint(
                name="job_end_when_ended",
                condition=Q(state__in=[JobState.DONE, JobState.DEAD], ended_at__isnull=False)
                | (~Q(state__in=[JobState.DONE, JobState.DEAD]) & Q(ended_at__isnull=True)),
            ),
        ]
        indexes = [
            models.Index(name="job_due", fields=["run_at"], condition=Q(state=JobState.QUEUED)),
            models.Index(name="job_leased", fields=["expires_at"], condition=Q(state=JobState.RUNNING)),
            models.Index(name="job_dead", fields=["ended_at"], condition=Q(state=JobState.DEAD)),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.key}"

    @property
    def life(self) -> JobLife:
        """What the pure rules of :mod:`controlplane.jobs.lease` need."""
        return JobLife(
            state=JobState(self.state),
            run_at=self.run_at,
            attempts=self.attempts,
            fence=self.fence,
            expires_at=self.expires_at,
            error=self.error,
        )


class Tick(models.Model):
    """When a periodic kind is due next. Its interval is in the settings."""

    kind = models.CharField(max_length=64, primary_key=True)
    next_run_at = models.DateTimeField()

    objects: ClassVar[models.Manager["Tick"]] = models.Manager()

    def __str__(self) -> str:
        return self.kind
