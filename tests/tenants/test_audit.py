import json
import threading
from datetime import UTC, datetime
from io import StringIO

import psycopg
import pytest
from audit_world import some_changes, tamper
from django.core.management import CommandError, call_command
from django.db import ProgrammingError, connection
from django_fixtures import DATABASE
from hypothesis import given
from hypothesis import strategies as st

from stack.postgres import OWNER_ROLE
from tenants import audit, services
from tenants.actor import acting_as, member_actor, platform_actor, system_actor
from tenants.chain import GENESIS, Link, link_hash, verify
from tenants.models import AuditEvent, AuditHead
from tenants.roles import Role

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
documents = st.dictionaries(texts, st.one_of(st.none(), st.booleans(), st.integers(-(2**53), 2**53), texts), max_size=3)


def chain_of(documents):
    rows, previous = [], GENESIS
    for number, (before, after) in enumerate(documents, 1):
        link = Link(
            id=f"aud_{number}", tenant_id="ten_1", sequence=number, at=datetime(2026, 1, 1, tzinfo=UTC),
            actor_kind="user", actor_id="usr_1", actor_label="alice", verb="x.y", target_kind="t", target_id="1",
            target_label="one", before=before, after=after, request_id="", origin="", previous_hash=previous,
        )  # fmt: skip
        previous = link_hash(link)
        rows.append((link, previous))
    return rows, len(rows), previous


chains = st.lists(st.tuples(documents, documents), min_size=1, max_size=8).map(chain_of)


@given(chains)
def test_an_untouched_chain_verifies(chain):
    assert list(verify(*chain)) == []


@given(chains, st.data())
def test_any_changed_field_is_found_at_its_row(chain, data):
    rows, length, head = chain
    index = data.draw(st.integers(0, length - 1))
    field = data.draw(st.sampled_from(["actor_id", "verb", "target_label", "before", "after", "at"]))
    link, stored = rows[index]
    value = {"at": datetime(2027, 1, 1, tzinfo=UTC), "before": {"new": 1}, "after": {"new": 1}}.get(field, "changed")
    if getattr(link, field) == value:
        return
    rows[index] = (Link(**{**{name: getattr(link, name) for name in Link.__slots__}, field: value}), stored)
    assert [fault.sequence for fault in verify(rows, length, head)] == [index + 1]


@given(chains, st.data())
def test_any_missing_row_is_found(chain, data):
    rows, length, head = chain
    del rows[data.draw(st.integers(0, length - 1))]
    assert list(verify(rows, length, head))


@given(chains.filter(lambda chain: chain[1] > 1), st.data())
def test_a_row_rewritten_with_a_fitting_hash_breaks_the_next_link(chain, data):
    rows, length, head = chain
    index = data.draw(st.integers(0, length - 1))
    link, _ = rows[index]
    forged = Link(**{**{name: getattr(link, name) for name in Link.__slots__}, "actor_label": "mallory"})
    rows[index] = (forged, link_hash(forged))
    assert list(verify(rows, length, head))


@given(documents)
def test_what_the_database_gives_back_hashes_the_same(document):
    rows, _, _ = chain_of([(document, {})])
    back, _, _ = chain_of([(json.loads(json.dumps(document)), {})])
    assert rows == back


def test_a_change_leaves_one_row_that_says_who_what_and_where(personas):
    with audit.originating(audit.Origin(request_id="req_x", address="192.0.2.1")):
        issued = services.issue_key(actor=member_actor(personas.alice, "acme"), name="batch")
    with acting_as(system_actor("test")):
        (event,) = AuditEvent.objects.all()
    assert (event.verb, event.actor_label, event.target_id) == ("key.issue", "alice@acme.example", issued.key.id)
    assert (event.request_id, event.origin, event.tenant_id) == ("req_x", "192.0.2.1", personas.acme.id)
    assert event.after["prefix"] == issued.key.prefix
    assert issued.text not in json.dumps([event.before, event.after])


def test_a_row_outlives_its_object_with_its_names(personas):
    services.remove_member(actor=member_actor(personas.alice, "acme"), user_id=personas.bob.id)
    with acting_as(system_actor("test")):
        assert AuditEvent.objects.get(verb="member.remove").target_label == "bob@acme.example"


def test_a_change_that_is_rolled_back_leaves_no_row(personas):
    alice = member_actor(personas.alice, "acme")

    def break_off():
        with acting_as(alice):
            audit.record(actor=alice, verb="x", target=personas.acme)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        break_off()
    with acting_as(system_actor("test")):
        assert AuditEvent.objects.count() == 0


def test_a_row_is_written_in_a_transaction_or_not_at_all(committed, personas):
    with pytest.raises(RuntimeError, match="transaction"):
        audit.record(actor=system_actor("test"), verb="x", target=personas.acme)


def test_the_application_can_neither_change_nor_delete_a_row(personas):
    some_changes(personas)
    for statement in ("UPDATE tenants_auditevent SET verb = 'x'", "DELETE FROM tenants_auditevent"):
        with pytest.raises(ProgrammingError, match="permission denied"), acting_as(system_actor("test")):
            connection.cursor().execute(statement)


def test_not_even_the_owner_changes_a_row_in_passing(committed, personas, postgres):
    some_changes(personas)
    with psycopg.connect(postgres.url(OWNER_ROLE, DATABASE)) as owner:
        owner.execute("SET pagoda.platform = 'on'")
        for statement in ("UPDATE tenants_auditevent SET verb = 'x'", "DELETE FROM tenants_auditevent"):
            with pytest.raises(psycopg.errors.RaiseException, match="append-only"), owner.transaction():
                owner.execute(statement)


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("UPDATE tenants_auditevent SET actor_label = 'bob' WHERE sequence = 2", "acme, row 2: its content"),
        ("UPDATE tenants_auditevent SET after = '{}' WHERE sequence = 1", "acme, row 1: its content"),
        ("DELETE FROM tenants_auditevent WHERE sequence = 2", "rows 2 to 2 are missing"),
        ("DELETE FROM tenants_auditevent WHERE sequence = 3", "ends at row 2, its head names row 3"),
        ("DELETE FROM tenants_audithead", "has lost its head"),
    ],
)
def test_verify_audit_names_what_was_tampered_with(statement, said, committed, personas, postgres):
    some_changes(personas)
    call_command("verify_audit", stdout=StringIO())
    tamper(postgres, statement)
    with pytest.raises(CommandError, match=said):
        call_command("verify_audit", stdout=StringIO())


def test_changes_of_many_threads_make_one_unbroken_chain(committed, personas):
    barrier = threading.Barrier(6)

    def change(number):
        try:
            barrier.wait()
            services.issue_key(actor=member_actor(personas.alice, "acme"), name=f"thread {number}")
        finally:
            connection.close()

    threads = [threading.Thread(target=change, args=[number]) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with acting_as(system_actor("test")):
        head = AuditHead.objects.get(tenant=personas.acme)
        assert (head.sequence, list(audit.verify_chain(head))) == (6, [])


def test_the_platform_has_a_chain_of_its_own(personas):
    root = platform_actor(personas.root)
    services.create_user(actor=root, email="new@acme.example", password="a long enough phrase")
    services.invite_member(actor=member_actor(personas.alice, "acme"), email="x@acme.example", role=Role.VIEWER)
    with acting_as(system_actor("test")):
        assert sorted((head.tenant_id is None, head.sequence) for head in AuditHead.objects.all()) == [
            (False, 1),
            (True, 1),
        ]
