"""Tenants, the people and keys that act for them, their limits, and the journal of every change."""

import hashlib
from typing import Any, ClassVar

from django.contrib.auth.base_user import AbstractBaseUser, BaseUserManager
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q
from django.db.models.functions import Lower
from django.utils import timezone

from dataplane.contracts.catalog import Limits
from dataplane.contracts.ids import Kind
from dataplane.contracts.keys import ENVIRONMENTS
from tenants.ids import ID_MAX_CHARS, PublicId
from tenants.managers import TenantManager
from tenants.roles import Role, Scope
from tenants.serving import ServingLimits
from tenants.storage import StorageLimits

SLUG_PATTERN = r"^[a-z][a-z0-9-]{1,38}[a-z0-9]$"


class UserManager(BaseUserManager["User"]):
    """Makes users; an e-mail address is stored in lower case."""

    def create_user(self, email: str, password: str | None = None, **fields: Any) -> "User":
        """Save a user who signs in by ``email``. Without a password nobody signs in until one is set."""
        user = self.model(email=email.strip().lower(), **fields)
        user.set_password(password)
        user.save(using=self._db)
        return user


class User(AbstractBaseUser):
    """A person. What it may do follows from its memberships, and from ``is_platform_admin``."""

    id = PublicId(Kind.USER)
    email = models.EmailField(max_length=254, unique=True)
    name = models.CharField(max_length=100, blank=True, default="")
    is_active = models.BooleanField(default=True)
    is_platform_admin = models.BooleanField(default=False)
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    USERNAME_FIELD = "email"
    EMAIL_FIELD = "email"
    REQUIRED_FIELDS: ClassVar[list[str]] = []
    objects = UserManager()

    class Meta:
        constraints = [models.CheckConstraint(name="user_email_lower", condition=Q(email=Lower("email")))]

    def __str__(self) -> str:
        return self.email


class Tenant(models.Model):
    """A customer. ``slug`` is its name in URLs and in the names of models that others call; it never changes."""

    id = PublicId(Kind.TENANT)
    slug = models.CharField(max_length=40, unique=True)
    name = models.CharField(max_length=100)
    suspended_at = models.DateTimeField(null=True, blank=True)
    suspension_reason = models.CharField(max_length=300, blank=True, default="")
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    objects: ClassVar[models.Manager["Tenant"]] = models.Manager()

    class Meta:
        constraints = [models.CheckConstraint(name="tenant_slug_form", condition=Q(slug__regex=SLUG_PATTERN))]

    def __str__(self) -> str:
        return self.slug

    @property
    def active(self) -> bool:
        """Whether its keys are served."""
        return self.suspended_at is None


class Member(models.Model):
    """A user's place in a tenant."""

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="members")
    user = models.ForeignKey(User, on_delete=models.PROTECT, related_name="memberships")
    role = models.CharField(max_length=16, choices=[(role.value, role.value) for role in Role])
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    objects = TenantManager()

    class Meta:
        constraints = [
            models.UniqueConstraint(name="member_once", fields=["tenant", "user"]),
            models.CheckConstraint(name="member_role_known", condition=Q(role__in=[role.value for role in Role])),
        ]

    def __str__(self) -> str:
        return f"{self.user_id} in {self.tenant_id}"


class Invitation(models.Model):
    """An offer of a place to an e-mail address. The link's token is stored as its SHA-256 only."""

    id = PublicId(Kind.INVITATION)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="invitations")
    email = models.EmailField(max_length=254)
    role = models.CharField(max_length=16, choices=[(role.value, role.value) for role in Role])
    token_digest = models.CharField(max_length=64, unique=True)
    invited_by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+", null=True)
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    expires_at = models.DateTimeField()
    accepted_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    objects = TenantManager()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                name="invitation_open_once",
                fields=["tenant", "email"],
                condition=Q(accepted_at__isnull=True, revoked_at__isnull=True),
            ),
            models.CheckConstraint(name="invitation_role_known", condition=Q(role__in=[role.value for role in Role])),
            models.CheckConstraint(name="invitation_email_lower", condition=Q(email=Lower("email"))),
            models.CheckConstraint(
                name="invitation_one_end", condition=Q(accepted_at__isnull=True) | Q(revoked_at__isnull=True)
            ),
        ]

    def __str__(self) -> str:
        return self.email

    @property
    def is_open(self) -> bool:
        """Whether it was neither accepted nor revoked."""
        return self.accepted_at is None and self.revoked_at is None

    @staticmethod
    def digest_of(token: str) -> str:
        """Return what is stored of a link's token."""
        return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


