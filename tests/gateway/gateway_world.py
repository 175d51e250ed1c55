"""The catalog the gateway's tests live in: acme and evil, their keys and deployments."""

import secrets

from dataplane.contracts import keys
from dataplane.contracts.catalog import (
    Arm,
    Catalog,
    DeploymentEntry,
    EngineSettings,
    KeyEntry,
    KeySecret,
    Limits,
    Share,
    TenantEntry,
    VersionEntry,
)
from dataplane.contracts.generation import EngineLoad
from dataplane.contracts.replica import ReplicaReport, ReplicaState

PEPPER = secrets.token_bytes(32)
PEPPERS = {"p1": PEPPER}
SECRET = "internal-secret-of-the-tests"
CONTEXT_TOKENS = 2048
FAR_MS = 4_000_000_000_000


def key_entry(key: keys.ParsedKey, tenant_id: str, **changes: object) -> KeyEntry:
    fields = {
        "id": f"key_{key.lookup}",
        "tenant_id": tenant_id,
        "secrets": (KeySecret("p1", keys.digest(key.text, PEPPER)),),
        "scopes": ("inference",),
        "limits": Limits(),
    }
    return KeyEntry(**(fields | changes))


class World:
    """A catalog under construction; :meth:`catalog` numbers it anew each time."""

    def __init__(self) -> None:
        self.number = 0
        self.acme_key, self.evil_key = keys.mint("live"), keys.mint("live")
        self.tenants = {
            name: TenantEntry(id=f"ten_{name}", name=name, active=True, limits=Limits()) for name in ("acme", "evil")
        }
        self.keys = {
            self.acme_key.lookup: key_entry(self.acme_key, "ten_acme"),
            self.evil_key.lookup: key_entry(self.evil_key, "ten_evil"),
        }
        self.deployments = {
            "chat": deployment("dep_chat", "ten_acme", "chat", ("ten_acme",)),
            "secret": deployment("dep_secret", "ten_evil", "secret", ("ten_evil",)),
            "shared": deployment("dep_shared", "ten_acme", "shared", ("ten_acme", "ten_evil")),
        }
        self.versions = {"ver_1": version("ver_1", 1, "stable"), "ver_2": version("ver_2", 2)}

    def limit(self, who: str, **limits: int) -> None:
        """Limit a tenant by name, or a key by its lookup."""
        if who in self.tenants:
            old = self.tenants[who]
            self.tenants[who] = TenantEntry(id=old.id, name=old.name, active=old.active, limits=Limits(**limits))
        else:
            old_key = self.keys[who]
            self.keys[who] = KeyEntry(
                id=old_key.id,
                tenant_id=old_key.tenant_id,
                secrets=old_key.secrets,
                scopes=old_key.scopes,
                limits=Limits(**limits),
            )

    def suspend(self, name: str) -> None:
        old = self.tenants[name]
        self.tenants[name] = TenantEntry(id=old.id, name=name, active=False, limits=old.limits)

    def catalog(self, number: int | None = None) -> Catalog:
        self.number = self.number + 1 if number is None else number
        return Catalog(
            number=self.number,
            published_at_ms=1_000 + self.number,
            tenants={entry.id: entry for entry in self.tenants.values()},
            keys=dict(self.keys),
            deployments={entry.id: entry for entry in self.deployments.values()},
            versions=dict(self.versions),
        )


def deployment(
    id_: str, owner: str, name: str, granted: tuple[str, ...], arms: tuple[Arm, ...] = (Arm("ver_1", 100),)
) -> DeploymentEntry:
    return DeploymentEntry(
        id=id_,
        tenant_id=owner,
        name=name,
        active=True,
        arms=arms,
        grants={tenant_id: Share() for tenant_id in granted},
        engine=EngineSettings(),
    )


def version(id_: str, number: int, *aliases: str) -> VersionEntry:
    return VersionEntry(
        id=id_,
        tenant_id="ten_acme",
        model="tiny",
        number=number,
        digest="d" * 64,
        files=(),
        context_tokens=CONTEXT_TOKENS,
        created_at_ms=1_700_000_000_000 + number * 1000,
        aliases=aliases,
    )


def load(
    running: int = 0, waiting: int = 0, total: int = 1000, free: int = 1000, cached: int = 0, step: int = 0
) -> EngineLoad:
    return EngineLoad(
        step=step,
        num_running=running,
        num_waiting=waiting,
        total_blocks=total,
        free_blocks=free,
        cached_blocks=cached,
        owned_blocks=total - free - cached,
        block_size=8,
        num_preemptions=0,
        prefix_cache_queries_tokens=0,
        prefix_cache_hits_tokens=0,
        prompt_tokens=0,
        generation_tokens=0,
    )


def report(
    replica_id: str,
    socket: str = "/nowhere",
    deployment_id: str = "dep_chat",
    version_id: str = "ver_1",
    state: ReplicaState = ReplicaState.READY,
    load: EngineLoad | None = None,
    pid: int = 1,
    since_ms: int = 0,
    **rest: object,
) -> ReplicaReport:
    return ReplicaReport(
        replica_id=replica_id,
        node="node",
        state=state,
        cause="test",
        since_ms=since_ms,
        socket=socket,
        pid=pid,
        deployment_id=deployment_id,
        version_id=version_id,
        load=load,
        **rest,
    )
