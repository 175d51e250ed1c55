import msgspec
import pytest
from django.db import IntegrityError, connection, transaction

from dataplane.contracts.catalog import Limits, TenantEntry
from tenants import outbox, selectors, services
from tenants.actor import acting_as, member_actor, platform_actor, reading_as, system_actor
from tenants.errors import Conflict, Forbidden, Invalid, NotFound
from tenants.models import ApiKeySecret, OutboxEvent, Quota, Tenant
from tenants.roles import PLATFORM_ADMIN_PERMISSIONS, ROLE_PERMISSIONS, Permission, Role

SYSTEM = system_actor("test")


@pytest.fixture
def root(personas):
    return platform_actor(personas.root)


def test_a_new_tenant_has_an_owner_and_no_limits(root, personas):
    services.create_tenant(actor=root, slug="globex", name="Globex", owner=personas.bob)
    bob = member_actor(personas.bob, "globex")
    assert (bob.role, selectors.tenant_limits(actor=bob)) == (Role.OWNER, Limits())
    with pytest.raises(Conflict, match="globex exists"):
        services.create_tenant(actor=root, slug="globex", name="Another", owner=personas.bob)


@pytest.mark.parametrize("slug", ["", "ab", "Acme", "a--", "-ab", "1ab", "a" * 41, "a/b", "abc\n", "àbc"])
def test_a_slug_is_what_a_url_can_carry(slug, root, personas):
    with pytest.raises(Invalid) as refusal:
        services.create_tenant(actor=root, slug=slug, name="X", owner=personas.bob)
    assert list(refusal.value.fields) == ["slug"]


def test_only_those_who_run_the_platform_make_and_suspend_tenants(personas):
    alice = member_actor(personas.alice, "acme")
    for act in (
        lambda: services.create_tenant(actor=alice, slug="mine", name="Mine", owner=personas.alice),
        lambda: services.suspend_tenant(actor=alice, tenant_id=personas.evil.id, reason="rival"),
        lambda: services.resume_tenant(actor=alice, tenant_id=personas.evil.id),
        lambda: services.set_tenant_quota(actor=alice, tenant_id=personas.acme.id, limits=Limits()),
        lambda: services.create_user(actor=alice, email="x@acme.example", password="a long enough phrase"),
        lambda: selectors.list_tenants(actor=alice),
        lambda: selectors.get_tenant(actor=alice, slug="evil"),
        lambda: selectors.catalog_keys(actor=alice),
    ):
        with pytest.raises(Forbidden):
            act()


def test_a_suspended_tenant_is_inactive_in_the_catalog_until_it_is_resumed(root, personas):
    services.suspend_tenant(actor=root, tenant_id=personas.acme.id, reason="unpaid")
    entry = selectors.catalog_tenants(actor=SYSTEM)[personas.acme.id]
    assert entry == TenantEntry(id=personas.acme.id, name="acme", active=False, limits=Limits())
    with pytest.raises(Conflict, match="unpaid"):
        services.suspend_tenant(actor=root, tenant_id=personas.acme.id, reason="again")
    services.resume_tenant(actor=root, tenant_id=personas.acme.id)
    with pytest.raises(Conflict):
        services.resume_tenant(actor=root, tenant_id=personas.acme.id)
    assert selectors.catalog_tenants(actor=SYSTEM)[personas.acme.id].active
    with pytest.raises(NotFound):
        services.suspend_tenant(actor=root, tenant_id="ten_none", reason="x")


def test_a_tenant_reads_in_its_own_journal_what_the_platform_did_to_it(root, personas):
    services.suspend_tenant(actor=root, tenant_id=personas.acme.id, reason="unpaid")
    (event,) = selectors.list_audit(actor=member_actor(personas.alice, "acme"))
    assert (event.verb, event.actor_kind, event.actor_label) == (
        "tenant.suspend",
        "platform_admin",
        "root@pagoda.example",
    )
    assert selectors.list_audit(actor=root) == []


def test_limits_of_tenant_and_key_are_set_apart_and_reach_the_catalog(root, personas):
    alice = member_actor(personas.alice, "acme")
    key = services.issue_key(actor=alice, name="app").key
    services.set_tenant_quota(actor=root, tenant_id=personas.acme.id, limits=Limits(requests_per_minute=60))
    services.set_key_quota(actor=alice, key_id=key.id, limits=Limits(tokens_per_minute=1000))
    assert selectors.catalog_tenants(actor=SYSTEM)[personas.acme.id].limits == Limits(requests_per_minute=60)
    assert selectors.catalog_keys(actor=SYSTEM)[key.lookup].limits == Limits(tokens_per_minute=1000)
    event = selectors.list_audit(actor=alice)[0]
    assert (event.before["tokens_per_minute"], event.after["tokens_per_minute"]) == (None, 1000)


