"""Models, their immutable versions, and the files these are made of."""

from typing import ClassVar

import msgspec
from django.db import models
from django.db.models import F, Q
from django.utils import timezone

from dataplane.contracts.ids import Kind
from dataplane.contracts.model_config import ModelConfig
from tenants.ids import PublicId
from tenants.managers import TenantManager
from tenants.models import Tenant

NAME_PATTERN = r"^[a-z0-9][a-z0-9._-]{0,62}[a-z0-9]$"
"""Names of models and deployments: what applications write, and what is part of a URL."""


class Model(models.Model):
    """A name under which a tenant keeps versions of one model."""

    id = PublicId(Kind.MODEL)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    name = models.CharField(max_length=64)
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    objects = TenantManager()

    class Meta:
        constraints = [
            models.UniqueConstraint(name="model_name_once", fields=["tenant", "name"]),
            models.CheckConstraint(name="model_name_form", condition=Q(name__regex=NAME_PATTERN)),
        ]

    def __str__(self) -> str:
        return self.name


class VersionState(models.TextChoices):
    """Life of a version. Only READY ones are deployed; from REJECTED and ARCHIVED nothing leads back."""

    UPLOADING = "uploading"
    VALIDATING = "validating"
    READY = "ready"
    REJECTED = "rejected"
    ARCHIVED = "archived"


class ModelVersion(models.Model):
    """A version: what it holds never changes, only its state does. ``digest`` names the content, ``number`` counts.

    ``config`` is the checked :class:`~dataplane.contracts.model_config.ModelConfig`; ``source`` says where it is from.
    """

    id = PublicId(Kind.VERSION)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    model = models.ForeignKey(Model, on_delete=models.PROTECT, related_name="versions")
    number = models.IntegerField()
    digest = models.CharField(max_length=64)
    state = models.CharField(max_length=16, choices=VersionState.choices)
    config = models.JSONField()
    context_tokens = models.IntegerField()
    num_parameters = models.BigIntegerField()
    weight_bytes = models.BigIntegerField()
    size_bytes = models.BigIntegerField()
    has_chat_template = models.BooleanField()
    source = models.CharField(max_length=300)
    created_by = models.CharField(max_length=254)
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    objects = TenantManager()

    class Meta:
        constraints = [
            models.UniqueConstraint(name="version_number_once", fields=["model", "number"]),
            models.UniqueConstraint(name="version_digest_once", fields=["model", "digest"]),
            models.CheckConstraint(name="version_state_known", condition=Q(state__in=VersionState.values)),
            models.CheckConstraint(name="version_digest_form", condition=Q(digest__regex=r"^[0-9a-f]{64}$")),
            models.CheckConstraint(
                name="version_counts",
                condition=Q(
                    number__gte=1, context_tokens__gte=1, num_parameters__gte=1, size_bytes__gte=F("weight_bytes")
                ),
            ),
        ]

    def __str__(self) -> str:
        return f"version {self.number} of {self.model_id}"

    @property
    def checked_config(self) -> ModelConfig:
        """The config as the planner's arithmetic reads it."""
        return msgspec.convert(self.config, ModelConfig, strict=False)


class Artifact(models.Model):
    """A file's bytes, kept once a tenant however many versions share them. See :mod:`controlplane.registry.store`."""

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    sha256 = models.CharField(max_length=64)
    size_bytes = models.BigIntegerField()
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    objects = TenantManager()

    class Meta:
        constraints = [
            models.UniqueConstraint(name="artifact_once", fields=["tenant", "sha256"]),
            models.CheckConstraint(name="artifact_digest_form", condition=Q(sha256__regex=r"^[0-9a-f]{64}$")),
            models.CheckConstraint(name="artifact_size", condition=Q(size_bytes__gte=0)),
        ]

    def __str__(self) -> str:
        return self.sha256


class VersionFile(models.Model):
    """A file of a version: an artifact under the name it has in the folder."""

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    version = models.ForeignKey(ModelVersion, on_delete=models.PROTECT, related_name="files")
    artifact = models.ForeignKey(Artifact, on_delete=models.PROTECT, related_name="+")
    name = models.CharField(max_length=200)

    objects = TenantManager()

    class Meta:
        ordering: ClassVar[list[str]] = ["name"]
        constraints = [
            models.UniqueConstraint(name="version_file_once", fields=["version", "name"]),
            models.CheckConstraint(
                name="version_file_name_form", condition=Q(name__regex=r"^[A-Za-z0-9_][A-Za-z0-9._-]*$")
            ),
        ]

    def __str__(self) -> str:
        return self.name
