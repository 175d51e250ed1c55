"""What replicas and probes say of tenants, on a clock that tests turn."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from types import SimpleNamespace

from domain import PLATFORM

from controlplane.deployments.fleet import report_replicas
from controlplane.deployments.models import Deployment
from controlplane.isolation import selectors, services
from dataplane.contracts import auc
from dataplane.contracts.generation import EngineLoad, TenantLoad
from dataplane.contracts.probes import ProbeKind, ProbeReport
from dataplane.contracts.replica import FleetReport, ReplicaReport, ReplicaState, ReplicaTable
from tenants.models import Tenant

BLOCK_SIZE = 16
BEGIN = datetime(2026, 11, 30, 9, 0, tzinfo=UTC)
"""A full hour, so that slots begin where tests do."""
ENOUGH = 2_100
"""Trials, more than what is wanted."""
_AT_MS = int(BEGIN.timestamp() * 1000)


def load(tenant: Tenant, owned: int = 0, **fields: object) -> TenantLoad:
    """Return what an engine says of a tenant with a guarantee of 4 blocks and a cap of 128."""
    said = {"guarantee_blocks": 4, "cap_blocks": 128, "weight": 1, "cached_blocks": 0, "num_running": 0}
    return TenantLoad(
        **({"tenant_id": tenant.id, "owned_blocks": owned, "num_waiting": 0, "service": 0.0} | said | fields)
    )


def replica(
    name: str, deployment: Deployment, *tenants: TenantLoad, step: int = 1, version_id: str = "", **fields: object
) -> ReplicaReport:
    """Return a READY replica of 128 blocks that says this of its tenants at a step of its engine."""
    used = sum(tenant.owned_blocks for tenant in tenants)
    figures = EngineLoad(
        step=step, num_running=0, num_waiting=0, total_blocks=128, free_blocks=128 - used, cached_blocks=0,
        owned_blocks=used, block_size=BLOCK_SIZE, num_preemptions=0, prefix_cache_queries_tokens=0,
        prefix_cache_hits_tokens=0, prompt_tokens=0, generation_tokens=0,
    )  # fmt: skip
    return ReplicaReport(
        replica_id=name, node="n1", state=ReplicaState.READY, cause="", since_ms=_AT_MS, socket="",
        deployment_id=deployment.id, version_id=version_id, load=figures, tenants=list(tenants), **fields,
    )  # fmt: skip


def probe(
    deployment: Deployment, kind: ProbeKind, slow: auc.Bins, fast: auc.Bins, at: datetime = BEGIN, **fields: object
) -> ProbeReport:
    """Return what probes found on a replica, of prompts of 64 tokens."""
    return ProbeReport(**(
        {
            "replica_id": "rep_1", "deployment_id": deployment.id, "version_id": "ver_1", "kind": kind,
            "at_ms": int(at.timestamp() * 1000), "slow": slow, "fast": fast,
            "prompt_tokens": 64 * auc.size(fast),
        } | fields
    ))  # fmt: skip


def alike(trials: int = ENOUGH) -> tuple[auc.Bins, auc.Bins]:
    """Return two samples of the same times."""
    times = auc.binned((10 + number % 97) / 1000 for number in range(trials))
    return times, times


def apart(trials: int = ENOUGH) -> tuple[auc.Bins, auc.Bins]:
    """Return two samples without a time in common: the first is the slow one."""
    fast = auc.binned((10 + number % 97) / 1000 for number in range(trials))
    return auc.binned((200 + number % 97) / 1000 for number in range(trials)), fast


def sound(deployment: Deployment, at: datetime = BEGIN, trials: int = ENOUGH) -> tuple[ProbeReport, ...]:
    """Return probes that see their own prompts and nobody else's."""
    return (
        probe(deployment, ProbeKind.ACROSS, *alike(trials), at=at),
        probe(deployment, ProbeKind.WITHIN, *apart(trials), at=at, cached_tokens=56 * trials),
    )


@dataclass
class Node:
    """A node whose fleet reports, and the time at which it does. ``install`` lets the product have that time."""

    now: datetime = BEGIN
    numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def install(self, monkeypatch) -> "Node":
        clock = SimpleNamespace(now=lambda: self.now)
        for module in (services, selectors):
            monkeypatch.setattr(module, "timezone", clock)
        return self

    def tell(self, *replicas: ReplicaReport, probes: tuple[ProbeReport, ...] = (), after_s: float = 60) -> FleetReport:
        """Report some time after the report before; return it."""
        self.now += timedelta(seconds=after_s)
        number = next(self.numbers)
        table = ReplicaTable(node="n1", number=number, at_ms=_AT_MS + number, replicas=replicas)
        report = FleetReport(table=table, events=(), probes=probes)
        report_replicas(actor=PLATFORM, report=report)
        services.ingest(actor=PLATFORM, report=report)
        return report
