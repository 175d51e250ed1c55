import pytest
from django.db import IntegrityError
from domain import PLATFORM, deploy

from controlplane.deployments import selectors, services
from controlplane.deployments.fleet import report_replicas
from controlplane.deployments.models import Deployment
from controlplane.deployments.services import Changes
from dataplane.contracts.catalog import EngineSettings, IdlePolicy, KeepWarm, Share
from dataplane.contracts.replica import Device, FleetReport, NodeReport, ReplicaTable
from tenants.actor import acting_as, member_actor, platform_actor
from tenants.errors import Conflict, Forbidden, Invalid, NotFound
from tenants.models import AuditEvent, OutboxEvent

NIGHT = KeepWarm(days=(0, 1, 2), from_minute=0, to_minute=300, min_replicas=1)


@pytest.fixture
def bob(personas):
    return member_actor(personas.bob, "acme")


@pytest.fixture
def chat(personas):
    return deploy(personas.acme)


def configure(actor, deployment, revision=1, **changes):
    return services.configure_deployment(
        actor=actor, deployment_id=deployment.id, revision=revision, changes=Changes(**changes)
    )


def last_audit() -> AuditEvent:
    with acting_as(PLATFORM):
        return AuditEvent.objects.filter(target_kind="deployment").latest("sequence")


def test_what_is_named_changes_and_the_rest_stays(bob, chat):
    changed = configure(
        bob, chat, dtype="int4", kv_dtype="int8", max_model_len=256, max_num_seqs=8, kv_memory_mb=2, prefix_cache=False,
        min_replicas=0, max_replicas=3, asleep_after_s=60, warm_after_s=600, disk_after_s=3600, schedules=[NIGHT],
    )  # fmt: skip
    stored = selectors.get_deployment(actor=bob, deployment_id=chat.id).deployment
    for deployment in (changed, stored):
        assert deployment.engine == EngineSettings(
            dtype="int4",
            kv_dtype="int8",
            max_model_len=256,
            max_num_seqs=8,
            kv_memory_mb=2,
            block_size=16,
            prefix_cache=False,
        )
        assert (deployment.min_replicas, deployment.max_replicas, deployment.revision) == (0, 3, 2)
        assert deployment.idle == IdlePolicy(60, 600, 3600, cold_wait_s=30)
        assert deployment.keep_warm == (NIGHT,)
    again = configure(bob, chat, revision=2, max_model_len=None, warm_after_s=None)
    assert (again.max_model_len, again.idle) == (None, IdlePolicy(60, None, 3600))


def test_a_change_is_audited_with_before_and_after_and_announced(bob, chat):
    with acting_as(PLATFORM):
        OutboxEvent.objects.all().delete()
    configure(bob, chat, kv_memory_mb=2, device="auto", schedules=[NIGHT])
    row = last_audit()
    night = {"days": [0, 1, 2], "from_minute": 0, "to_minute": 300, "min_replicas": 1}
    assert (row.verb, row.target_id) == ("deployment.configure", chat.id)
    assert row.before == {"kv_memory_mb": 1, "schedules": []}
    assert row.after == {"kv_memory_mb": 2, "schedules": [night]}
    with acting_as(PLATFORM):
        assert [event.payload for event in OutboxEvent.objects.all()] == [{"deployment_id": chat.id}]


def test_who_has_not_seen_the_last_change_is_told_so(bob, chat):
    configure(bob, chat, max_num_seqs=8)
    with pytest.raises(Conflict, match=r"changed since you read them \(revision 1, now 2\)"):
        configure(bob, chat, max_num_seqs=4)
    assert configure(bob, chat, revision=2, max_num_seqs=4).revision == 3


