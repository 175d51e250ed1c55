"""Signatures by the specification of Standard Webhooks (standardwebhooks.com, version 1), pure.

``webhook-signature`` is ``v1,`` and the base64 of HMAC-SHA256 over ``id.timestamp.body``; several, separated by spaces,
while a secret is being rotated: a receiver accepts the message when one of them is its own.
"""

import base64
import hashlib
import hmac
from collections.abc import Sequence

SECRET_PREFIX = "whsec_"  # noqa: S105 - what a secret's text begins with


def secret_text(secret: bytes) -> str:
    """Return a secret as its receiver configures it."""
    return SECRET_PREFIX + base64.b64encode(secret).decode()


def signature(secret: bytes, *, message_id: str, unix_s: int, body: bytes) -> str:
    """Return one signature, its version included."""
    signed = f"{message_id}.{unix_s}.".encode() + body
    return "v1," + base64.b64encode(hmac.digest(secret, signed, hashlib.sha256)).decode()


def headers(secrets: Sequence[bytes], *, message_id: str, unix_s: int, body: bytes) -> dict[str, str]:
    """Return the headers of an attempt, signed with each of ``secrets``; the newest comes first."""
    signatures = [signature(secret, message_id=message_id, unix_s=unix_s, body=body) for secret in secrets]
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(unix_s),
        "webhook-signature": " ".join(signatures),
    }
