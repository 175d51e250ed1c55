import threading
from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from dataplane.contracts import keys as codec
from dataplane.contracts.ids import Kind, new_id
from tenants import selectors, services
from tenants.actor import acting_as, member_actor, platform_actor, system_actor
from tenants.errors import Conflict, Forbidden, Invalid, NotFound, Unauthenticated
from tenants.models import ApiKey, ApiKeySecret, OutboxEvent
from tenants.roles import Permission, Scope

SYSTEM = system_actor("test")


@pytest.fixture
def alice(personas):
    return member_actor(personas.alice, "acme")


def topics():
    with acting_as(SYSTEM):
        return list(OutboxEvent.objects.order_by("id").values_list("topic", flat=True))


def test_a_keys_text_is_returned_once_and_stored_nowhere(alice):
    issued = services.issue_key(actor=alice, name="batch")
    assert codec.parse(issued.text).lookup == issued.key.lookup
    with acting_as(SYSTEM):
        stored = {**ApiKey.objects.values().get(), **ApiKeySecret.objects.values().get()}
    secret = issued.text.split("_")[3]
    assert not any(secret in str(value) for value in stored.values())
    assert stored["expires_at"] is None or stored["expires_at"] > timezone.now()


def test_a_key_opens_its_own_tenant_with_the_permissions_of_its_scopes(alice, personas):
    issued = services.issue_key(actor=alice, name="reader", scopes=[Scope.READ])
    actor = services.authenticate_key(issued.text)
    assert (actor.tenant, actor.id) == (personas.acme, issued.key.id)
    assert actor.may(Permission.MODELS_READ)
    assert not actor.may(Permission.MODELS_WRITE)
    assert not actor.may(Permission.KEYS_WRITE)


def test_a_key_lives_for_ninety_days_unless_said_otherwise(alice):
    key = services.issue_key(actor=alice, name="default").key
    assert timedelta(days=89) < key.expires_at - timezone.now() <= timedelta(days=90)
    assert services.issue_key(actor=alice, name="forever", lifetime_days=None).key.expires_at is None


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"scopes": []}, "scopes"),
        ({"lifetime_days": 0}, "lifetime_days"),
        ({"lifetime_days": 366}, "lifetime_days"),
        ({"env": "prod"}, "env"),
        ({"deployment_ids": ["mdl_1"]}, "deployment_ids"),
        ({"name": "  "}, "name"),
        ({"name": "x" * 101}, "name"),
        ({"name": "a\x00b"}, "name"),
        ({"name": "a\ud800b"}, "name"),
    ],
)
def test_a_refused_argument_is_named(arguments, field, alice):
    with pytest.raises(Invalid) as refusal:
        services.issue_key(actor=alice, **{"name": "k", **arguments})
    assert list(refusal.value.fields) == [field]
    assert selectors.list_keys(actor=alice) == []


def test_a_rolled_key_keeps_its_id_and_accepts_both_secrets_for_a_while(alice):
    old = services.issue_key(actor=alice, name="app")
    new = services.roll_key(actor=alice, key_id=old.key.id)
    assert (new.key.id, new.key.lookup) == (old.key.id, old.key.lookup)
    assert new.text != old.text
    for text in (old.text, new.text):
        assert services.authenticate_key(text).id == old.key.id
    with acting_as(SYSTEM):
        ApiKeySecret.objects.exclude(expires_at=None).update(expires_at=timezone.now())
    with pytest.raises(Unauthenticated):
        services.authenticate_key(old.text)
    assert services.authenticate_key(new.text).id == old.key.id


def test_a_key_that_may_change_deployments_is_rolled_by_its_maker_alone(alice, personas):
    """Its rollouts are its maker's, who approves none of them: whoever else had its secret could approve their own."""
    bob = member_actor(personas.bob, "acme")
    key = services.issue_key(actor=bob, name="ci", scopes=[Scope.DEPLOYMENTS]).key
    with pytest.raises(Forbidden, match="rolled by who made it"):
        services.roll_key(actor=alice, key_id=key.id)
    assert services.authenticate_key(services.roll_key(actor=bob, key_id=key.id).text).id == key.id
    only_calls = services.issue_key(actor=bob, name="app").key
    assert services.roll_key(actor=alice, key_id=only_calls.id).key.id == only_calls.id


