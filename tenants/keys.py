"""How secrets of keys are stored and judged: an HMAC under the current pepper, compared in constant time."""

from collections.abc import Iterable
from datetime import datetime

from django.conf import settings

from dataplane.contracts import keys
from tenants.models import ApiKey, ApiKeySecret


def current_digest(text: str) -> tuple[str, str]:
    """Return (pepper id, digest) of a key's text under the pepper that new secrets are stored with."""
    pepper_id, pepper = next(iter(settings.PAGODA_KEY_PEPPERS.items()))
    return pepper_id, keys.digest(text, pepper)


def is_live(expires_at: datetime | None, now: datetime) -> bool:
    """Say whether something that ends at ``expires_at`` still counts; None never ends."""
    return expires_at is None or expires_at > now


def accepts(text: str, secrets: Iterable[ApiKeySecret], now: datetime) -> bool:
    """Say whether ``text`` matches a live secret. All are compared, so that time tells nothing of which one."""
    shown = keys.digests(text, settings.PAGODA_KEY_PEPPERS)
    found = False
    for secret in secrets:
        if is_live(secret.expires_at, now):
            found |= keys.matches(shown, secret.pepper_id, secret.digest)
    return found


def playground_text(key: ApiKey) -> str:
    """Return the text of a playground key, which is derived when needed and stored nowhere."""
    context = f"playground:{key.tenant_id}:{key.created_by_id}"
    return keys.derive(key.env, key.lookup, settings.PAGODA_PLAYGROUND_SECRET, context).text
