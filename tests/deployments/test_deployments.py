import pytest
from django.db import IntegrityError, connection
from django.utils import timezone
from domain import KV_BYTES_PER_TOKEN, PLATFORM, deploy, make_version

from controlplane.deployments import selectors, services
from controlplane.deployments.models import Deployment, DeploymentArm, Grant
from controlplane.registry.holders import holders
from controlplane.registry.models import ModelVersion, VersionState
from dataplane.contracts.catalog import EngineSettings, Share
from tenants.actor import acting_as, member_actor, platform_actor
from tenants.errors import Conflict, Forbidden, Invalid, NotFound
from tenants.models import AuditEvent, OutboxEvent
from tenants.services import issue_key, revoke_key


@pytest.fixture
def bob(personas):
    return member_actor(personas.bob, "acme")


@pytest.fixture
def mallory(personas):
    return member_actor(personas.mallory, "evil")


@pytest.fixture
def root(personas):
    return platform_actor(personas.root)


def verbs() -> list[str]:
    with acting_as(PLATFORM):
        return list(AuditEvent.objects.order_by("at").values_list("verb", flat=True))


def test_a_deployment_starts_with_one_arm_and_its_owners_leave(personas, bob):
    version = make_version(personas.acme)
    deployment = services.deploy_version(actor=bob, name="chat", version_id=version.id)
    with acting_as(bob):
        assert [(arm.version_id, arm.weight) for arm in deployment.arms.all()] == [(version.id, 100)]
        pool_tokens = services.DEFAULT_KV_MEMORY_MB * 1024 * 1024 // KV_BYTES_PER_TOKEN
        promised = Share(guarantee_tokens=pool_tokens // services.OWNER_GUARANTEE)
        assert [(grant.grantee_slug, grant.share) for grant in deployment.grants.all()] == [("acme", promised)]
        assert OutboxEvent.objects.filter(topic="deployment").exists()
    assert deployment.engine == EngineSettings(kv_memory_mb=services.DEFAULT_KV_MEMORY_MB)
    assert "deployment.create" in verbs()


def test_a_name_is_taken_once_and_free_again_after_the_end(personas, bob):
    first = deploy(personas.acme)
    with pytest.raises(Conflict, match="exists already"):
        deploy(personas.acme)
    assert deploy(personas.evil).name == "chat"
    services.delete_deployment(actor=bob, deployment_id=first.id)
    assert deploy(personas.acme).id != first.id


def test_only_a_ready_version_of_the_own_tenant_is_deployed(personas, bob, mallory):
    version = make_version(personas.acme)
    with pytest.raises(NotFound):
        services.deploy_version(actor=mallory, name="mine", version_id=version.id)
    for state in (VersionState.REJECTED, VersionState.ARCHIVED):
        other = make_version(personas.acme, state=state)
        with pytest.raises(Conflict, match=f"is {state}"):
            services.deploy_version(actor=bob, name="bad", version_id=other.id)
    with acting_as(PLATFORM):
        ModelVersion.objects.filter(pk=version.id).update(deleted_at=timezone.now())
    with pytest.raises(NotFound):
        services.deploy_version(actor=bob, name="gone", version_id=version.id)


def test_a_viewer_deploys_nothing(personas):
    carol = member_actor(personas.carol, "acme")
    with pytest.raises(Forbidden):
        services.deploy_version(actor=carol, name="chat", version_id=make_version(personas.acme).id)


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("name", {"name": "No Spaces"}),
        ("name", {"name": "x"}),
        ("dtype", {"engine": EngineSettings(dtype="int3")}),
        ("kv_dtype", {"engine": EngineSettings(kv_dtype="int4")}),
        ("device", {"engine": EngineSettings(device="abacus")}),
        ("block_size", {"engine": EngineSettings(block_size=0)}),
        ("max_num_seqs", {"engine": EngineSettings(max_num_seqs=5000)}),
        ("max_model_len", {"engine": EngineSettings(max_model_len=513)}),
        ("kv_memory_mb", {"engine": EngineSettings(kv_memory_mb=0)}),
        ("min_replicas", {"min_replicas": -1}),
        ("max_replicas", {"min_replicas": 3, "max_replicas": 2}),
    ],
)
def test_a_refused_setting_is_named(personas, bob, field, changes):
    version = make_version(personas.acme)
    with pytest.raises(Invalid) as refusal:
        services.deploy_version(**({"actor": bob, "name": "chat", "version_id": version.id} | changes))
    assert set(refusal.value.fields) == {field}