@pytest.mark.parametrize("value", [0, -1, 2**31, True, 1.5])
def test_a_limit_is_a_positive_whole_number(value, root, personas):
    limits = msgspec.structs.replace(Limits(), concurrent_requests=value)
    with pytest.raises(Invalid) as refusal:
        services.set_tenant_quota(actor=root, tenant_id=personas.acme.id, limits=limits)
    assert list(refusal.value.fields) == ["concurrent_requests"]


def test_a_viewer_reads_limits_and_sets_none(personas):
    carol = member_actor(personas.carol, "acme")
    key = services.issue_key(actor=member_actor(personas.alice, "acme"), name="app").key
    assert selectors.tenant_limits(actor=carol) == Limits()
    with pytest.raises(Forbidden):
        services.set_key_quota(actor=carol, key_id=key.id, limits=Limits())
    with pytest.raises(NotFound):
        services.set_key_quota(actor=member_actor(personas.mallory, "evil"), key_id=key.id, limits=Limits())


def test_the_database_refuses_a_child_of_another_tenants_parent(personas):
    key = services.issue_key(actor=member_actor(personas.alice, "acme"), name="app").key
    with acting_as(SYSTEM), connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        with pytest.raises(IntegrityError, match="same_tenant"), transaction.atomic():
            ApiKeySecret.objects.create(key=key, tenant=personas.evil, pepper_id="x", digest="0" * 64)


def test_the_database_refuses_nonsense(personas):
    for act in (
        lambda: Quota.objects.create(tenant=personas.acme, requests_per_minute=0),
        lambda: Tenant.objects.create(slug="UPPER", name="x"),
        lambda: Tenant.objects.create(id="ten_short", slug="short", name="x"),
    ):
        with acting_as(SYSTEM), pytest.raises(IntegrityError), transaction.atomic():
            act()


def test_an_outbox_event_wakes_whoever_listens(committed, personas, root):
    with connection.cursor() as cursor:
        cursor.execute(f"LISTEN {outbox.CHANNEL}")
    services.suspend_tenant(actor=root, tenant_id=personas.acme.id, reason="unpaid")
    notices = list(connection.connection.notifies(timeout=5, stop_after=1))
    assert [notice.channel for notice in notices] == [outbox.CHANNEL]


def test_what_is_published_is_not_taken_again(personas, root):
    services.suspend_tenant(actor=root, tenant_id=personas.acme.id, reason="unpaid")
    with acting_as(SYSTEM):
        taken = outbox.unpublished(10)
        assert [(event.topic, event.payload) for event in taken] == [("tenant", {"tenant_id": personas.acme.id})]
        outbox.mark_published([event.id for event in taken])
        assert outbox.unpublished(10) == []
        assert OutboxEvent.objects.count() == 1


def test_a_service_is_one_transaction_and_never_part_of_another(personas):
    alice = member_actor(personas.alice, "acme")
    with acting_as(alice), pytest.raises(RuntimeError, match="durable"):
        services.issue_key(actor=alice, name="nested")


def test_selectors_share_the_transaction_of_their_actor_only(personas):
    alice, mallory = member_actor(personas.alice, "acme"), member_actor(personas.mallory, "evil")
    with reading_as(alice):
        assert len(selectors.list_members(actor=alice)) == 4
        with pytest.raises(RuntimeError, match="another actor"):
            selectors.list_members(actor=mallory)


def test_roles_hold_what_they_should():
    platform = {permission for permission in Permission if permission.startswith("platform.")}
    assert platform <= PLATFORM_ADMIN_PERMISSIONS
    for role, permissions in ROLE_PERMISSIONS.items():
        assert not permissions & platform, role
        assert permissions <= ROLE_PERMISSIONS[Role.OWNER], role
    writes = {permission for permission in Permission if permission.endswith("write")}
    assert not ROLE_PERMISSIONS[Role.VIEWER] & writes
    assert not ROLE_PERMISSIONS[Role.BILLING] & writes
    assert Permission.MEMBERS_WRITE not in ROLE_PERMISSIONS[Role.DEVELOPER]
