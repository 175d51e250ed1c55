"""Models, their immutable versions, and the files these are made of."""

from dataclasses import dataclass
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
FILE_NAME_PATTERN = r"^[A-Za-z0-9_][A-Za-z0-9._-]*$"
"""Names of a version's files: one component of a path, on every system."""
FILE_NAME_MAX_CHARS = 200
ALIAS_PATTERN = r"^[a-z][a-z0-9._-]{0,31}$"
"""Names of aliases begin with a letter: ``name@7`` is a number, ``name@stable`` an alias."""
DIGEST_PATTERN = r"^[0-9a-f]{64}$"


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
    """Life of a version: see :data:`TRANSITIONS`. Only READY ones are deployed."""

    UPLOADING = "uploading"
    VALIDATING = "validating"
    READY = "ready"
    REJECTED = "rejected"
    ARCHIVED = "archived"


TRANSITIONS: dict[VersionState, frozenset[VersionState]] = {
    VersionState.UPLOADING: frozenset({VersionState.VALIDATING, VersionState.REJECTED}),
    VersionState.VALIDATING: frozenset({VersionState.READY, VersionState.REJECTED}),
    VersionState.READY: frozenset({VersionState.ARCHIVED}),
    VersionState.REJECTED: frozenset(),
    VersionState.ARCHIVED: frozenset(),
}
"""From REJECTED and ARCHIVED nothing leads back. A deleted version keeps its state beside ``deleted_at``."""
COMING = (VersionState.UPLOADING, VersionState.VALIDATING)
"""The states in which a version's files are on their way: what was put together will be its own, and is not yet."""
WHOLE = (VersionState.READY, VersionState.ARCHIVED)
"""The states in which what a version holds is known in full, and is its own."""
HOLDING = (VersionState.VALIDATING, *WHOLE)
"""The states in which a version holds on to its bytes. A rejected one is never served: its bytes go."""


@dataclass(frozen=True, slots=True)
class Content:
    """What is known of a version that is READY, or was."""

    digest: str
    config: ModelConfig
    context_tokens: int