def test_guarantees_that_do_not_fit_are_refused_with_the_numbers(personas, bob, root):
    deployment = deploy(personas.acme)
    services.set_grant(actor=bob, deployment_id=deployment.id, grantee_slug="acme", share=Share(1500, 1800, 2))
    with pytest.raises(Invalid, match=r"2064 tokens \(acme 1500, evil 550.*2048 tokens") as refusal:
        services.set_grant(actor=root, deployment_id=deployment.id, grantee_slug="evil", share=Share(550))
    assert refusal.value.code == "does_not_fit"
    services.set_grant(actor=root, deployment_id=deployment.id, grantee_slug="evil", share=Share(540))
    pool = selectors.get_pool(actor=bob, deployment_id=deployment.id)
    assert pool.pool_tokens == 2048
    assert [(grant.grantee_slug, grant.share) for grant in pool.grants] == [
        ("acme", Share(1500, 1800, 2)), ("evil", Share(540)),
    ]  # fmt: skip


@pytest.mark.parametrize("share", [Share(-1), Share(0, 0), Share(weight=0), Share(weight=1001), Share(20, 10)])
def test_a_share_out_of_bounds_is_refused(personas, bob, share):
    deployment = deploy(personas.acme)
    with pytest.raises(Invalid):
        services.set_grant(actor=bob, deployment_id=deployment.id, grantee_slug="acme", share=share)


def test_only_the_platform_lets_another_tenant_in_and_out(personas, bob, root, mallory):
    deployment = deploy(personas.acme)
    with pytest.raises(Forbidden, match="platform"):
        services.set_grant(actor=bob, deployment_id=deployment.id, grantee_slug="evil", share=Share())
    with pytest.raises(NotFound):
        services.set_grant(actor=mallory, deployment_id=deployment.id, grantee_slug="evil", share=Share(9))
    with pytest.raises(NotFound, match="nobody"):
        services.set_grant(actor=root, deployment_id=deployment.id, grantee_slug="nobody", share=Share())
    services.set_grant(actor=root, deployment_id=deployment.id, grantee_slug="evil", share=Share())
    assert [summary.name for summary in selectors.list_deployments(actor=mallory)] == ["acme/chat"]
    with pytest.raises(Conflict, match="owner"):
        services.remove_grant(actor=root, deployment_id=deployment.id, grantee_slug="acme")
    services.remove_grant(actor=root, deployment_id=deployment.id, grantee_slug="evil")
    assert selectors.list_deployments(actor=mallory) == []
    with pytest.raises(NotFound):
        services.remove_grant(actor=root, deployment_id=deployment.id, grantee_slug="evil")


def test_a_guest_sees_that_it_may_call_and_nothing_of_how_it_runs(personas, root, mallory):
    deployment = deploy(personas.acme)
    services.set_grant(actor=root, deployment_id=deployment.id, grantee_slug="evil", share=Share())
    seen = selectors.get_deployment(actor=mallory, deployment_id=deployment.id)
    assert (seen.name, seen.is_own, seen.arms, seen.num_replicas) == ("acme/chat", False, (), 0)
    for ask in (selectors.list_replicas, selectors.list_events, selectors.get_pool, selectors.restart_costs):
        with pytest.raises(NotFound):
            ask(actor=mallory, deployment_id=deployment.id)
    for change in (services.pause_deployment, services.delete_deployment, selectors.list_dependents):
        with pytest.raises(NotFound):
            change(actor=mallory, deployment_id=deployment.id)


def test_a_deployment_is_paused_resumed_and_ended_once(personas, bob):
    deployment = deploy(personas.acme)
    with pytest.raises(Conflict, match="is active"):
        services.resume_deployment(actor=bob, deployment_id=deployment.id)
    assert services.pause_deployment(actor=bob, deployment_id=deployment.id).state == "paused"
    with pytest.raises(Conflict, match="is paused"):
        services.pause_deployment(actor=bob, deployment_id=deployment.id)
    assert services.resume_deployment(actor=bob, deployment_id=deployment.id).state == "active"
    assert services.delete_deployment(actor=bob, deployment_id=deployment.id).deleted_at is not None
    with pytest.raises(NotFound):
        services.resume_deployment(actor=bob, deployment_id=deployment.id)
    assert verbs()[-4:] == ["deployment.create", "deployment.pause", "deployment.resume", "deployment.delete"]