def test_a_key_being_rolled_is_rolled_again_only_without_overlap(alice):
    first = services.issue_key(actor=alice, name="app")
    second = services.roll_key(actor=alice, key_id=first.key.id)
    with pytest.raises(Conflict, match="being rolled"):
        services.roll_key(actor=alice, key_id=first.key.id)
    third = services.roll_key(actor=alice, key_id=first.key.id, overlap=timedelta(0))
    for text in (first.text, second.text):
        with pytest.raises(Unauthenticated):
            services.authenticate_key(text)
    assert services.authenticate_key(third.text).id == first.key.id


@pytest.mark.parametrize("overlap", [timedelta(seconds=-1), timedelta(days=31)])
def test_an_overlap_has_bounds(overlap, alice):
    key = services.issue_key(actor=alice, name="app").key
    with pytest.raises(Invalid):
        services.roll_key(actor=alice, key_id=key.id, overlap=overlap)


def test_a_revoked_key_opens_nothing_and_cannot_come_back(alice):
    issued = services.issue_key(actor=alice, name="app")
    services.revoke_key(actor=alice, key_id=issued.key.id)
    with pytest.raises(Unauthenticated):
        services.authenticate_key(issued.text)
    with pytest.raises(Conflict):
        services.revoke_key(actor=alice, key_id=issued.key.id)
    with pytest.raises(Conflict):
        services.roll_key(actor=alice, key_id=issued.key.id)


def test_a_key_that_has_ended_or_whose_tenant_is_suspended_opens_nothing(alice, personas):
    ended, paused = (services.issue_key(actor=alice, name=name) for name in ("ended", "paused"))
    with acting_as(SYSTEM):
        ApiKey.objects.filter(pk=ended.key.id).update(expires_at=timezone.now())
    with pytest.raises(Unauthenticated):
        services.authenticate_key(ended.text)
    services.authenticate_key(paused.text)
    root = platform_actor(personas.root)
    services.suspend_tenant(actor=root, tenant_id=personas.acme.id, reason="unpaid")
    with pytest.raises(Unauthenticated):
        services.authenticate_key(paused.text)
    services.resume_tenant(actor=root, tenant_id=personas.acme.id)
    services.authenticate_key(paused.text)


def test_a_tenant_has_so_many_keys_and_no_more_so_that_its_part_of_the_catalog_ends(alice, monkeypatch):
    monkeypatch.setattr("tenants.services.keys.MAX_KEYS", 3)
    made = [services.issue_key(actor=alice, name=str(n)) for n in range(3)]
    with pytest.raises(Conflict, match="at most 3 keys"):
        services.issue_key(actor=alice, name="one more")
    services.revoke_key(actor=alice, key_id=made[0].key.id)
    services.issue_key(actor=alice, name="in its place")
    with pytest.raises(Invalid) as refusal:
        services.issue_key(actor=alice, name="many", deployment_ids=[new_id(Kind.DEPLOYMENT) for _ in range(101)])
    assert "deployment_ids" in refusal.value.fields


@given(st.text(max_size=80))
def test_junk_is_refused_without_a_look_into_the_database(text):
    with pytest.raises(Unauthenticated):  # no database is open here: a look-up would fail otherwise
        services.authenticate_key(text)


def test_a_well_formed_key_that_was_never_issued_is_refused(db, alice):
    issued = services.issue_key(actor=alice, name="app")
    for text in (codec.mint("live").text, codec.mint("live", issued.key.lookup).text):
        with pytest.raises(Unauthenticated):
            services.authenticate_key(text)


def test_a_pepper_that_was_withdrawn_no_longer_opens(alice, settings):
    issued = services.issue_key(actor=alice, name="app")
    settings.PAGODA_KEY_PEPPERS = {"t2": b"2" * 32, **settings.PAGODA_KEY_PEPPERS}
    services.authenticate_key(issued.text)
    settings.PAGODA_KEY_PEPPERS = {"t2": b"2" * 32}
    with pytest.raises(Unauthenticated):
        services.authenticate_key(issued.text)
    rolled = services.roll_key(actor=alice, key_id=issued.key.id)
    assert services.authenticate_key(rolled.text).id == issued.key.id


