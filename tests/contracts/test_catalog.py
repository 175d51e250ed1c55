from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane.contracts import catalog
from dataplane.contracts.catalog import (
    Catalog,
    DeploymentEntry,
    EngineSettings,
    IdlePolicy,
    KeepWarm,
    Limits,
    TenantEntry,
)

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


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("moment", "kept"),
    [
        ("2026-11-30T07:59:59", 0),  # a Monday
        ("2026-11-30T08:00:00", 2),
        ("2026-11-30T17:59:59", 2),
        ("2026-11-30T18:00:00", 0),
        ("2026-12-01T23:59:59", 3),  # more is scheduled than there may be
        ("2026-12-06T12:00:00", 0),  # a Sunday
    ],
)
def test_a_schedule_keeps_replicas_from_its_first_minute_to_before_its_last(moment: str, kept: int) -> None:
    deployment = DeploymentEntry(
        id="dep_1", tenant_id="ten_1", name="chat", active=True, arms=(), grants={}, engine=EngineSettings(),
        min_replicas=0, max_replicas=3,
        schedules=(
            KeepWarm(days=(0, 1, 2, 3, 4), from_minute=480, to_minute=1080, min_replicas=2),
            KeepWarm(days=(1,), from_minute=1080, to_minute=1440, min_replicas=4),
        ),
    )  # fmt: skip
    assert catalog.kept_replicas(deployment, at(moment)) == kept


def test_a_snapshot_of_before_idle_policies_still_reads() -> None:
    old = b"""{"number": 1, "published_at_ms": 0, "tenants": {}, "keys": {}, "deployments": {"dep_1": {
        "id": "dep_1", "tenant_id": "ten_1", "name": "chat", "active": true, "arms": [], "grants": {}, "engine": {}
    }}, "versions": {"ver_1": {"id": "ver_1", "tenant_id": "ten_1", "model": "tiny", "number": 1, "digest": "d",
        "files": [], "context_tokens": 512, "created_at_ms": 0
    }}}"""
    seen = catalog.decode(old)
    assert seen.deployments["dep_1"].idle == IdlePolicy()
    assert seen.deployments["dep_1"].schedules == seen.versions["ver_1"].aliases == ()
