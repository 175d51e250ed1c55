"""Who is calling: from the ``Authorization`` header to a tenant and a key of the catalog, without a database.

Junk is refused by its checksum before anything is looked up. A verification is not cached: one HMAC costs about as much
as the hash under which it would have to be kept, and a cache would have to be told of revocations.
"""

from collections.abc import Mapping

import msgspec

from dataplane.contracts import keys
from dataplane.contracts.catalog import Catalog, KeyEntry, KeySecret, TenantEntry
from dataplane.contracts.errors import ApiError, Code

SCOPE = "inference"
_UNKNOWN = "This API key is not known. Check it, or make a new one in the console."


class Caller(msgspec.Struct, frozen=True):
    """An authenticated caller: the entries it was admitted by, and the one secret of the key that it showed."""

    tenant: TenantEntry
    key: KeyEntry
    lookup: str
    secret: KeySecret


def bearer(authorization: str | None) -> str:
    """Return the token of an ``Authorization: Bearer`` header.

    Raises:
        ApiError: INVALID_API_KEY where there is none.
    """
    scheme, _, token = (authorization or "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise ApiError(Code.INVALID_API_KEY, "No API key was given. Send it as 'Authorization: Bearer <your key>'.")
    return token.strip()


def authenticate(token: str, catalog: Catalog, peppers: Mapping[str, bytes], now_ms: int) -> Caller:
    """Return the caller that ``token`` proves.

    A revoked key is not in the catalog, so it is answered as one that never was. What is wrong with a key is said only
    to someone who has shown its secret.

    Args:
        token: the key as sent.
        catalog: the newest snapshot.
        peppers: by id.
        now_ms: wall clock, for expiry.

    Raises:
        ApiError: INVALID_API_KEY, KEY_REVOKED (expired), SCOPE_MISSING or TENANT_SUSPENDED.
    """
    parsed = keys.parse(token)
    if parsed is None:
        raise ApiError(Code.INVALID_API_KEY, "This is not an API key: a key reads pgd_<env>_... and has a checksum.")
    shown = keys.digests(token, peppers)
    key = catalog.keys.get(parsed.lookup)
    secret = _shown_secret(key, shown) if key is not None else None
    if key is None or secret is None:
        raise ApiError(Code.INVALID_API_KEY, _UNKNOWN)
    tenant = catalog.tenants.get(key.tenant_id)
    caller = None if tenant is None else Caller(tenant=tenant, key=key, lookup=parsed.lookup, secret=secret)
    if caller is None:
        raise ApiError(Code.INVALID_API_KEY, _UNKNOWN)
    fault = withdrawn(caller, catalog, now_ms)
    if fault is not None:
        raise fault
    if SCOPE not in key.scopes:
        raise ApiError(Code.SCOPE_MISSING, f"This API key lacks the scope '{SCOPE}'.")
    return caller


def _shown_secret(key: KeyEntry, shown: Mapping[str, str]) -> KeySecret | None:
    return next((each for each in key.secrets if keys.matches(shown, each.pepper_id, each.digest)), None)


def withdrawn(caller: Caller, catalog: Catalog, now_ms: int) -> ApiError | None:
    """Return why ``caller`` may not go on under ``catalog``, or None. Also asked of callers whose streams run."""
    key = catalog.keys.get(caller.lookup)
    tenant = catalog.tenants.get(caller.tenant.id)
    if tenant is None or not tenant.active:
        return ApiError(Code.TENANT_SUSPENDED, "This tenant is suspended. Its owner can ask the platform why.")
    if key is None or key.id != caller.key.id or not _accepts(key, caller.secret):
        return ApiError(Code.KEY_REVOKED, "This API key was revoked.")
    current = next(s for s in key.secrets if s.digest == caller.secret.digest)
    if _past(key.expires_at_ms, now_ms) or _past(current.expires_at_ms, now_ms):
        return ApiError(Code.KEY_REVOKED, "This API key has expired. Make a new one in the console.")
    return None


def _accepts(key: KeyEntry, shown: KeySecret) -> bool:
    return any(secret.digest == shown.digest for secret in key.secrets)


def _past(expires_at_ms: int | None, now_ms: int) -> bool:
    return expires_at_ms is not None and expires_at_ms <= now_ms


def ungranted(caller: Caller, deployment_id: str, catalog: Catalog) -> ApiError | None:
    """Return why ``caller`` may no longer call a deployment that it was admitted to, or None."""
    deployment = catalog.deployments.get(deployment_id)
    allowed = catalog.keys[caller.lookup].deployment_ids
    if (
        deployment is None
        or caller.tenant.id not in deployment.grants
        or (allowed is not None and deployment_id not in allowed)
    ):
        return ApiError(Code.MODEL_NOT_FOUND, "This model may no longer be called with this API key.")
    return None
