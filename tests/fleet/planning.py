"""Catalogs for tests of the planner, by hand and generated."""

import msgspec
from hypothesis import strategies as st

from dataplane.contracts import catalog as contract
from dataplane.contracts.catalog import Arm, Catalog, DeploymentEntry, EngineSettings, IdlePolicy, VersionEntry
from dataplane.fleet.plan import Policy, VersionView

VERSIONS = {
    name: VersionEntry(
        id=name,
        tenant_id=owner,
        model="m",
        number=1,
        digest=f"digest-{name}",
        files=(),
        context_tokens=1,
        created_at_ms=0,
    )
    for name, owner in {"v1": "acme", "v2": "acme", "v3": "evil"}.items()
}
READY_FILES = {name: VersionView(ready=True) for name in VERSIONS}


def deployment(
    name: str,
    *versions: str,
    count: int = 1,
    most: int = 3,
    active: bool = True,
    idle: IdlePolicy | None = None,
    **engine: int,
) -> DeploymentEntry:
    return DeploymentEntry(
        id=name,
        tenant_id="acme",
        name=name,
        active=active,
        arms=tuple(Arm(version_id=version, weight=100 // len(versions)) for version in versions),
        grants={},
        engine=EngineSettings(**engine),
        min_replicas=count,
        max_replicas=most,
        idle=idle or IdlePolicy(),
    )


def catalog_of(*deployments: DeploymentEntry) -> Catalog:
    return msgspec.structs.replace(
        contract.empty(), number=1, versions=VERSIONS, deployments={entry.id: entry for entry in deployments}
    )


after = st.one_of(st.none(), st.integers(0, 15))
policies_when_idle = st.builds(IdlePolicy, asleep_after_s=after, warm_after_s=after, disk_after_s=after)
deployments = st.builds(
    lambda name, versions, count, most, active, seqs, idle: deployment(
        name, *versions, count=count, most=most, active=active, max_num_seqs=seqs, idle=idle
    ),
    st.sampled_from(["d1", "d2"]),
    st.lists(st.sampled_from(["v1", "v2", "v3"]), min_size=1, max_size=2, unique=True),
    st.sampled_from([1, 0, 2, 0, 3, 0]),
    st.sampled_from([3, 2, 1, 0]),
    st.sampled_from([True, True, True, False]),
    st.sampled_from([8, 16]),
    policies_when_idle,
)
catalogs = st.lists(deployments, min_size=1, max_size=2, unique_by=lambda entry: entry.id).map(
    lambda entries: catalog_of(*entries)
)
policies = st.builds(
    Policy,
    warm_idle_floor=st.integers(0, 2),
    max_processes=st.integers(0, 12),
    asleep_budget_bytes=st.integers(0, 20),
)