def test_a_change_that_changes_nothing_leaves_no_trace(bob, chat):
    configure(bob, chat, schedules=(NIGHT,))
    before = last_audit()
    assert configure(bob, chat, revision=2, max_num_seqs=32, schedules=(NIGHT,)).revision == 2
    assert last_audit() == before


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("dtype", {"dtype": "int3"}),
        ("kv_dtype", {"kv_dtype": "int4"}),
        ("device", {"device": "abacus"}),
        ("max_num_seqs", {"max_num_seqs": 0}),
        ("max_model_len", {"max_model_len": 513}),
        ("kv_memory_mb", {"kv_memory_mb": 0}),
        ("min_replicas", {"min_replicas": -1}),
        ("max_replicas", {"min_replicas": 2}),
        ("max_replicas", {"max_replicas": 65}),
        ("asleep_after_s", {"asleep_after_s": 0}),
        ("warm_after_s", {"asleep_after_s": 60, "warm_after_s": 59}),
        ("disk_after_s", {"asleep_after_s": 60, "disk_after_s": 59}),
        ("cold_wait_s", {"cold_wait_s": 301}),
        ("schedules", {"schedules": [KeepWarm((), 0, 60, 1)]}),
        ("schedules", {"schedules": [KeepWarm((7,), 0, 60, 1)]}),
        ("schedules", {"schedules": [KeepWarm((1, 1), 0, 60, 1)]}),
        ("schedules", {"schedules": [KeepWarm((1,), 1320, 360, 1)]}),
        ("schedules", {"schedules": [KeepWarm((1,), 0, 1441, 1)]}),
        ("schedules", {"schedules": [KeepWarm((1,), 0, 60, 2)]}),
        ("schedules", {"schedules": [KeepWarm((1,), 0, 60, 1)] * 21}),
    ],
)
def test_a_setting_out_of_bounds_is_refused_by_name(bob, chat, field, changes):
    with pytest.raises(Invalid) as refusal:
        configure(bob, chat, **changes)
    assert list(refusal.value.fields) == [field]
    assert selectors.get_deployment(actor=bob, deployment_id=chat.id).deployment.revision == 1


def test_a_pool_that_could_not_keep_its_promises_is_refused_with_the_numbers(personas, bob):
    chat = deploy(personas.acme, min_replicas=2, max_replicas=2)
    root = platform_actor(personas.root)
    services.set_grant(actor=bob, deployment_id=chat.id, grantee_slug="acme", share=Share(1000))
    services.set_grant(actor=root, deployment_id=chat.id, grantee_slug="evil", share=Share(2000))
    with pytest.raises(Invalid, match=r"\(acme 1000, evil 2000;.*pool of 2048 tokens \(1 x 1 MiB\)") as refusal:
        configure(bob, chat, min_replicas=1)
    assert (refusal.value.code, list(refusal.value.fields)) == ("does_not_fit", ["min_replicas"])
    assert configure(bob, chat, min_replicas=1, kv_memory_mb=2).kv_memory_mb == 2
    with pytest.raises(Invalid) as refusal:
        configure(bob, chat, revision=2, kv_memory_mb=1)
    assert list(refusal.value.fields) == ["kv_memory_mb"]


def test_what_no_machine_of_the_fleet_could_run_is_refused(personas, bob, chat):
    configure(bob, chat, device="cpu")  # what the fleet has is not known yet
    resources = NodeReport(
        memory_bytes=2**31, available_bytes=2**30, devices=(Device("cpu", "two cores", 2**31),),
        asleep_budget_bytes=2**20, warm_idle_floor=1, max_processes=8,
    )  # fmt: skip
    table = ReplicaTable(node="n1", number=1, at_ms=1, replicas=())
    report_replicas(actor=PLATFORM, report=FleetReport(table=table, events=(), resources=resources))
    for field, changes in {"device": {"device": "cuda"}, "kv_memory_mb": {"kv_memory_mb": 2_000}}.items():
        with pytest.raises(Invalid) as refusal:
            configure(bob, chat, revision=2, **changes)
        assert list(refusal.value.fields) == [field]
    with pytest.raises(Invalid, match="No machine of the fleet"):
        deploy(personas.acme, name="gpu", engine=EngineSettings(kv_memory_mb=1, device="cuda"))
    assert configure(bob, chat, revision=2, kv_memory_mb=900).kv_memory_mb == 900


def test_a_paused_deployment_is_configured_and_an_ended_one_is_gone(bob, chat):
    services.pause_deployment(actor=bob, deployment_id=chat.id)
    assert configure(bob, chat, max_num_seqs=4).state == "paused"
    services.delete_deployment(actor=bob, deployment_id=chat.id)
    with pytest.raises(NotFound):
        configure(bob, chat, revision=2, max_num_seqs=8)


def test_only_those_who_may_change_the_owners_deployments_do(personas, chat):
    with pytest.raises(Forbidden):
        configure(member_actor(personas.carol, "acme"), chat, max_num_seqs=4)
    with pytest.raises(NotFound):
        configure(member_actor(personas.mallory, "evil"), chat, max_num_seqs=4)


def test_the_database_itself_refuses_a_warmer_tier_after_a_colder_one(committed, personas):
    chat = deploy(personas.acme)
    for fields in ({"asleep_after_s": 9, "warm_after_s": 8}, {"warm_after_s": 9, "disk_after_s": 8}, {"revision": 0}):
        with pytest.raises(IntegrityError, match="deployment_"), acting_as(PLATFORM):
            Deployment.objects.filter(pk=chat.pk).update(**fields)
    with acting_as(PLATFORM):
        Deployment.objects.filter(pk=chat.pk).update(asleep_after_s=8, warm_after_s=None, disk_after_s=8)
