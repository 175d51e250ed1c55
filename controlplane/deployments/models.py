"""Deployments, who may call them with which share, and what the fleet reports of their replicas."""

from typing import ClassVar

import msgspec
from django.db import models
from django.db.models import F, Q
from django.utils import timezone

from controlplane.registry.models import NAME_PATTERN, ModelVersion
from dataplane.contracts import precision
from dataplane.contracts.catalog import CANDIDATE, PREVIOUS, STABLE, EngineSettings, Hold, IdlePolicy, KeepWarm, Share
from dataplane.contracts.ids import Kind
from dataplane.contracts.replica import ReplicaState
from tenants.ids import ID_MAX_CHARS, PublicId
from tenants.managers import TenantManager
from tenants.models import Tenant

DEVICES = ("auto", "cpu", "cuda")
_REPLICA_STATES = [state.value for state in ReplicaState]
_SERVED_ID_MAX_CHARS = 64
"""A replica on trial reports an id made of a prefix and the version's, which is longer than an id."""


class DeploymentState(models.TextChoices):
    """Life of a deployment. A deleted one is a tombstone: its name is free again, its usage stays."""

    ACTIVE = "active"
    PAUSED = "paused"
    DELETED = "deleted"


TRANSITIONS: dict[DeploymentState, frozenset[DeploymentState]] = {
    DeploymentState.ACTIVE: frozenset({DeploymentState.PAUSED, DeploymentState.DELETED}),
    DeploymentState.PAUSED: frozenset({DeploymentState.ACTIVE, DeploymentState.DELETED}),
    DeploymentState.DELETED: frozenset(),
}


class Deployment(models.Model):
    """A name that applications call as ``model``, how its replicas run, and how many there may be.

    ``owner`` is the tenant's slug, which never changes: another tenant that may call this cannot read the tenant's row.
    ``revision`` counts the changes of its settings: who changes them says which he has seen. ``schedules`` is a list of
    :class:`~dataplane.contracts.catalog.KeepWarm`.
    """

    id = PublicId(Kind.DEPLOYMENT)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    owner = models.CharField(max_length=40)
    name = models.CharField(max_length=64)
    state = models.CharField(max_length=16, choices=DeploymentState.choices, default=DeploymentState.ACTIVE)
    dtype = models.CharField(max_length=8)
    kv_dtype = models.CharField(max_length=8, default=EngineSettings().kv_dtype)
    device = models.CharField(max_length=8)
    max_model_len = models.IntegerField(null=True)
    max_num_seqs = models.IntegerField()
    kv_memory_mb = models.IntegerField()
    block_size = models.IntegerField()
    prefix_cache = models.BooleanField()
    min_replicas = models.IntegerField()
    max_replicas = models.IntegerField()
    asleep_after_s = models.IntegerField(null=True)
    warm_after_s = models.IntegerField(null=True)
    disk_after_s = models.IntegerField(null=True)
    cold_wait_s = models.IntegerField(default=IdlePolicy().cold_wait_s)
    schedules = models.JSONField(default=list)
    revision = models.IntegerField(default=1)
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    deleted_at = models.DateTimeField(null=True)

    objects = TenantManager()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                name="deployment_name_once",
                fields=["tenant", "name"],
                condition=~Q(state=DeploymentState.DELETED),
            ),
            models.CheckConstraint(name="deployment_name_form", condition=Q(name__regex=NAME_PATTERN)),
            models.CheckConstraint(name="deployment_state_known", condition=Q(state__in=DeploymentState.values)),
            models.CheckConstraint(
                name="deployment_deleted_at_its_end",
                condition=Q(state=DeploymentState.DELETED, deleted_at__isnull=False)
                | (~Q(state=DeploymentState.DELETED) & Q(deleted_at__isnull=True)),
            ),
            models.CheckConstraint(name="deployment_dtype_known", condition=Q(dtype__in=precision.WEIGHTS)),
            models.CheckConstraint(name="deployment_kv_dtype_known", condition=Q(kv_dtype__in=precision.KV_CHOICES)),
            models.CheckConstraint(name="deployment_device_known", condition=Q(device__in=DEVICES)),
            models.CheckConstraint(
                name="deployment_sizes",
                condition=Q(max_num_seqs__gte=1, kv_memory_mb__gte=1, block_size__gte=1)
                & (Q(max_model_len__isnull=True) | Q(max_model_len__gte=1)),
            ),
            models.CheckConstraint(
                name="deployment_replicas", condition=Q(min_replicas__gte=0, max_replicas__gte=1)
                & Q(max_replicas__gte=F("min_replicas")),
            ),
            models.CheckConstraint(
                name="deployment_idle",
                condition=Q(asleep_after_s__gte=1, warm_after_s__gte=1, disk_after_s__gte=1, cold_wait_s__gte=0)
                & Q(warm_after_s__gte=F("asleep_after_s"), disk_after_s__gte=F("asleep_after_s"))
                & Q(disk_after_s__gte=F("warm_after_s")),
            ),
            models.CheckConstraint(name="deployment_revision", condition=Q(revision__gte=1)),
        ]  # fmt: skip

    def __str__(self) -> str:
        return self.name

    @property
    def engine(self) -> EngineSettings:
        """How the replicas run, as the catalog carries it."""
        return EngineSettings(**{name: getattr(self, name) for name in EngineSettings.__struct_fields__})

    @property
    def idle(self) -> IdlePolicy:
        """How warm it is kept when idle, as the catalog carries it."""
        return IdlePolicy(**{name: getattr(self, name) for name in IdlePolicy.__struct_fields__})

    @property
    def keep_warm(self) -> tuple[KeepWarm, ...]:
        """When replicas are kept ready, as the catalog carries it."""
        return msgspec.convert(self.schedules, tuple[KeepWarm, ...])

    @property
    def most_kept_replicas(self) -> int:
        """How many replicas stay ready without any demand when its schedules ask for most."""
        return max([self.min_replicas, *(window.min_replicas for window in self.keep_warm)])


