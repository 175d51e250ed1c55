"""What replicas measured of each tenant, in buckets of minutes, and what probes found.

Deployments, versions and replicas are named by their public ids, without foreign keys: they end before the figures do.
"""

from typing import ClassVar

import msgspec
from django.db import models
from django.db.models import Q

from controlplane.isolation.reading import Reading
from dataplane.contracts.generation import EngineLoad, TenantLoad
from dataplane.contracts.probes import ProbeKind, ProbeReport
from tenants.ids import ID_MAX_CHARS
from tenants.managers import TenantManager
from tenants.models import Tenant

_NODE_MAX_CHARS = 64
_KINDS = [kind.value for kind in ProbeKind]


class TenantBucket(models.Model):
    """One tenant on one version of a deployment and one node: the :class:`Reading` of the minutes from ``at`` on.

    ``tenant`` is whom it tells of, not who owns the deployment: nobody else may read it but the platform.
    """

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    node = models.CharField(max_length=_NODE_MAX_CHARS)
    deployment_id = models.CharField(max_length=ID_MAX_CHARS)
    version_id = models.CharField(max_length=ID_MAX_CHARS, blank=True)
    at = models.DateTimeField()
    seen_at = models.DateTimeField()
    guarantee_tokens = models.BigIntegerField()
    cap_tokens = models.BigIntegerField()
    used_tokens = models.BigIntegerField()
    borrowed_tokens = models.BigIntegerField()
    peak_tokens = models.BigIntegerField()
    waiting = models.IntegerField()
    gap_units = models.FloatField()
    bound_units = models.FloatField()
    service_units = models.FloatField()
    preemptions = models.JSONField()
    pauses = models.IntegerField(default=0, db_default=0)
    breaches = models.IntegerField()
    queries_tokens = models.BigIntegerField()
    hits_tokens = models.BigIntegerField()

    objects = TenantManager()

    class Meta:
        indexes = [models.Index(name="isolation_bucket_by_age", fields=["at"])]
        constraints = [
            models.UniqueConstraint(
                name="isolation_bucket_once", fields=["deployment_id", "tenant", "at", "version_id", "node"]
            ),
            models.CheckConstraint(
                name="isolation_bucket_counts",
                condition=Q(
                    guarantee_tokens__gte=0, cap_tokens__gte=0, used_tokens__gte=0, borrowed_tokens__gte=0,
                    peak_tokens__gte=0, waiting__gte=0, gap_units__gte=0, bound_units__gte=0, service_units__gte=0,
                    pauses__gte=0, breaches__gte=0, queries_tokens__gte=0, hits_tokens__gte=0,
                ),
            ),
        ]  # fmt: skip

    def __str__(self) -> str:
        return f"{self.tenant_id} on {self.deployment_id} at {self.at:%Y-%m-%d %H:%M}"

    @property
    def reading(self) -> Reading:
        """The row's figures."""
        return Reading(**{name: getattr(self, name) for name in Reading.__struct_fields__})


class CacheBucket(models.Model):
    """What all tenants of a version on one node looked up in their caches in the minutes from ``at`` on.

    ``lost_tokens`` are those that one cache for all of them would have found besides: it follows from what each has
    sent, so nobody but the platform reads it.
    """

    node = models.CharField(max_length=_NODE_MAX_CHARS)
    deployment_id = models.CharField(max_length=ID_MAX_CHARS)
    version_id = models.CharField(max_length=ID_MAX_CHARS, blank=True)
    at = models.DateTimeField()
    queries_tokens = models.BigIntegerField()
    hits_tokens = models.BigIntegerField()
    lost_tokens = models.BigIntegerField()

    objects: ClassVar[models.Manager["CacheBucket"]] = models.Manager()

    class Meta:
        indexes = [models.Index(name="cache_bucket_by_age", fields=["at"])]
        constraints = [
            models.UniqueConstraint(name="cache_bucket_once", fields=["deployment_id", "at", "version_id", "node"]),
            models.CheckConstraint(
                name="cache_bucket_counts", condition=Q(queries_tokens__gte=0, hits_tokens__gte=0, lost_tokens__gte=0)
            ),
        ]

    def __str__(self) -> str:
        return f"caches of {self.deployment_id} at {self.at:%Y-%m-%d %H:%M}"


class ReplicaWord(models.Model):
    """What a replica said last, so that the next word can be told from it: a count that fell is of a new engine.

    ``load`` is its :class:`~dataplane.contracts.generation.EngineLoad`, ``tenants`` a list of
    :class:`~dataplane.contracts.generation.TenantLoad`.
    """

    replica_id = models.CharField(primary_key=True, max_length=64)
    node = models.CharField(max_length=_NODE_MAX_CHARS)
    load = models.JSONField()
    tenants = models.JSONField()
    at = models.DateTimeField()

    objects: ClassVar[models.Manager["ReplicaWord"]] = models.Manager()

    class Meta:
        indexes = [models.Index(name="replica_word_by_node", fields=["node"])]

    def __str__(self) -> str:
        return self.replica_id

    @property
    def engine(self) -> EngineLoad:
        """What it said of its engine."""
        return msgspec.convert(self.load, EngineLoad)

    @property
    def loads(self) -> dict[str, TenantLoad]:
        """What it said, by tenant."""
        return {load.tenant_id: load for load in msgspec.convert(self.tenants, list[TenantLoad])}


class ProbeRow(models.Model):
    """What probes of one kind found on a replica. ``tenant`` owns the deployment; whom it is shared with reads it too.

    ``report`` is the whole :class:`~dataplane.contracts.probes.ProbeReport`.
    """

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    replica_id = models.CharField(max_length=64)
    deployment_id = models.CharField(max_length=ID_MAX_CHARS)
    version_id = models.CharField(max_length=ID_MAX_CHARS, blank=True)
    kind = models.CharField(max_length=16)
    at = models.DateTimeField()
    report = models.JSONField()

    objects = TenantManager()

    class Meta:
        indexes = [models.Index(name="probe_by_deployment", fields=["deployment_id"])]
        constraints = [
            models.UniqueConstraint(name="probe_once", fields=["replica_id", "kind"]),
            models.CheckConstraint(name="probe_kind_known", condition=Q(kind__in=_KINDS)),
        ]

    def __str__(self) -> str:
        return f"{self.kind} on {self.replica_id}"

    @property
    def told(self) -> ProbeReport:
        """The report as a struct."""
        return msgspec.convert(self.report, ProbeReport)
