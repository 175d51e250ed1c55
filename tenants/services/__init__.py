"""Every change to tenants, members, keys and limits: keyword-only, the actor first, one transaction, its audit row."""

from tenants.services.keys import (
    IssuedKey,
    authenticate_key,
    issue_key,
    note_key_use,
    playground_key,
    revoke_key,
    roll_key,
)
from tenants.services.members import accept_invitation, change_role, invite_member, remove_member, revoke_invitation
from tenants.services.quotas import set_key_quota, set_tenant_quota
from tenants.services.tenancy import create_tenant, create_user, rename_user, resume_tenant, suspend_tenant

__all__ = [
    "IssuedKey",
    "accept_invitation",
    "authenticate_key",
    "change_role",
    "create_tenant",
    "create_user",
    "invite_member",
    "issue_key",
    "note_key_use",
    "playground_key",
    "remove_member",
    "rename_user",
    "resume_tenant",
    "revoke_invitation",
    "revoke_key",
    "roll_key",
    "set_key_quota",
    "set_tenant_quota",
    "suspend_tenant",
]
