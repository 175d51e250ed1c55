import pytest
from domain import PLATFORM, deploy

from controlplane.deployments import fleet, selectors, services
from dataplane.contracts.catalog import Share
from dataplane.contracts.generation import EngineLoad, TenantLoad
from dataplane.contracts.replica import FleetReport, ReplicaReport, ReplicaState, ReplicaTable
from tenants.actor import member_actor, platform_actor
from tenants.errors import Forbidden, NotFound

AT_MS = 1_790_000_000_000


@pytest.fixture
def root(personas):
    return platform_actor(personas.root)


def replica(name: str, deployment, owned: dict[str, int], state: ReplicaState = ReplicaState.READY) -> ReplicaReport:
    """A replica of 128 blocks of 16 tokens, of which each tenant owns so many and keeps 2 cached."""
    used, cached = sum(owned.values()), 2 * len(owned)
    load = EngineLoad(
        step=9, num_running=2, num_waiting=1, total_blocks=128, free_blocks=128 - used - cached, cached_blocks=cached,
        owned_blocks=used, block_size=16, num_preemptions=0, prefix_cache_queries_tokens=0, prefix_cache_hits_tokens=0,
        prompt_tokens=0, generation_tokens=0,
    )  # fmt: skip
    return ReplicaReport(
        replica_id=name, node="n1", state=state, cause="", since_ms=AT_MS, socket="", deployment_id=deployment.id,
        load=load, tenants=[TenantLoad(tenant, 0, 128, 1, blocks, 2, 1, 3, 0.0) for tenant, blocks in owned.items()],
    )  # fmt: skip


def report(*replicas: ReplicaReport) -> None:
    table = ReplicaTable(node="n1", number=1, at_ms=AT_MS, replicas=replicas)
    fleet.report_replicas(actor=PLATFORM, report=FleetReport(table=table, events=()))


def test_a_pool_tells_what_is_promised_used_borrowed_cached_and_free(personas, root):
    acme, evil = personas.acme, personas.evil
    chat = deploy(acme, max_replicas=3)
    services.set_grant(actor=root, deployment_id=chat.id, grantee_slug="evil", share=Share(100, 900))
    report(
        replica("rep_1", chat, {acme.id: 10, evil.id: 5}),
        replica("rep_2", chat, {acme.id: 20, evil.id: 5}),
        replica("rep_3", chat, {acme.id: 99}, ReplicaState.DRAINING),
    )
    pool = selectors.get_pool(actor=member_actor(personas.carol, "acme"), deployment_id=chat.id)
    assert (pool.pool_tokens, pool.ready_replicas, pool.total_tokens) == (2048, 2, 4096)
    assert (pool.used_tokens, pool.cached_tokens, pool.free_tokens) == (40 * 16, 8 * 16, 208 * 16)
    assert (pool.guaranteed_tokens, pool.promised_from_tokens) == (512 + 100, 2048)
    mine, theirs = pool.tenants
    assert (mine.tenant, mine.used_tokens, mine.borrowed_tokens, mine.cached_tokens) == ("acme", 480, 0, 64)
    assert (theirs.tenant, theirs.used_tokens, theirs.borrowed_tokens) == ("evil", 160, 60)
    assert (theirs.share, theirs.num_running, theirs.num_waiting) == (Share(100, 900), 2, 6)


def test_the_platform_sees_every_pool_and_the_same_by_tenant(personas, root, django_assert_num_queries):
    chat, mail = deploy(personas.acme), deploy(personas.evil, name="mail")
    services.set_grant(actor=root, deployment_id=chat.id, grantee_slug="evil", share=Share(16))
    report(replica("rep_1", chat, {personas.evil.id: 3}))
    with django_assert_num_queries(8):  # savepoint, set, deployments, arms, grants, replicas, unset, release
        pools = selectors.list_pools(actor=root)
    assert [(pool.deployment, pool.total_tokens) for pool in pools] == [(chat, 2048), (mail, 0)]
    found = selectors.by_tenant(pools)
    assert list(found) == ["acme", "evil"]
    assert [(pool.deployment.name, tenant.used_tokens) for pool, tenant in found["evil"]] == [("chat", 48), ("mail", 0)]


def test_pools_are_told_to_owners_and_to_the_platform(personas, root):
    chat = deploy(personas.acme)
    services.set_grant(actor=root, deployment_id=chat.id, grantee_slug="evil", share=Share())
    with pytest.raises(Forbidden):
        selectors.list_pools(actor=member_actor(personas.alice, "acme"))
    with pytest.raises(NotFound):
        selectors.get_pool(actor=member_actor(personas.mallory, "evil"), deployment_id=chat.id)
    assert selectors.get_pool(actor=root, deployment_id=chat.id).ready_replicas == 0
