"""No arms that are not a whole are ever in force, and they keep nothing else back."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from dataplane.catalog.soundness import sound
from dataplane.contracts import arms as contract_of_arms
from dataplane.contracts import catalog as contract
from dataplane.contracts.catalog import (
    CANDIDATE,
    PREVIOUS,
    STABLE,
    Arm,
    Catalog,
    DeploymentEntry,
    EngineSettings,
    Limits,
    Share,
    TenantEntry,
    VersionEntry,
)

VERSIONS = ("v1", "v2", "v3")
whole_arms = st.sampled_from([
    (Arm("v1", 100),),
    (Arm("v1", 75), Arm("v2", 25, CANDIDATE)),
    (Arm("v1", 0), Arm("v2", 100, CANDIDATE)),
    (Arm("v2", 100), Arm("v1", 0, PREVIOUS)),
])  # fmt: skip
any_arms = st.lists(
    st.builds(
        Arm, st.sampled_from(VERSIONS), st.integers(-1, 101), st.sampled_from([STABLE, CANDIDATE, PREVIOUS, "x"])
    ),
    max_size=3,
).map(tuple)
deployments = st.builds(
    lambda name, arms, grants: DeploymentEntry(
        id=name, tenant_id="acme", name=name, active=True, arms=arms, grants=grants, engine=EngineSettings()
    ),
    st.sampled_from(["d1", "d2", "d3"]),
    whole_arms | any_arms,
    st.sampled_from([{}, {"acme": Share()}]),
)


def catalog_of(entries: list[DeploymentEntry], active: bool) -> Catalog:
    named = {arm.version_id for entry in entries for arm in entry.arms}
    return msgspec.structs.replace(
        contract.empty(),
        tenants={"acme": TenantEntry(id="acme", name="acme", active=active, limits=Limits())},
        deployments={entry.id: entry for entry in entries},
        versions={
            name: VersionEntry(name, "acme", "m", 1, f"digest-{name}", (), context_tokens=1, created_at_ms=0)
            for name in named
        },
    )


catalogs = st.builds(catalog_of, st.lists(deployments, max_size=3, unique_by=lambda entry: entry.id), st.booleans())


@given(st.lists(catalogs, min_size=1, max_size=5))
def test_every_catalog_in_force_has_whole_arms_and_all_else_that_was_published(published: list[Catalog]) -> None:
    in_force = contract.empty()
    for new in published:
        before, checked = in_force, sound(new, in_force)
        in_force = checked.catalog
        assert in_force.tenants == new.tenants
        for entry in in_force.deployments.values():
            assert sum(arm.weight for arm in entry.arms if arm.name in (STABLE, CANDIDATE)) == 100
            assert all(arm.weight == 0 for arm in entry.arms if arm.name == PREVIOUS)
            assert all(arm.version_id in in_force.versions for arm in entry.arms)
            assert msgspec.structs.replace(entry, arms=new.deployments[entry.id].arms) == new.deployments[entry.id]
        for deployment_id, entry in new.deployments.items():
            taken = in_force.deployments.get(deployment_id)
            if contract_of_arms.fault(entry.arms) == "":
                assert taken == entry
                assert deployment_id not in checked.faults
            else:
                last_good = before.deployments.get(deployment_id)
                assert (taken and taken.arms) == (last_good and last_good.arms)
                assert checked.faults[deployment_id]
