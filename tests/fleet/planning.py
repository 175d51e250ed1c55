"""Catalogs for tests of the planner, by hand and generated."""

import msgspec
from hypothesis import strategies as st

from dataplane.contracts import catalog as contract
from dataplane.contracts.catalog import (
    CANDIDATE,
    PREVIOUS,
    STABLE,
    Arm,
    Catalog,
    DeploymentEntry,
    EngineSettings,
    Hold,
    IdlePolicy,
    VersionEntry,
)
from dataplane.fleet import placement
from dataplane.fleet.plan import Assignment, Policy, VersionView

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
    version: str,
    *others: Arm,
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
        arms=(Arm(version, 100 - sum(arm.weight for arm in others)), *others),
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


def held_asleep(catalog: Catalog) -> set[Assignment]:
    """What sleeps for a way back, if anything of it is there."""
    kept = placement.servable(catalog).items()
    return {a for a, (_, arm) in kept if arm.hold is Hold.ASLEEP and arm.name != STABLE and arm.weight == 0}


after = st.one_of(st.none(), st.integers(0, 15))
policies_when_idle = st.builds(IdlePolicy, asleep_after_s=after, warm_after_s=after, disk_after_s=after)
candidates = st.builds(
    Arm, st.just("v2"), st.sampled_from([0, 1, 50, 100]), st.just(CANDIDATE), st.sampled_from([Hold.READY, Hold.NONE])
)
befores = st.builds(Arm, st.just("v3"), st.just(0), st.just(PREVIOUS), st.sampled_from([Hold.ASLEEP, *Hold]))
others = st.tuples(st.lists(candidates, max_size=1), st.lists(befores, max_size=1)).map(
    lambda arms: [*arms[0], *arms[1]]
)
deployments = st.builds(
    lambda name, versions, others, count, most, active, seqs, idle: deployment(
        name,
        versions[0],
        *[msgspec.structs.replace(arm, version_id=version) for arm, version in zip(others, versions[1:], strict=False)],
        count=count,
        most=most,
        active=active,
        max_num_seqs=seqs,
        idle=idle,
    ),
    st.sampled_from(["d1", "d2"]),
    st.permutations(["v1", "v2", "v3"]),
    others,
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