def test_each_change_of_a_key_reaches_the_outbox(alice):
    key = services.issue_key(actor=alice, name="app").key
    services.roll_key(actor=alice, key_id=key.id)
    services.revoke_key(actor=alice, key_id=key.id)
    assert topics() == ["key", "key", "key"]


@pytest.mark.parametrize("who", ["carol", "bill"])
def test_who_may_not_make_keys_is_told_so(who, personas, alice):
    actor = member_actor(getattr(personas, who), "acme")
    key = services.issue_key(actor=alice, name="app").key
    for act in (
        lambda: services.issue_key(actor=actor, name="x"),
        lambda: services.roll_key(actor=actor, key_id=key.id),
        lambda: services.revoke_key(actor=actor, key_id=key.id),
    ):
        with pytest.raises(Forbidden):
            act()


def test_a_key_of_another_tenant_does_not_exist(personas, alice):
    key = services.issue_key(actor=alice, name="app").key
    mallory = member_actor(personas.mallory, "evil")
    for act in (services.roll_key, services.revoke_key, selectors.get_key):
        with pytest.raises(NotFound):
            act(actor=mallory, key_id=key.id)
    with pytest.raises(NotFound):
        selectors.get_key(actor=alice, key_id=new_id(Kind.KEY))


def test_the_playground_key_is_the_same_every_time_and_listed_nowhere(personas, alice):
    text = services.playground_key(actor=alice)
    assert services.playground_key(actor=alice) == text
    assert services.playground_key(actor=member_actor(personas.bob, "acme")) != text
    assert services.authenticate_key(text).tenant == personas.acme
    assert selectors.list_keys(actor=alice) == []
    with pytest.raises(Forbidden):
        services.playground_key(actor=member_actor(personas.bill, "acme"))


def test_a_playground_key_follows_a_new_deriving_secret(alice, settings):
    old = services.playground_key(actor=alice)
    settings.PAGODA_PLAYGROUND_SECRET = b"n" * 32
    new = services.playground_key(actor=alice)
    assert services.authenticate_key(new).home == alice.home
    with pytest.raises(Unauthenticated):
        services.authenticate_key(old)


def test_two_tabs_get_one_playground_key(committed, personas):
    alice, texts, barrier = member_actor(personas.alice, "acme"), [], threading.Barrier(4)

    def open_tab():
        try:
            barrier.wait()
            texts.append(services.playground_key(actor=alice))
        finally:
            connection.close()

    threads = [threading.Thread(target=open_tab) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(texts), len(set(texts))) == (4, 1)
    with acting_as(SYSTEM):
        assert ApiKey.objects.count() == 1


def test_of_two_who_revoke_one_key_one_loses(committed, personas):
    alice, barrier, outcomes = member_actor(personas.alice, "acme"), threading.Barrier(2), []
    key = services.issue_key(actor=alice, name="app").key

    def revoke():
        try:
            barrier.wait()
            services.revoke_key(actor=alice, key_id=key.id)
            outcomes.append("revoked")
        except Conflict:
            outcomes.append("conflict")
        finally:
            connection.close()

    threads = [threading.Thread(target=revoke) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["conflict", "revoked"]


def test_the_time_of_last_use_only_moves_forward(alice):
    key = services.issue_key(actor=alice, name="app").key
    now = timezone.now()
    services.note_key_use(actor=SYSTEM, used_at={key.id: now})
    services.note_key_use(actor=SYSTEM, used_at={key.id: now - timedelta(hours=1)})
    assert selectors.get_key(actor=alice, key_id=key.id).last_used_at == now


def test_the_catalog_carries_digests_and_limits_and_no_revoked_key(alice, personas):
    kept = services.issue_key(actor=alice, name="kept", deployment_ids=[new_id(Kind.DEPLOYMENT)])
    gone = services.issue_key(actor=alice, name="gone")
    services.revoke_key(actor=alice, key_id=gone.key.id)
    services.roll_key(actor=alice, key_id=kept.key.id)
    entries = selectors.catalog_keys(actor=SYSTEM)
    entry = entries[kept.key.lookup]
    assert list(entries) == [kept.key.lookup]
    assert (entry.tenant_id, entry.scopes) == (personas.acme.id, ("inference",))
    assert entry.deployment_ids == tuple(kept.key.deployment_ids)
    old, new = entry.secrets
    assert (old.expires_at_ms is not None, new.expires_at_ms) == (True, None)
