"""Who may do what: the closed tables of permissions, by role of a member and by scope of a key."""

from collections.abc import Mapping
from enum import StrEnum


class Role(StrEnum):
    """What a member is to its tenant."""

    OWNER = "owner"
    DEVELOPER = "developer"
    VIEWER = "viewer"
    BILLING = "billing"


class Scope(StrEnum):
    """What a key may be used for. ``inference`` counts at the gateway, the others at the API."""

    INFERENCE = "inference"
    DEPLOYMENTS = "deployments"
    READ = "read"


class Permission(StrEnum):
    """An act, named by what it touches and how."""

    TENANT_READ = "tenant.read"
    TENANT_WRITE = "tenant.write"
    MEMBERS_READ = "members.read"
    MEMBERS_WRITE = "members.write"
    KEYS_READ = "keys.read"
    KEYS_WRITE = "keys.write"
    QUOTA_READ = "quota.read"
    KEY_QUOTA_WRITE = "key_quota.write"
    AUDIT_READ = "audit.read"
    MODELS_READ = "models.read"
    MODELS_WRITE = "models.write"
    DEPLOYMENTS_READ = "deployments.read"
    DEPLOYMENTS_WRITE = "deployments.write"
    ROLLOUTS_READ = "rollouts.read"
    ROLLOUTS_WRITE = "rollouts.write"
    ROLLOUTS_APPROVE = "rollouts.approve"
    WEBHOOKS_READ = "webhooks.read"
    WEBHOOKS_WRITE = "webhooks.write"
    PLAYGROUND_USE = "playground.use"
    REQUESTS_READ = "requests.read"
    USAGE_READ = "usage.read"
    PLATFORM_TENANTS = "platform.tenants"
    PLATFORM_QUOTAS = "platform.quotas"
    PLATFORM_MODELS = "platform.models"
    PLATFORM_ROLLOUTS = "platform.rollouts"
    PLATFORM_GRANTS = "platform.grants"
    PLATFORM_FLEET = "platform.fleet"
    PLATFORM_JOBS = "platform.jobs"
    PLATFORM_AUDIT = "platform.audit"


_P = Permission
_PLATFORM = frozenset(permission for permission in Permission if permission.startswith("platform."))
_READ = frozenset(
    {
        _P.TENANT_READ,
        _P.QUOTA_READ,
        _P.MODELS_READ,
        _P.DEPLOYMENTS_READ,
        _P.ROLLOUTS_READ,
        _P.REQUESTS_READ,
        _P.USAGE_READ,
    }
)

ROLE_PERMISSIONS: Mapping[Role, frozenset[Permission]] = {
    Role.OWNER: frozenset(Permission) - _PLATFORM,
    Role.DEVELOPER: _READ
    | {
        _P.MEMBERS_READ,
        _P.KEYS_READ,
        _P.KEYS_WRITE,
        _P.KEY_QUOTA_WRITE,
        _P.AUDIT_READ,
        _P.MODELS_WRITE,
        _P.DEPLOYMENTS_WRITE,
        _P.ROLLOUTS_WRITE,
        _P.WEBHOOKS_READ,
        _P.WEBHOOKS_WRITE,
        _P.PLAYGROUND_USE,
    },
    Role.VIEWER: _READ | {_P.MEMBERS_READ, _P.KEYS_READ, _P.PLAYGROUND_USE},
    Role.BILLING: frozenset({_P.TENANT_READ, _P.MEMBERS_READ, _P.QUOTA_READ, _P.USAGE_READ}),
}

SCOPE_PERMISSIONS: Mapping[Scope, frozenset[Permission]] = {
    Scope.INFERENCE: frozenset(),
    Scope.READ: _READ,
    Scope.DEPLOYMENTS: _READ | {_P.MODELS_WRITE, _P.DEPLOYMENTS_WRITE, _P.ROLLOUTS_WRITE},
}

PLATFORM_ADMIN_PERMISSIONS = _PLATFORM | _READ | {_P.MEMBERS_READ, _P.KEYS_READ, _P.AUDIT_READ, _P.WEBHOOKS_READ}
"""A platform admin runs the house and looks into every room; what belongs to a tenant, its members change."""

SYSTEM_PERMISSIONS = frozenset(Permission)
"""The product's own processes, each named in the audit row it leaves."""
