"""What a deployment's grants mean for one replica, and the secret that salts a version's prefix cache."""

import hashlib
import hmac
from collections.abc import Mapping

import msgspec

from dataplane.contracts.catalog import Share


def split(grants: Mapping[str, Share], replicas: int) -> dict[str, Share]:
    """Return each tenant's part on one of ``replicas`` equal replicas, in tokens, rounded up.

    Guarantees and caps are promises of the deployment as a whole, so each replica holds an equal part of them. What
    else a share says holds on each replica as it stands.
    """
    parts = max(1, replicas)
    return {
        tenant_id: msgspec.structs.replace(
            share,
            guarantee_tokens=-(-share.guarantee_tokens // parts),
            cap_tokens=None if share.cap_tokens is None else -(-share.cap_tokens // parts),
        )
        for tenant_id, share in grants.items()
    }


def salt_secret(secret: bytes, version_digest: str) -> bytes:
    """Derive the secret of one version's cache salts: a worker of one version learns nothing about another's."""
    return hmac.digest(secret, f"cache-salt:{version_digest}".encode(), hashlib.sha256)