class DeploymentArm(models.Model):
    """A version that takes a part of a deployment's traffic, or is kept beside it: an arm of the catalog.

    At each commit the weights of a deployment sum to 100 over ``stable`` and ``candidate``; ``previous`` has none.
    """

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    deployment = models.ForeignKey(Deployment, on_delete=models.PROTECT, related_name="arms")
    version = models.ForeignKey(ModelVersion, on_delete=models.PROTECT, related_name="+")
    name = models.CharField(max_length=16)
    weight = models.IntegerField()
    hold = models.CharField(max_length=8, choices=[(hold.value, hold.value) for hold in Hold], default=Hold.NONE.value)

    objects = TenantManager()

    class Meta:
        ordering: ClassVar[list[str]] = ["-name"]  # stable before candidate: the order decides who lands where
        constraints = [
            models.UniqueConstraint(name="arm_name_once", fields=["deployment", "name"]),
            models.CheckConstraint(name="arm_name_known", condition=Q(name__in=[STABLE, CANDIDATE, PREVIOUS])),
            models.CheckConstraint(name="arm_weight", condition=Q(weight__gte=0, weight__lte=100)),
            models.CheckConstraint(name="arm_hold_known", condition=Q(hold__in=[hold.value for hold in Hold])),
            models.CheckConstraint(name="arm_previous_has_no_weight", condition=~Q(name=PREVIOUS) | Q(weight=0)),
        ]

    def __str__(self) -> str:
        return f"{self.name} {self.weight} %"


class Grant(models.Model):
    """Leave for a tenant, the owner included, to call a deployment, and its share of the KV pool there.

    ``tenant`` owns the deployment, ``grantee`` may call it and ``grantee_slug`` is its name. ``cap_tokens`` None is the
    whole pool. ``cache_epoch`` counts how often the grantee's prefix cache there was emptied by a change of its salt.
    """

    id = PublicId(Kind.GRANT)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    deployment = models.ForeignKey(Deployment, on_delete=models.PROTECT, related_name="grants")
    grantee = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    grantee_slug = models.CharField(max_length=40)
    guarantee_tokens = models.BigIntegerField(default=0)
    cap_tokens = models.BigIntegerField(null=True)
    weight = models.IntegerField(default=1)
    cache_epoch = models.IntegerField(default=0)
    pace_ms = models.IntegerField(default=0)
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    objects = TenantManager()

    class Meta:
        constraints = [
            models.UniqueConstraint(name="grant_once", fields=["deployment", "grantee"]),
            models.CheckConstraint(name="grant_guarantee", condition=Q(guarantee_tokens__gte=0)),
            models.CheckConstraint(
                name="grant_cap",
                condition=Q(cap_tokens__isnull=True)
                | (Q(cap_tokens__gte=1) & Q(cap_tokens__gte=F("guarantee_tokens"))),
            ),
            models.CheckConstraint(name="grant_weight", condition=Q(weight__gte=1, weight__lte=1000)),
            models.CheckConstraint(name="grant_cache_epoch", condition=Q(cache_epoch__gte=0)),
            models.CheckConstraint(name="grant_pace", condition=Q(pace_ms__gte=0, pace_ms__lte=1000)),
        ]  # fmt: skip

    def __str__(self) -> str:
        return f"{self.grantee_id} on {self.deployment_id}"

    @property
    def share(self) -> Share:
        """The share as the catalog carries it."""
        return Share(**{name: getattr(self, name) for name in Share.__struct_fields__})