class KeyKind(models.TextChoices):
    """Whose hands a key is in: an application's, or the console's playground on behalf of one person."""

    NORMAL = "normal"
    PLAYGROUND = "playground"


class ApiKey(models.Model):
    """A key of a tenant. Its id, limits and history outlive the rolling of its secret.

    ``deployment_ids`` None is every deployment that the tenant may call.
    """

    id = PublicId(Kind.KEY)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="api_keys")
    name = models.CharField(max_length=100)
    kind = models.CharField(max_length=16, choices=KeyKind.choices, default=KeyKind.NORMAL)
    env = models.CharField(max_length=8)
    lookup = models.CharField(max_length=8, unique=True)
    scopes = ArrayField(models.CharField(max_length=16))
    deployment_ids = ArrayField(models.CharField(max_length=ID_MAX_CHARS), null=True, blank=True)
    created_by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+", null=True)
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)

    objects = TenantManager()

    class Meta:
        constraints = [
            models.CheckConstraint(name="key_kind_known", condition=Q(kind__in=KeyKind.values)),
            models.CheckConstraint(name="key_env_known", condition=Q(env__in=ENVIRONMENTS)),
            models.CheckConstraint(name="key_lookup_form", condition=Q(lookup__regex=r"^[0-9A-Za-z]{8}$")),
            models.CheckConstraint(
                name="key_scopes_known",
                condition=Q(scopes__contained_by=[scope.value for scope in Scope]) & Q(scopes__len__gt=0),
            ),
            models.UniqueConstraint(
                name="key_playground_once",
                fields=["tenant", "created_by"],
                condition=Q(kind=KeyKind.PLAYGROUND, revoked_at__isnull=True),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix})"

    @property
    def prefix(self) -> str:
        """What may be shown of the key, so that a person recognises it."""
        return f"pgd_{self.env}_{self.lookup}"


class ApiKeySecret(models.Model):
    """One accepted secret of a key: two of them while it is being rolled."""

    key = models.ForeignKey(ApiKey, on_delete=models.PROTECT, related_name="secrets")
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    pepper_id = models.CharField(max_length=32)
    digest = models.CharField(max_length=64, unique=True)
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    expires_at = models.DateTimeField(null=True, blank=True)

    objects = TenantManager()

    class Meta:
        constraints = [models.CheckConstraint(name="secret_digest_form", condition=Q(digest__regex=r"^[0-9a-f]{64}$"))]

    def __str__(self) -> str:
        return f"a secret of {self.key_id}"


class Quota(models.Model):
    """The limits of a tenant (``key`` is None) or of one of its keys. None is no limit of its own.

    What is kept and what is deployed are the tenant's: a key has no limits of storage and serving.
    """

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="quotas")
    key = models.OneToOneField(ApiKey, on_delete=models.PROTECT, related_name="quota", null=True, blank=True)
    requests_per_minute = models.IntegerField(null=True, blank=True)
    tokens_per_minute = models.IntegerField(null=True, blank=True)
    concurrent_requests = models.IntegerField(null=True, blank=True)
    max_request_tokens = models.IntegerField(null=True, blank=True)
    stored_bytes = models.BigIntegerField(null=True, blank=True)
    stored_files = models.IntegerField(null=True, blank=True)
    open_uploads = models.IntegerField(null=True, blank=True)
    deployments = models.IntegerField(null=True, blank=True)
    kept_replicas = models.IntegerField(null=True, blank=True)
    updated_at = models.DateTimeField(auto_now=True)

    objects = TenantManager()

    class Meta:
        constraints = [
            models.UniqueConstraint(name="quota_of_tenant_once", fields=["tenant"], condition=Q(key__isnull=True)),
            *(
                models.CheckConstraint(name=f"quota_{name}_positive", condition=Q(**{f"{name}__gte": 1}))
                for name in (
                    *Limits.__struct_fields__,
                    *StorageLimits.__struct_fields__,
                    *ServingLimits.__struct_fields__,
                )
            ),
            models.CheckConstraint(
                name="quota_of_key_without_storage",
                condition=Q(key__isnull=True)
                | Q(**{f"{name}__isnull": True for name in StorageLimits.__struct_fields__}),
            ),
            models.CheckConstraint(
                name="quota_of_key_without_serving",
                condition=Q(key__isnull=True)
                | Q(**{f"{name}__isnull": True for name in ServingLimits.__struct_fields__}),
            ),
        ]

    def __str__(self) -> str:
        return f"the limits of {self.key.name if self.key else self.tenant.slug}"

    @property
    def limits(self) -> Limits:
        """The limits as the catalog carries them."""
        return Limits(**{name: getattr(self, name) for name in Limits.__struct_fields__})

    @property
    def storage(self) -> StorageLimits:
        """The limits of what the tenant keeps."""
        return StorageLimits(**{name: getattr(self, name) for name in StorageLimits.__struct_fields__})

    @property
    def serving(self) -> ServingLimits:
        """The limits of what the tenant has served."""
        return ServingLimits(**{name: getattr(self, name) for name in ServingLimits.__struct_fields__})


