from datetime import UTC, datetime

import pytest
from console_world import fill, num_queries, page
from domain import PLATFORM

from tenants import audit
from tenants.actor import acting_as, member_actor
from tenants.models import AuditEvent
from tenants.roles import Role
from tenants.selectors import AUDIT_PAGE_ROWS
from tenants.services import change_role, invite_member, issue_key


@pytest.fixture
def changed(personas):
    """Acme, in which a key was made, a role changed and somebody invited."""
    fill(personas)
    alice = member_actor(personas.alice, "acme")
    change_role(actor=alice, user_id=personas.carol.id, role=Role.DEVELOPER)
    invite_member(actor=alice, email="dave@acme.example", role=Role.VIEWER)


def test_a_change_is_told_with_who_what_before_and_after(alice, changed):
    text = page(alice, "/t/acme/audit")
    assert "<strong>alice@acme.example</strong> changed the role of <strong>carol@acme.example</strong>" in text
    assert "<del>viewer</del> → <ins>developer</ins>" in text
    assert "<strong>bob@acme.example</strong> made the key <strong>checkout" in text


@pytest.mark.parametrize(
    ("query", "shown", "hidden"),
    [
        ("?about=members", "changed the role of", "made the key"),
        ("?about=keys", "made the key", "changed the role of"),
        ("?who=BOB", "made the key", "changed the role of"),
        ("?about=nonsense&range=1y&before=x", "made the key", "Nothing to show"),
        ("?who=nobody", "Nothing to show", "made the key"),
        ("?before=1", "Nothing to show", "made the key"),
        (f"?before={'9' * 40}", "made the key", "Nothing to show"),
    ],
)
def test_the_address_chooses_what_is_shown(query, shown, hidden, alice, changed):
    text = page(alice, f"/t/acme/audit{query}")
    assert shown in text
    assert hidden not in text


def test_a_range_leaves_out_what_is_older(alice, personas, monkeypatch):
    monkeypatch.setattr(audit.timezone, "now", lambda: datetime(2026, 1, 1, tzinfo=UTC))
    issue_key(actor=member_actor(personas.bob, "acme"), name="old one")
    monkeypatch.undo()
    assert "old one" not in page(alice, "/t/acme/audit?range=30d")
    assert "old one" in page(alice, "/t/acme/audit?range=all")


def test_pages_follow_one_another_and_keep_what_was_chosen(alice, personas):
    actor = member_actor(personas.bob, "acme")
    with acting_as(actor):
        for number in range(AUDIT_PAGE_ROWS + 5):
            audit.record(actor=actor, verb="key.issue", target=personas.acme, after={"name": f"number {number:02}."})
    first = page(alice, "/t/acme/audit?about=keys&range=7d")
    assert "number 54." in first
    assert "number 04." not in first
    assert "?about=keys&amp;range=7d&amp;before=6" in first
    second = page(alice, "/t/acme/audit?about=keys&range=7d&before=6")
    assert "number 04." in second
    assert "number 05." not in second
    assert "Older" not in second
    assert num_queries(alice, "/t/acme/audit") == 5


def test_what_people_wrote_is_never_markup(alice, personas):
    issue_key(actor=member_actor(personas.bob, "acme"), name="<script>alert(1)</script>")
    assert "<script>alert" not in page(alice, "/t/acme/audit")


def test_a_journal_is_its_tenants_own_and_the_platform_has_one(signed_in, root, changed):
    assert "changed the role of" not in page(signed_in("mallory"), "/t/evil/audit")
    with acting_as(PLATFORM):
        assert AuditEvent.objects.filter(tenant=None).count() == 0
    assert "Nothing to show" in page(root, "/platform/audit")
    root.post("/platform/prices", {"deployment_id": "", "input_usd": "1", "output_usd": "2", "effective_from": ""})
    assert "set the price of" in page(root, "/platform/audit")


def test_an_empty_journal_says_what_it_is_for(alice):
    assert "Who makes a key" in page(alice, "/t/acme/audit?range=all")