def test_what_depends_on_a_deployment_is_named_before_it_ends(personas, bob, root):
    deployment = deploy(personas.acme)
    limited = issue_key(actor=bob, name="ci", deployment_ids=[deployment.id])
    issue_key(actor=bob, name="free")
    old = issue_key(actor=bob, name="old", deployment_ids=[deployment.id])
    revoke_key(actor=bob, key_id=old.key.id)
    services.set_grant(actor=root, deployment_id=deployment.id, grantee_slug="evil", share=Share())
    found = selectors.list_dependents(actor=bob, deployment_id=deployment.id)
    assert ([key.name for key in found.keys], found.tenants) == (["ci"], ("evil",))
    with pytest.raises(Conflict, match=rf"the key ci \({limited.key.prefix}\), the tenant evil\.") as refusal:
        services.delete_deployment(actor=bob, deployment_id=deployment.id)
    assert refusal.value.code == "has_dependents"
    with pytest.raises(Invalid, match="not the deployment's name"):
        services.delete_deployment(actor=bob, deployment_id=deployment.id, confirm="chats")
    assert services.delete_deployment(actor=bob, deployment_id=deployment.id, confirm="chat").deleted_at is not None


def test_a_version_is_held_by_the_living_deployments_that_serve_it(personas, bob):
    version = make_version(personas.acme)
    first, second = (deploy(personas.acme, name=name, version=version) for name in ("chat", "mail"))
    with acting_as(bob):
        assert holders(version) == ["the deployment chat", "the deployment mail"]
    assert selectors.list_serving(actor=bob, version_id=version.id) == [first, second]
    services.delete_deployment(actor=bob, deployment_id=first.id)
    with acting_as(bob):
        assert holders(version) == ["the deployment mail"]


def test_the_database_itself_keeps_the_weights_at_100(committed, personas):
    deployment = deploy(personas.acme)
    candidate = make_version(personas.acme)
    arm = {"tenant": personas.acme, "deployment": deployment, "version": candidate, "name": "candidate"}
    with pytest.raises(IntegrityError, match="sum to 101"), acting_as(PLATFORM):
        DeploymentArm.objects.create(weight=1, **arm)
    with acting_as(PLATFORM):
        deployment.arms.update(weight=95)
        DeploymentArm.objects.create(weight=5, **arm)
    with pytest.raises(IntegrityError, match="sum to 5"), acting_as(PLATFORM):
        deployment.arms.filter(name="stable").delete()


def test_an_arm_and_a_grant_are_their_deployments_tenants(committed, personas):
    deployment, foreign = deploy(personas.acme), make_version(personas.evil)
    with pytest.raises(IntegrityError, match="same_tenant"), acting_as(PLATFORM):
        deployment.arms.update(version=foreign)
    with pytest.raises(IntegrityError, match="same_tenant"), acting_as(PLATFORM):
        deployment.grants.update(tenant=personas.evil)


@pytest.mark.parametrize("model", [Deployment, DeploymentArm, Grant], ids=lambda model: model.__name__)
def test_no_table_shows_a_stranger_anything(personas, mallory, model):
    deploy(personas.acme)
    with acting_as(PLATFORM):
        assert model.objects.exists()
    with acting_as(mallory):
        assert not model.objects.exists()
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT count(*) FROM {model._meta.db_table}")
        assert cursor.fetchone() == (0,)


def test_lists_take_the_same_queries_for_one_and_for_many(personas, bob, django_assert_num_queries):
    deploy(personas.acme, name="d0")
    with django_assert_num_queries(7):  # savepoint, set the tenant, deployments, arms, replicas, unset, release
        selectors.list_deployments(actor=bob)
    for number in range(1, 5):
        deploy(personas.acme, name=f"d{number}", min_replicas=0)
    with django_assert_num_queries(7):
        assert len(selectors.list_deployments(actor=bob)) == 5
