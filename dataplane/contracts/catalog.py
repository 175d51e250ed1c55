"""The catalog: everything a gateway and the fleet need to know to serve, as a numbered snapshot or a delta.

It carries key digests, never peppers or salts. Readers accept the schema version before theirs.
"""

from enum import StrEnum
from typing import TypeVar

import msgspec

SCHEMA = 1
REDIS_KEY = "pagoda:catalog"
"""Redis key of the whole snapshot."""
REDIS_CHANNEL = "pagoda:catalog"
"""Redis channel of the deltas. The publisher writes the key first, then publishes."""


class Limits(msgspec.Struct, frozen=True):
    """Limits of a tenant or of a key; None is no limit of its own."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent_requests: int | None = None
    max_request_tokens: int | None = None


class TenantEntry(msgspec.Struct, frozen=True):
    """A tenant as the data plane sees it. ``name`` is the slug."""

    id: str
    name: str
    active: bool
    limits: Limits


class KeySecret(msgspec.Struct, frozen=True):
    """One accepted secret of a key: two of them while a key is being rolled."""

    pepper_id: str
    digest: str
    expires_at_ms: int | None = None


class KeyEntry(msgspec.Struct, frozen=True):
    """A key that may be used. ``deployment_ids`` None means every deployment its tenant may call."""

    id: str
    tenant_id: str
    secrets: tuple[KeySecret, ...]
    scopes: tuple[str, ...]
    limits: Limits
    deployment_ids: tuple[str, ...] | None = None
    expires_at_ms: int | None = None


class Share(msgspec.Struct, frozen=True):
    """A tenant's KV budget and weight on a deployment. Tokens, rounded up to blocks by the engine.

    ``cap_tokens`` None is the whole pool. ``cache_epoch`` is a part of the salt of the tenant's cached prefixes: with
    another one all of them are forgotten. ``pace_ms`` is the time between two pieces of its answers, whatever the batch
    does; 0 sends them as they come. It belongs to the grant and not to a request: who would see by its own answers how
    busy others are does not ask to be kept from it.
    """

    guarantee_tokens: int = 0
    cap_tokens: int | None = None
    weight: int = 1
    cache_epoch: int = 0
    pace_ms: int = 0


STABLE = "stable"
"""The arm that serves when no rollout runs."""
CANDIDATE = "candidate"
"""The arm that a rollout tries."""
PREVIOUS = "previous"
"""The version that was stable before the last promotion, kept asleep for a while. It never has weight."""


class Hold(StrEnum):
    """What the fleet keeps of an arm besides what its weight calls for.

    NONE: nothing. READY: at least one READY replica at any weight, zero included. ASLEEP: weights in host memory, so
    that a rollback loads nothing; a deployment's idle policy does not end it, a lack of memory does.
    """

    NONE = "none"
    READY = "ready"
    ASLEEP = "asleep"


class Arm(msgspec.Struct, frozen=True):
    """A version that takes ``weight`` per cent of a deployment's traffic.

    The weights of a deployment sum to 100 over its ``stable`` and ``candidate`` arm.
    """

    version_id: str
    weight: int
    name: str = STABLE
    hold: Hold = Hold.NONE


AUTO = "auto"
"""A choice that is left to what the model and the machine are."""


class EngineSettings(msgspec.Struct, frozen=True):
    """How the replicas of a deployment run. None leaves the choice to the worker.

    ``dtype`` and ``kv_dtype`` are precisions of weights and of keys and values (:mod:`dataplane.contracts.precision`).
    """

    dtype: str = "fp32"
    device: str = AUTO
    max_model_len: int | None = None
    max_num_seqs: int = 32
    kv_memory_mb: int | None = None
    block_size: int = 8
    prefix_cache: bool = True
    kv_dtype: str = AUTO


class IdlePolicy(msgspec.Struct, frozen=True):
    """How warm an idle deployment is kept. Seconds since its last use; None: it never steps down that far.

    ``cold_wait_s``: how long a call may wait while the deployment starts again.
    """

    asleep_after_s: int | None = None
    warm_after_s: int | None = None
    disk_after_s: int | None = None
    cold_wait_s: int = 30


class KeepWarm(msgspec.Struct, frozen=True):
    """A time of the week, in UTC, during which at least ``min_replicas`` stay ready however idle they are.

    ``days`` counts from 0, Monday. Minutes of the day: ``from_minute`` is the first, ``to_minute`` (up to 1440) is no
    longer part of it. What goes over midnight takes two.
    """

    days: tuple[int, ...]
    from_minute: int
    to_minute: int
    min_replicas: int


class DeploymentEntry(msgspec.Struct, frozen=True):
    """A name that applications call, and who may call it.

    ``tenant_id`` owns it. ``grants`` maps a tenant id, the owner's included, to its share. ``min_replicas`` never step
    down; :func:`kept_replicas` adds the schedules.
    """

    id: str
    tenant_id: str
    name: str
    active: bool
    arms: tuple[Arm, ...]
    grants: dict[str, Share]
    engine: EngineSettings
    min_replicas: int = 1
    max_replicas: int = 1
    idle: IdlePolicy = IdlePolicy()
    schedules: tuple[KeepWarm, ...] = ()


class VersionFile(msgspec.Struct, frozen=True):
    """A file of a version: its name in the folder, its content address and its size."""

    name: str
    sha256: str
    size_bytes: int


class VersionEntry(msgspec.Struct, frozen=True):
    """An immutable version of a model. ``digest`` names its content; ``tenant_id`` owns it.

    ``aliases`` are names of it that move, such as ``stable``.
    """

    id: str
    tenant_id: str
    model: str
    number: int
    digest: str
    files: tuple[VersionFile, ...]
    context_tokens: int
    created_at_ms: int
    aliases: tuple[str, ...] = ()


class Catalog(msgspec.Struct, frozen=True):
    """A whole snapshot. Maps are keyed by id, keys by their lookup part."""

    number: int
    published_at_ms: int
    tenants: dict[str, TenantEntry]
    keys: dict[str, KeyEntry]
    deployments: dict[str, DeploymentEntry]
    versions: dict[str, VersionEntry]
    schema: int = SCHEMA


class CatalogDelta(msgspec.Struct, frozen=True):
    """What turns snapshot ``base`` into snapshot ``number``: entries to put and keys to drop, map by map."""

    base: int
    number: int
    published_at_ms: int
    put_tenants: dict[str, TenantEntry]
    put_keys: dict[str, KeyEntry]
    put_deployments: dict[str, DeploymentEntry]
    put_versions: dict[str, VersionEntry]
    drop: dict[str, tuple[str, ...]]
    schema: int = SCHEMA


class CatalogError(ValueError):
    """A snapshot or delta that this reader must not apply."""


_EPOCH_WEEKDAY = 3
"""1 January 1970 was a Thursday."""
_MAPS = ("tenants", "keys", "deployments", "versions")
_Entry = TypeVar("_Entry")


def empty() -> Catalog:
    """Return snapshot 0, in which nothing exists."""
    return Catalog(number=0, published_at_ms=0, tenants={}, keys={}, deployments={}, versions={})


def diff(old: Catalog, new: Catalog) -> CatalogDelta:
    """Return the delta from ``old`` to ``new``."""
    return CatalogDelta(
        base=old.number,
        number=new.number,
        published_at_ms=new.published_at_ms,
        put_tenants=_changed(old.tenants, new.tenants),
        put_keys=_changed(old.keys, new.keys),
        put_deployments=_changed(old.deployments, new.deployments),
        put_versions=_changed(old.versions, new.versions),
        drop={name: tuple(sorted(getattr(old, name).keys() - getattr(new, name).keys())) for name in _MAPS},
    )


def _changed(old: dict[str, _Entry], new: dict[str, _Entry]) -> dict[str, _Entry]:
    return {key: entry for key, entry in new.items() if old.get(key) != entry}


def apply(old: Catalog, delta: CatalogDelta) -> Catalog:
    """Return the snapshot that ``delta`` makes of ``old``.

    Raises:
        CatalogError: the delta starts from another snapshot; fetch a whole one.
    """
    if delta.base != old.number:
        raise CatalogError(f"delta from {delta.base} cannot be applied to snapshot {old.number}")

    def patched(name: str, put: dict[str, _Entry]) -> dict[str, _Entry]:
        dropped = set(delta.drop.get(name, ()))
        kept = {key: entry for key, entry in getattr(old, name).items() if key not in dropped}
        return kept | put

    return Catalog(
        number=delta.number,
        published_at_ms=delta.published_at_ms,
        tenants=patched("tenants", delta.put_tenants),
        keys=patched("keys", delta.put_keys),
        deployments=patched("deployments", delta.put_deployments),
        versions=patched("versions", delta.put_versions),
    )


def encode(snapshot: Catalog | CatalogDelta) -> bytes:
    """Return the JSON of a snapshot or delta."""
    return msgspec.json.encode(snapshot)


def decode(raw: bytes) -> Catalog:
    """Read a snapshot.

    Raises:
        CatalogError: not a snapshot, or a schema newer than this reader.
    """
    return _checked(raw, Catalog)


def decode_delta(raw: bytes) -> CatalogDelta:
    """Read a delta. Raises as :func:`decode` does."""
    return _checked(raw, CatalogDelta)


_Snapshot = TypeVar("_Snapshot", Catalog, CatalogDelta)


def _checked(raw: bytes, kind: type[_Snapshot]) -> _Snapshot:
    try:
        snapshot = msgspec.json.decode(raw, type=kind)
    except msgspec.DecodeError as error:
        raise CatalogError(str(error)) from error
    if snapshot.schema > SCHEMA:
        raise CatalogError(f"schema {snapshot.schema} is newer than this reader's {SCHEMA}")
    return snapshot


def kept_replicas(deployment: DeploymentEntry, unix_s: float) -> int:
    """Return how many replicas of ``deployment`` stay ready at ``unix_s`` without any demand."""
    days, second = divmod(int(unix_s), 24 * 3600)
    weekday, minute = (days + _EPOCH_WEEKDAY) % 7, second // 60
    scheduled = [
        window.min_replicas
        for window in deployment.schedules
        if weekday in window.days and window.from_minute <= minute < window.to_minute
    ]
    return min(max([deployment.min_replicas, *scheduled]), deployment.max_replicas)


def callable_names(catalog: Catalog, tenant_id: str, key: KeyEntry | None = None) -> dict[str, DeploymentEntry]:
    """Return the deployments a tenant (and key) may call, by the name it calls them.

    An owner says ``name``; a tenant with a grant on another's deployment says ``owner/name``.
    """
    names: dict[str, DeploymentEntry] = {}
    for deployment in catalog.deployments.values():
        if tenant_id not in deployment.grants:
            continue
        if key is not None and key.deployment_ids is not None and deployment.id not in key.deployment_ids:
            continue
        owner = catalog.tenants.get(deployment.tenant_id)
        if deployment.tenant_id == tenant_id:
            names[deployment.name] = deployment
        elif owner is not None:
            names[f"{owner.name}/{deployment.name}"] = deployment
    return names
