"""How the product's own processes know each other over HTTP: one shared secret, shown as a bearer."""

import hmac


def authorization(secret: str) -> str:
    """Return the ``Authorization`` header of an internal call."""
    return f"Bearer {secret}"


def is_internal(shown: str | None, secret: str) -> bool:
    """Say whether a call's ``Authorization`` header is that of an internal one; compared in constant time."""
    return hmac.compare_digest((shown or "").encode(), authorization(secret).encode())
