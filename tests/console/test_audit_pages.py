import re
from datetime import UTC, datetime

import pytest
from console_world import FRAME_QUERIES, fill, num_queries, page
from domain import PLATFORM, make_version

from controlplane.jobs.lease import JobState
from controlplane.jobs.models import Job
from controlplane.jobs.run import run_job
from tenants import audit
from tenants.actor import acting_as, member_actor
from tenants.models import AuditHead
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
    assert num_queries(alice, "/t/acme/audit") == FRAME_QUERIES + 2


def test_what_people_wrote_is_never_markup(alice, personas):
    issue_key(actor=member_actor(personas.bob, "acme"), name="<script>alert(1)</script>")
    assert "<script>alert" not in page(alice, "/t/acme/audit")


def test_a_journal_is_its_tenants_own(signed_in, changed):
    assert "changed the role of" not in page(signed_in("mallory"), "/t/evil/audit")


def test_the_platform_reads_every_chain_in_one_line_of_time(root, personas, changed):
    issue_key(actor=member_actor(personas.mallory, "evil"), name="theirs")
    root.post("/platform/prices", {"deployment_id": "", "input_usd": "1", "output_usd": "2", "effective_from": ""})
    text = page(root, "/platform/audit")
    told = ["set the price of", "<strong>theirs", "<strong>dave@acme.example</strong>", "changed the role of"]
    assert [text.index(words) for words in told] == sorted(text.index(words) for words in told)


@pytest.mark.parametrize(
    ("query", "shown", "hidden"),
    [
        ("?tenant=acme", "changed the role of", "<strong>theirs"),
        ("?tenant=evil", "<strong>theirs", "changed the role of"),
        ("?tenant=-", "set the price of", "<strong>theirs"),
        ("?tenant=nobody", "<strong>theirs", "Nothing to show"),
        ("?who=mallory", "<strong>theirs", "set the price of"),
        ("?target=dave", "invited <strong>dave", "<strong>theirs"),
        ("?about=limits", "set the price of", "<strong>theirs"),
        ("?before=nonsense", "<strong>theirs", "Nothing to show"),
    ],
)
def test_the_platforms_journal_is_narrowed_by_its_address(query, shown, hidden, root, personas, changed):
    issue_key(actor=member_actor(personas.mallory, "evil"), name="theirs")
    root.post("/platform/prices", {"deployment_id": "", "input_usd": "1", "output_usd": "2", "effective_from": ""})
    text = page(root, f"/platform/audit{query}")
    assert shown in text
    assert hidden not in text


def test_the_platforms_pages_follow_one_another_across_chains(root, personas):
    for tenant, who in (("acme", personas.bob), ("evil", personas.mallory)):
        actor = member_actor(who, tenant)
        for number in range(AUDIT_PAGE_ROWS // 2 + 2):
            with acting_as(actor):
                audit.record(actor=actor, verb="key.issue", target=personas.acme, after={"name": f"{tenant} {number}."})
    first = page(root, "/platform/audit")
    older = re.search(r"before=(aud_\w+)", first)
    assert older is not None
    second = page(root, f"/platform/audit?before={older[1]}")
    names = [re.findall(r"<ins>(\w+ \d+)\.", text) for text in (first, second)]
    assert [len(found) for found in names] == [AUDIT_PAGE_ROWS, 4]
    assert len({*names[0], *names[1]}) == AUDIT_PAGE_ROWS + 4


def test_a_version_is_named_by_its_model(alice, personas):
    version = make_version(personas.acme)
    with acting_as(PLATFORM):
        audit.record(actor=PLATFORM, verb="version.archive", target=version, tenant=personas.acme)
    assert re.search(r"archived <strong>version \d+ of tiny</strong>", page(alice, "/t/acme/audit"))


def verify() -> None:
    """Do what a worker does with the job that the button makes."""
    with acting_as(PLATFORM):
        (job,) = Job.objects.filter(kind="audit.verify", state=JobState.QUEUED)
    assert run_job(job.pk) is JobState.DONE


def test_chains_are_verified_on_demand_and_say_how_far_they_hold(root, alice, changed):
    assert "has not been verified yet" in page(alice, "/t/acme/audit")
    assert "Not every chain has been verified yet" in page(root, "/platform/audit")
    for _ in range(2):
        assert root.post("/platform/audit/verify").status_code == 302
    verify()
    assert "Verified to row 4 of 4" in page(alice, "/t/acme/audit")
    assert "2 chains, 5 of 5 rows" in page(root, "/platform/audit")
    assert "asked to verify every chain" in page(root, "/platform/audit")


def test_a_broken_chain_is_named_on_both_pages(root, alice, changed):
    with acting_as(PLATFORM):
        AuditHead.objects.filter(tenant__slug="acme").update(hash="0" * 64)
    root.post("/platform/audit/verify")
    verify()
    for client, url in ((alice, "/t/acme/audit"), (root, "/platform/audit")):
        assert "The chain acme is broken</strong> at row 4: the chain ends at row 4" in page(client, url)


def test_an_empty_journal_says_what_it_is_for(alice):
    assert "Who makes a key" in page(alice, "/t/acme/audit?range=all")