class ModelVersion(models.Model):
    """A version. What it holds is filled in until it is READY or REJECTED, and never changes after that.

    ``number`` counts within the model and ``digest`` names the content. ``config`` is the checked
    :class:`~dataplane.contracts.model_config.ModelConfig`; ``source`` says where it is from. ``size_bytes`` is what was
    announced until the files are there. ``expires_at`` is when an upload without news is given up; ``deleted_at``
    makes a tombstone of it. ``derivation`` says how it came from ``derived_from``.
    """

    id = PublicId(Kind.VERSION)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    model = models.ForeignKey(Model, on_delete=models.PROTECT, related_name="versions")
    number = models.IntegerField()
    digest = models.CharField(max_length=64, null=True)
    state = models.CharField(max_length=16, choices=VersionState.choices)
    config = models.JSONField(null=True)
    context_tokens = models.IntegerField(null=True)
    num_parameters = models.BigIntegerField(null=True)
    weight_bytes = models.BigIntegerField(null=True)
    size_bytes = models.BigIntegerField(null=True)
    has_chat_template = models.BooleanField(null=True)
    source = models.CharField(max_length=300)
    card = models.TextField(default="")
    licence = models.TextField(default="")
    derived_from = models.ForeignKey("self", on_delete=models.PROTECT, related_name="derived", null=True)
    derivation = models.CharField(max_length=200, default="")
    created_by = models.CharField(max_length=254)
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    expires_at = models.DateTimeField(null=True)
    deleted_at = models.DateTimeField(null=True)

    objects = TenantManager()

    class Meta:
        constraints = [
            models.UniqueConstraint(name="version_number_once", fields=["model", "number"]),
            # What was rejected may be brought again, and so may what was deleted.
            models.UniqueConstraint(
                name="version_content_once",
                fields=["model", "digest"],
                condition=Q(state__in=WHOLE, deleted_at__isnull=True),
            ),
            models.CheckConstraint(name="version_state_known", condition=Q(state__in=VersionState.values)),
            models.CheckConstraint(name="version_digest_form", condition=Q(digest__regex=DIGEST_PATTERN)),
            models.CheckConstraint(
                name="version_counts",
                condition=Q(
                    number__gte=1, context_tokens__gte=1, num_parameters__gte=1, size_bytes__gte=F("weight_bytes")
                ),
            ),
            models.CheckConstraint(
                name="version_whole",
                condition=~Q(state__in=WHOLE)
                | Q(
                    digest__isnull=False, config__isnull=False, context_tokens__isnull=False,
                    num_parameters__isnull=False, weight_bytes__isnull=False, size_bytes__isnull=False,
                    has_chat_template__isnull=False,
                ),
            ),
            models.CheckConstraint(
                name="version_expires_while_uploading",
                condition=Q(state=VersionState.UPLOADING, expires_at__isnull=False)
                | (~Q(state=VersionState.UPLOADING) & Q(expires_at__isnull=True)),
            ),
            models.CheckConstraint(
                name="version_deleted_at_its_end",
                condition=Q(deleted_at__isnull=True)
                | ~Q(state__in=COMING),
            ),
            models.CheckConstraint(name="version_not_of_itself", condition=~Q(derived_from=F("id"))),
        ]  # fmt: skip

    def __str__(self) -> str:
        return f"version {self.number} of {self.model}"

    @property
    def checked_config(self) -> ModelConfig:
        """The config as the planner's arithmetic reads it. Raises as :attr:`content` does."""
        return self.content.config

    @property
    def content(self) -> "Content":
        """What the version holds.

        Raises:
            ValueError: that is not known: the version is not READY, and never was.
        """
        if self.digest is None or self.config is None or self.context_tokens is None:
            raise ValueError(f"what version {self.id} holds is not known: it is {self.state}")
        return Content(
            digest=self.digest,
            config=msgspec.convert(self.config, ModelConfig, strict=False),
            context_tokens=self.context_tokens,
        )


class ModelAlias(models.Model):
    """A name of a version within its model, such as ``stable``: applications call ``name@stable``. It moves."""

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    model = models.ForeignKey(Model, on_delete=models.PROTECT, related_name="aliases")
    name = models.CharField(max_length=32)
    version = models.ForeignKey(ModelVersion, on_delete=models.PROTECT, related_name="aliases")
    moved_at = models.DateTimeField(default=timezone.now)

    objects = TenantManager()

    class Meta:
        ordering: ClassVar[list[str]] = ["name"]
        constraints = [
            models.UniqueConstraint(name="alias_once", fields=["model", "name"]),
            models.CheckConstraint(name="alias_form", condition=Q(name__regex=ALIAS_PATTERN)),
        ]

    def __str__(self) -> str:
        return self.name


class StepState(models.TextChoices):
    """How a step of the validation stands. NOT_RUN: an earlier one took its ground away."""

    PENDING = "pending"
    RUNNING = "running"
    PASSED = "passed"
    FAILED = "failed"
    NOT_RUN = "not_run"


class VersionCheck(models.Model):
    """A line of a version's checklist. ``reason`` says what is wrong, ``mend`` what to do about it."""

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    version = models.ForeignKey(ModelVersion, on_delete=models.PROTECT, related_name="checks")
    position = models.IntegerField()
    name = models.CharField(max_length=32)
    title = models.CharField(max_length=100)
    state = models.CharField(max_length=16, choices=StepState.choices, default=StepState.PENDING)
    reason = models.TextField(default="")
    mend = models.TextField(default="")
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)

    objects = TenantManager()

    class Meta:
        ordering: ClassVar[list[str]] = ["position"]
        constraints = [
            models.UniqueConstraint(name="check_name_once", fields=["version", "name"]),
            models.UniqueConstraint(name="check_position_once", fields=["version", "position"]),
            models.CheckConstraint(name="check_state_known", condition=Q(state__in=StepState.values)),
            models.CheckConstraint(name="check_position", condition=Q(position__gte=0)),
        ]

    def __str__(self) -> str:
        return f"{self.name}: {self.state}"


