from hypothesis import given
from hypothesis import strategies as st

from dataplane.contracts import catalog
from dataplane.contracts.catalog import Catalog, Limits, TenantEntry

tenants = st.dictionaries(
    st.sampled_from("abcdef"),
    st.builds(TenantEntry, id=st.text(), name=st.text(), active=st.booleans(), limits=st.just(Limits())),
)


def snapshot(number: int, entries: dict[str, TenantEntry]) -> Catalog:
    return Catalog(number=number, published_at_ms=0, tenants=entries, keys={}, deployments={}, versions={})


@given(tenants, tenants)
def test_a_delta_turns_the_old_snapshot_into_the_new_one(before: dict, after: dict) -> None:
    old, new = snapshot(1, before), snapshot(2, after)
    delta = catalog.decode_delta(catalog.encode(catalog.diff(old, new)))
    assert catalog.apply(old, delta) == new
