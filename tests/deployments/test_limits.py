"""How much a tenant may have served: so many deployments, so many replicas that are kept ready for nobody."""

import pytest
from domain import PLATFORM, deploy

from controlplane.deployments import services
from controlplane.deployments.services import Changes, ServingLimitReached
from dataplane.contracts.catalog import KeepWarm
from tenants.actor import acting_as, member_actor
from tenants.errors import Forbidden, Invalid
from tenants.models import AuditEvent
from tenants.services.quotas import set_tenant_serving
from tenants.serving import ServingLimits


@pytest.fixture
def bob(personas):
    return member_actor(personas.bob, "acme")


def allow(personas, **limits):
    set_tenant_serving(actor=PLATFORM, tenant_id=personas.acme.id, limits=ServingLimits(**limits))


def configure(actor, deployment, revision, **changes):
    return services.configure_deployment(
        actor=actor, deployment_id=deployment.id, revision=revision, changes=Changes(**changes)
    )


def mornings(min_replicas):
    return [KeepWarm(days=(0,), from_minute=480, to_minute=720, min_replicas=min_replicas)]


def test_one_deployment_cannot_keep_every_process_of_the_fleet(personas):
    with pytest.raises(ServingLimitReached) as caught:
        deploy(personas.acme, min_replicas=64, max_replicas=64)
    words = ("adds 64 to 0 kept replicas, and 4 are allowed", "Keep fewer here", "ask the platform")
    assert all(word in caught.value.message for word in words)
    assert (caught.value.code, set(caught.value.fields)) == ("serving_limit", {"min_replicas"})
    assert deploy(personas.acme, min_replicas=4, max_replicas=64).min_replicas == 4


def test_kept_replicas_of_all_deployments_count_together_each_at_its_schedules_most(personas):
    deploy(personas.acme, "app-a", min_replicas=1, max_replicas=3, schedules=mornings(3))
    with pytest.raises(ServingLimitReached, match="adds 2 to 3 kept replicas"):
        deploy(personas.acme, "app-b", min_replicas=0, max_replicas=2, schedules=mornings(2))
    deploy(personas.acme, "app-c", min_replicas=0, max_replicas=64)
    deploy(personas.evil, "app-d", min_replicas=4, max_replicas=4)
    assert deploy(personas.acme, "app-e").min_replicas == 1


def test_settings_may_not_pass_the_limit_but_may_always_come_nearer_to_it(personas, bob):
    chat = deploy(personas.acme, min_replicas=3, max_replicas=64)
    for changes in ({"min_replicas": 5}, {"schedules": mornings(5)}):
        with pytest.raises(ServingLimitReached, match="adds 2 to 3 kept replicas, and 4 are allowed") as caught:
            configure(bob, chat, 1, **changes)
        assert set(caught.value.fields) == set(changes)
    allow(personas, kept_replicas=1)
    assert configure(bob, chat, 1, min_replicas=2).min_replicas == 2
    assert configure(bob, chat, 2, max_num_seqs=7).max_num_seqs == 7
    with pytest.raises(ServingLimitReached, match="adds 1 to 2 kept replicas, and 1 are allowed"):
        configure(bob, chat, 3, min_replicas=3)


def test_what_is_paused_keeps_nothing_and_resuming_it_is_judged_again(personas, bob):
    chat = deploy(personas.acme, min_replicas=3, max_replicas=64)
    services.pause_deployment(actor=bob, deployment_id=chat.id)
    other = deploy(personas.acme, "other", min_replicas=4, max_replicas=4)
    configure(bob, chat, 1, min_replicas=2)
    with pytest.raises(ServingLimitReached, match="adds 2 to 4 kept replicas, and 4 are allowed"):
        services.resume_deployment(actor=bob, deployment_id=chat.id)
    services.pause_deployment(actor=bob, deployment_id=other.id)
    assert services.resume_deployment(actor=bob, deployment_id=chat.id).state == "active"


def test_deployments_are_counted_until_they_are_deleted(personas, bob):
    chat = deploy(personas.acme, min_replicas=0)
    allow(personas, deployments=1)
    services.pause_deployment(actor=bob, deployment_id=chat.id)
    with pytest.raises(ServingLimitReached, match=r"adds 1 to 1 deployments, and 1 are allowed\. Delete"):
        deploy(personas.acme, "more", min_replicas=0)
    services.delete_deployment(actor=bob, deployment_id=chat.id)
    deploy(personas.acme, "more", min_replicas=0)


def test_the_platform_changes_the_limits_and_it_is_written_down(personas, bob):
    allow(personas, deployments=2, kept_replicas=8)
    with acting_as(PLATFORM):
        row = AuditEvent.objects.get(verb="quota.set_serving")
    assert (row.before, row.after) == (
        {"deployments": None, "kept_replicas": None},
        {"deployments": 2, "kept_replicas": 8},
    )
    assert deploy(personas.acme, min_replicas=8, max_replicas=8).min_replicas == 8
    with pytest.raises(Forbidden):
        set_tenant_serving(actor=bob, tenant_id=personas.acme.id, limits=ServingLimits())
    with pytest.raises(Invalid, match="from 1 to"):
        allow(personas, kept_replicas=0)
