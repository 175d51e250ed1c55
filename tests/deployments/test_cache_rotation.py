"""A tenant has its prefix cache emptied: who may, whose it is, and that nothing else undoes it."""

import pytest
from domain import PLATFORM, deploy

from controlplane.deployments import catalog, selectors, services
from dataplane.contracts import catalog as contract
from dataplane.contracts.catalog import Share
from tenants.actor import acting_as, member_actor, platform_actor
from tenants.errors import Forbidden, NotFound
from tenants.models import AuditEvent, OutboxEvent


@pytest.fixture
def bob(personas):
    return member_actor(personas.bob, "acme")


@pytest.fixture
def mallory(personas):
    return member_actor(personas.mallory, "evil")


@pytest.fixture
def shared(personas):
    """A deployment of acme that evil may call."""
    deployment = deploy(personas.acme)
    root = platform_actor(personas.root)
    services.set_grant(actor=root, deployment_id=deployment.id, grantee_slug="evil", share=Share(100))
    return deployment


def epochs(deployment) -> dict[str, int]:
    """What the data plane is told, by tenant id."""
    body = catalog.latest(actor=PLATFORM)
    assert body is not None
    grants = contract.decode(body).deployments[deployment.id].grants
    return {tenant_id: share.cache_epoch for tenant_id, share in grants.items()}


def test_each_rotation_is_one_epoch_of_that_tenant_and_is_told_to_the_data_plane(personas, shared, bob):
    with acting_as(PLATFORM):
        OutboxEvent.objects.all().delete()
    for epoch in (1, 2):
        grant = services.rotate_cache(actor=bob, deployment_id=shared.id, grantee_slug="acme")
        assert grant.cache_epoch == epoch
    with acting_as(PLATFORM):
        assert list(OutboxEvent.objects.values_list("topic", flat=True)) == ["grant", "grant"]
    assert epochs(shared) == {personas.acme.id: 2, personas.evil.id: 0}
    event = selectors.list_events(actor=bob, deployment_id=shared.id)[0]
    assert (event.cause, event.before, event.after) == ("cache.rotate", {"cache_epoch": 1}, {"cache_epoch": 2})


def test_a_guest_empties_its_own_cache_and_its_own_journal_says_so(personas, shared, bob, mallory):
    services.rotate_cache(actor=mallory, deployment_id=shared.id, grantee_slug="evil")
    assert epochs(shared) == {personas.acme.id: 0, personas.evil.id: 1}
    with acting_as(mallory):
        row = AuditEvent.objects.get(verb="cache.rotate")
        assert (row.tenant_id, row.actor_label, row.target_id) == (personas.evil.id, "mallory@evil.example", shared.id)
    assert "cache.rotate" not in [event.cause for event in selectors.list_events(actor=bob, deployment_id=shared.id)]


def test_nobody_empties_the_cache_of_another_tenant_but_the_platform(personas, shared, bob, mallory):
    with pytest.raises(Forbidden, match="platform"):
        services.rotate_cache(actor=bob, deployment_id=shared.id, grantee_slug="evil")
    with pytest.raises(Forbidden):
        services.rotate_cache(actor=member_actor(personas.carol, "acme"), deployment_id=shared.id, grantee_slug="acme")
    services.rotate_cache(actor=platform_actor(personas.root), deployment_id=shared.id, grantee_slug="evil")
    assert epochs(shared) == {personas.acme.id: 0, personas.evil.id: 1}


def test_who_may_not_call_a_deployment_hears_that_there_is_none(personas, mallory):
    private = deploy(personas.acme)
    for deployment_id in (private.id, "dep_nothing"):
        with pytest.raises(NotFound, match=r"^There is no such deployment\.$"):
            services.rotate_cache(actor=mallory, deployment_id=deployment_id, grantee_slug="evil")
    services.delete_deployment(actor=PLATFORM, deployment_id=private.id)
    with pytest.raises(NotFound):
        services.rotate_cache(actor=PLATFORM, deployment_id=private.id, grantee_slug="acme")


def test_a_new_share_leaves_the_epoch_as_it_is(personas, shared, bob):
    services.rotate_cache(actor=bob, deployment_id=shared.id, grantee_slug="acme")
    services.set_grant(actor=bob, deployment_id=shared.id, grantee_slug="acme", share=Share(200, 400, 2, 7))
    assert epochs(shared) == {personas.acme.id: 1, personas.evil.id: 0}
    event = selectors.list_events(actor=bob, deployment_id=shared.id)[0]
    assert "cache_epoch" not in event.after
