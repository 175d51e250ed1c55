import pytest
from django.db import connection

from tenants.actor import acting_as, member_actor, platform_actor, system_actor
from tenants.errors import NotFound
from tenants.models import Member, Tenant


def test_a_member_sees_its_tenant_and_no_other(personas):
    with acting_as(member_actor(personas.bob, "acme")):
        assert [tenant.slug for tenant in Tenant.objects.all()] == ["acme"]
        assert Member.objects.count() == 4


def test_nothing_is_visible_outside_an_actors_transaction(personas):
    with acting_as(system_actor("test")):
        assert Tenant.objects.count() == 2
    assert Tenant.objects.count() == 0


def test_a_stranger_cannot_tell_a_foreign_tenant_from_none(personas):
    for slug in ("evil", "no-such"):
        with pytest.raises(NotFound, match=slug):
            member_actor(personas.alice, slug)
    with pytest.raises(NotFound):
        platform_actor(personas.alice)


def test_the_application_connects_as_a_role_that_owns_nothing(db):
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_class WHERE relowner = current_user::regrole")
        assert cursor.fetchone() == (0,)


def test_commits_are_seen_by_others(committed, personas):
    connection.close()
    with acting_as(platform_actor(personas.root)):
        assert Tenant.objects.count() == 2