class CatalogHead(models.Model):
    """The catalog as it was last published, in one row. ``body`` is its JSON; ``number`` grows with every change."""

    number = models.BigIntegerField(default=0)
    body = models.BinaryField(default=b"")

    objects: ClassVar[models.Manager["CatalogHead"]] = models.Manager()

    class Meta:
        constraints = [models.CheckConstraint(name="catalog_one_head", condition=Q(id=1, number__gte=0))]

    def __str__(self) -> str:
        return f"catalog {self.number}"


class FleetNode(models.Model):
    """A node of the fleet, and the last table of its replicas that was taken.

    ``resources`` is its :class:`~dataplane.contracts.replica.NodeReport`, once it has said what it has.
    """

    node = models.CharField(primary_key=True, max_length=64)
    number = models.BigIntegerField()
    at = models.DateTimeField()
    seen_at = models.DateTimeField()
    resources = models.JSONField(null=True)

    objects: ClassVar[models.Manager["FleetNode"]] = models.Manager()

    def __str__(self) -> str:
        return self.node


class ReplicaRow(models.Model):
    """A replica as its fleet last reported it. ``tenant`` owns what it serves; a warm idle one serves nobody.

    ``report`` is the whole :class:`~dataplane.contracts.replica.ReplicaReport`.
    """

    replica_id = models.CharField(primary_key=True, max_length=64)
    node = models.ForeignKey(FleetNode, on_delete=models.PROTECT, related_name="replicas")
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+", null=True)
    deployment_id = models.CharField(max_length=_SERVED_ID_MAX_CHARS, blank=True)
    version_id = models.CharField(max_length=ID_MAX_CHARS, blank=True)
    state = models.CharField(max_length=16)
    cause = models.CharField(max_length=300)
    since = models.DateTimeField()
    report = models.JSONField()

    objects = TenantManager()

    class Meta:
        indexes = [models.Index(name="replica_by_deployment", fields=["deployment_id"])]
        constraints = [models.CheckConstraint(name="replica_state_known", condition=Q(state__in=_REPLICA_STATES))]

    def __str__(self) -> str:
        return f"{self.replica_id} {self.state}"


class ReplicaEvent(models.Model):
    """A replica's change of state with its cause, once however often the fleet tells it.

    ``at`` is a part of what makes it unique: a node whose disk was lost counts from 1 again.
    """

    node = models.CharField(max_length=64)
    sequence = models.BigIntegerField()
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+", null=True)
    replica_id = models.CharField(max_length=64)
    deployment_id = models.CharField(max_length=_SERVED_ID_MAX_CHARS, blank=True)
    version_id = models.CharField(max_length=ID_MAX_CHARS, blank=True)
    at = models.DateTimeField()
    old = models.CharField(max_length=16)
    new = models.CharField(max_length=16)
    cause = models.CharField(max_length=300)

    objects = TenantManager()

    class Meta:
        indexes = [
            models.Index(name="replica_events_by_deployment", fields=["deployment_id", "-at"]),
            models.Index(name="replica_events_by_replica", fields=["replica_id", "-at"]),
        ]
        constraints = [
            models.UniqueConstraint(name="replica_event_once", fields=["node", "sequence", "at"]),
            models.CheckConstraint(
                name="replica_event_states_known",
                condition=Q(old__in=_REPLICA_STATES, new__in=_REPLICA_STATES),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.replica_id} {self.old} > {self.new}"


class RestartCosts(models.Model):
    """What starts of a deployment took from each tier, as its fleet told last.

    ``costs`` is a list of :class:`~dataplane.contracts.replica.TierCost`.
    """

    deployment = models.OneToOneField(
        Deployment, on_delete=models.PROTECT, primary_key=True, related_name="restart_costs"
    )
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    costs = models.JSONField()
    at = models.DateTimeField()

    objects = TenantManager()

    def __str__(self) -> str:
        return f"restart costs of {self.deployment_id}"
