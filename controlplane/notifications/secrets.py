"""The secrets of webhooks: derived when needed and stored nowhere, as the playground's keys are.

A signature needs the secret itself, so a digest, as of API keys, would not do. What is stored is a random salt; the
secret is an HMAC of it under the key ``PAGODA_WEBHOOK_SECRET``, which the database does not have. Who reads the
database, or a copy of it, can sign nothing; there is no ciphertext to keep and no second way to read a secret. The
price: whoever replaces that key gives every webhook another secret, and each has to be rotated to be shown again.
"""

import hashlib
import hmac
import secrets
from datetime import datetime

from django.conf import settings

from controlplane.notifications.models import Webhook

_SALT_BYTES = 16


def new_salt() -> str:
    """Return the salt of a new secret."""
    return secrets.token_hex(_SALT_BYTES)


def current_secret(webhook: Webhook) -> bytes:
    """Return the secret that the webhook's owner was shown last."""
    return _derived(webhook, webhook.salt)


def signing_secrets(webhook: Webhook, now: datetime) -> list[bytes]:
    """Return what a message is signed with: the current secret, and the one before it while that counts."""
    found = [current_secret(webhook)]
    if webhook.old_salt_until is not None and webhook.old_salt_until > now:
        found.append(_derived(webhook, webhook.old_salt))
    return found


def _derived(webhook: Webhook, salt: str) -> bytes:
    return hmac.digest(settings.PAGODA_WEBHOOK_SECRET, f"webhook:{webhook.pk}:{salt}".encode(), hashlib.sha256)