class UploadFile(models.Model):
    """A file that is being uploaded: announced by name and size, brought in parts of ``part_bytes``.

    ``multipart_id`` is the store's name for the upload, empty until it has one. ``sha256`` is the server's own digest
    of the whole file, set once its parts are one.
    """

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    version = models.ForeignKey(ModelVersion, on_delete=models.PROTECT, related_name="upload_files")
    name = models.CharField(max_length=FILE_NAME_MAX_CHARS)
    size_bytes = models.BigIntegerField()
    part_bytes = models.IntegerField()
    multipart_id = models.TextField(default="")
    sha256 = models.CharField(max_length=64, null=True)

    objects = TenantManager()

    class Meta:
        ordering: ClassVar[list[str]] = ["name"]
        constraints = [
            models.UniqueConstraint(name="upload_file_once", fields=["version", "name"]),
            models.CheckConstraint(name="upload_file_name_form", condition=Q(name__regex=FILE_NAME_PATTERN)),
            models.CheckConstraint(name="upload_file_sizes", condition=Q(size_bytes__gte=1, part_bytes__gte=1)),
            models.CheckConstraint(name="upload_file_digest_form", condition=Q(sha256__regex=DIGEST_PATTERN)),
        ]

    def __str__(self) -> str:
        return self.name


class UploadPart(models.Model):
    """A part as it was announced: its bytes must have this size and digest. The store knows whether it has arrived."""

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    file = models.ForeignKey(UploadFile, on_delete=models.PROTECT, related_name="parts")
    number = models.IntegerField()
    size_bytes = models.IntegerField()
    sha256 = models.CharField(max_length=64)

    objects = TenantManager()

    class Meta:
        ordering: ClassVar[list[str]] = ["number"]
        constraints = [
            models.UniqueConstraint(name="upload_part_once", fields=["file", "number"]),
            models.CheckConstraint(name="upload_part_sizes", condition=Q(number__gte=1, size_bytes__gte=1)),
            models.CheckConstraint(name="upload_part_digest_form", condition=Q(sha256__regex=DIGEST_PATTERN)),
        ]

    def __str__(self) -> str:
        return f"part {self.number}"


class Artifact(models.Model):
    """A file's bytes, kept once a tenant however many versions share them. See :mod:`controlplane.registry.stores`.

    ``deleted_at``: the last reference went, and the tenant's claim on the bytes with it; the same bytes brought again
    take it back.
    """

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    sha256 = models.CharField(max_length=64)
    size_bytes = models.BigIntegerField()
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    deleted_at = models.DateTimeField(null=True)

    objects = TenantManager()

    class Meta:
        constraints = [
            models.UniqueConstraint(name="artifact_once", fields=["tenant", "sha256"]),
            models.CheckConstraint(name="artifact_digest_form", condition=Q(sha256__regex=DIGEST_PATTERN)),
            models.CheckConstraint(name="artifact_size", condition=Q(size_bytes__gte=0)),
        ]

    def __str__(self) -> str:
        return self.sha256


class VersionFile(models.Model):
    """A file of a version: an artifact under the name it has in the folder."""

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    version = models.ForeignKey(ModelVersion, on_delete=models.PROTECT, related_name="files")
    artifact = models.ForeignKey(Artifact, on_delete=models.PROTECT, related_name="+")
    name = models.CharField(max_length=FILE_NAME_MAX_CHARS)

    objects = TenantManager()

    class Meta:
        ordering: ClassVar[list[str]] = ["name"]
        constraints = [
            models.UniqueConstraint(name="version_file_once", fields=["version", "name"]),
            models.CheckConstraint(name="version_file_name_form", condition=Q(name__regex=FILE_NAME_PATTERN)),
        ]

    def __str__(self) -> str:
        return self.name