class AuditEvent(models.Model):
    """One change, for ever: the row outlives its objects, so names are copied into it. See :mod:`tenants.audit`."""

    id = PublicId(Kind.AUDIT)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+", null=True)
    sequence = models.BigIntegerField()
    at = models.DateTimeField()
    actor_kind = models.CharField(max_length=16)
    actor_id = models.CharField(max_length=64)
    actor_label = models.CharField(max_length=254)
    verb = models.CharField(max_length=64)
    target_kind = models.CharField(max_length=32)
    target_id = models.CharField(max_length=64)
    target_label = models.CharField(max_length=254)
    before = models.JSONField()
    after = models.JSONField()
    request_id = models.CharField(max_length=64)
    origin = models.CharField(max_length=64)
    previous_hash = models.CharField(max_length=64)
    hash = models.CharField(max_length=64)

    objects = TenantManager()

    class Meta:
        ordering = ["-sequence"]
        indexes = [models.Index(name="audit_by_target", fields=["target_id", "-sequence"])]
        constraints = [
            models.UniqueConstraint(name="audit_sequence_once", fields=["tenant", "sequence"], nulls_distinct=False),
            models.CheckConstraint(name="audit_sequence_positive", condition=Q(sequence__gte=1)),
        ]

    def __str__(self) -> str:
        return f"{self.sequence}: {self.actor_label} {self.verb} {self.target_label}"


class AuditHead(models.Model):
    """The end of a chain: the tenant's, or the platform's where ``tenant`` is None. Its row is locked last.

    ``verified_at`` is when it was last walked from its first row, up to ``verified_sequence``; ``fault`` is the first
    that was found then, empty where it held.
    """

    tenant = models.OneToOneField(Tenant, on_delete=models.PROTECT, related_name="+", null=True)
    sequence = models.BigIntegerField(default=0)
    hash = models.CharField(max_length=64)
    verified_sequence = models.BigIntegerField(default=0)
    verified_at = models.DateTimeField(null=True)
    fault = models.CharField(max_length=300, blank=True, default="")

    objects = TenantManager()

    class Meta:
        constraints = [
            models.UniqueConstraint(name="audit_one_platform_head", fields=["tenant"], nulls_distinct=False),
            models.CheckConstraint(name="audit_head_not_negative", condition=Q(sequence__gte=0)),
        ]

    def __str__(self) -> str:
        return f"head of {self.tenant_id or 'the platform'}"


class OutboxEvent(models.Model):
    """What the data plane must hear of, written in the transaction that made it true. See :mod:`tenants.outbox`."""

    topic = models.CharField(max_length=64)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+", null=True)
    payload = models.JSONField(default=dict)
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    published_at = models.DateTimeField(null=True, blank=True)

    objects = TenantManager()

    class Meta:
        indexes = [models.Index(name="outbox_unpublished", fields=["id"], condition=Q(published_at__isnull=True))]

    def __str__(self) -> str:
        return f"{self.topic} {self.id}"
