from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from django.db import connection
from domain import PLATFORM, deploy, make_version

from controlplane.deployments import catalog, services
from controlplane.deployments.models import CatalogHead
from controlplane.registry.models import ModelAlias
from dataplane.contracts import catalog as contract
from dataplane.contracts.catalog import Arm, EngineSettings, IdlePolicy, KeepWarm, Limits, Share
from tenants.actor import acting_as, member_actor, platform_actor, system_actor
from tenants.errors import Forbidden
from tenants.models import OutboxEvent
from tenants.services import keys, quotas, tenancy


def latest() -> contract.Catalog:
    body = catalog.latest(actor=PLATFORM)
    assert body is not None
    return contract.decode(body)


def test_the_catalog_says_who_may_call_what_and_how_it_is_made(personas):
    alice, root = member_actor(personas.alice, "acme"), platform_actor(personas.root)
    issued = keys.issue_key(actor=alice, name="app")
    quotas.set_tenant_quota(actor=root, tenant_id=personas.acme.id, limits=Limits(requests_per_minute=60))
    version = make_version(personas.acme)
    with acting_as(PLATFORM):
        for name in ("stable", "best"):
            ModelAlias.objects.create(tenant=personas.acme, model=version.model, version=version, name=name)
    idle = IdlePolicy(asleep_after_s=60, disk_after_s=600, cold_wait_s=20)
    mornings = KeepWarm(days=(0, 4), from_minute=480, to_minute=720, min_replicas=1)
    deployment = deploy(personas.acme, version=version, min_replicas=0, max_replicas=2, idle=idle, schedules=[mornings])
    services.set_grant(actor=root, deployment_id=deployment.id, grantee_slug="evil", share=Share(100, 200, 3))
    seen = latest()
    assert {tenant.name: tenant.limits for tenant in seen.tenants.values()} == {
        "acme": Limits(requests_per_minute=60), "evil": Limits(),
    }  # fmt: skip
    assert [key.id for key in seen.keys.values()] == [issued.key.id]
    assert issued.text not in contract.encode(seen).decode()
    entry = seen.deployments[deployment.id]
    assert (entry.name, entry.active, entry.min_replicas, entry.max_replicas) == ("chat", True, 0, 2)
    assert entry.arms == (Arm(version_id=version.id, weight=100),)
    assert entry.grants == {
        personas.acme.id: Share(2048 // services.OWNER_GUARANTEE),
        personas.evil.id: Share(100, 200, 3),
    }
    assert entry.engine == EngineSettings(kv_memory_mb=1, block_size=16)
    assert (entry.idle, entry.schedules) == (idle, (mornings,))
    assert list(contract.callable_names(seen, personas.evil.id)) == ["acme/chat"]
    files = seen.versions[version.id].files
    assert [(file.name, file.size_bytes) for file in files] == [("config.json", 1_000), ("model.safetensors", 400_000)]
    assert seen.versions[version.id].digest == version.digest
    assert seen.versions[version.id].aliases == ("best", "stable")


def test_versions_that_no_deployment_serves_stay_out(personas):
    make_version(personas.acme)
    deployment = deploy(personas.acme)
    assert len(latest().versions) == 1
    services.delete_deployment(actor=system_actor("tests", personas.acme), deployment_id=deployment.id)
    assert (latest().versions, latest().deployments) == ({}, {})


def test_the_number_grows_with_each_change_and_only_then(personas):
    first = latest().number
    assert latest().number == first
    assert catalog.latest(actor=PLATFORM, unless_number=first) is None
    deployment = deploy(personas.acme)
    assert latest().number == first + 1
    services.pause_deployment(actor=system_actor("tests", personas.acme), deployment_id=deployment.id)
    paused = latest()
    assert (paused.number, paused.deployments[deployment.id].active) == (first + 2, False)
    with acting_as(PLATFORM):
        assert not OutboxEvent.objects.filter(published_at=None).exists()
        OutboxEvent.objects.create(topic="key", payload={})
    assert latest().number == first + 2


def test_a_revoked_key_and_a_suspended_tenant_are_in_the_next_catalog(personas):
    alice, root = member_actor(personas.alice, "acme"), platform_actor(personas.root)
    issued = keys.issue_key(actor=alice, name="app")
    assert issued.key.lookup in latest().keys
    keys.revoke_key(actor=alice, key_id=issued.key.id)
    tenancy.suspend_tenant(actor=root, tenant_id=personas.evil.id, reason="unpaid")
    seen = latest()
    assert seen.keys == {}
    assert not seen.tenants[personas.evil.id].active


def test_a_change_committed_late_still_gets_a_number_of_its_own(committed, personas):
    """Outbox ids are given out before commits: an event with a lower id may appear after one with a higher id."""
    alice = member_actor(personas.alice, "acme")
    issued = keys.issue_key(actor=alice, name="app")
    before = latest().number
    started, published = Barrier(2), Barrier(2)

    def revoke_slowly() -> None:
        original = keys.audit.record

        def wait_then_record(**fields):
            started.wait(timeout=10)
            published.wait(timeout=10)
            return original(**fields)

        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(keys.audit, "record", wait_then_record)
                keys.revoke_key(actor=alice, key_id=issued.key.id)
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(revoke_slowly)
        started.wait(timeout=10)
        with acting_as(PLATFORM):
            OutboxEvent.objects.create(topic="tenant", payload={})
        assert latest().number == before
        published.wait(timeout=10)
        slow.result(timeout=10)
    after = latest()
    assert after.number == before + 1
    assert after.keys == {}


def test_builders_that_race_agree_on_one_number(committed, personas):
    for round_ in range(5):
        deploy(personas.acme, name=f"d{round_}", min_replicas=0)
        barrier = Barrier(4)

        def build(barrier: Barrier = barrier) -> tuple[int, int]:
            try:
                barrier.wait(timeout=10)
                seen = latest()
                return seen.number, len(seen.deployments)
            finally:
                connection.close()

        with ThreadPoolExecutor(4) as pool:
            results = {future.result(timeout=20) for future in [pool.submit(build) for _ in range(4)]}
        assert results == {(round_ + 1, round_ + 1)}


def test_a_build_leaves_the_connection_as_it_was(committed, personas):
    deploy(personas.acme)
    latest()
    with connection.cursor() as cursor:
        cursor.execute("SHOW default_transaction_isolation")
        assert cursor.fetchone() == ("read committed",)


def test_only_the_platform_reads_the_catalog(personas):
    latest()
    with pytest.raises(Forbidden):
        catalog.latest(actor=member_actor(personas.alice, "acme"))
    with acting_as(member_actor(personas.alice, "acme")):
        assert not CatalogHead.objects.exists()
