"""What people see. Who may reach which page at all is the matrix of tests/isolation."""

import re

import pytest
from console_world import FRAME_QUERIES, fill, num_queries, page
from django.urls import reverse
from domain import PLATFORM, deploy

from dataplane.contracts.catalog import Limits
from tenants.actor import member_actor, platform_actor
from tenants.services import issue_key
from tenants.services.quotas import set_tenant_quota
from tenants.services.tenancy import suspend_tenant

PAGE_QUERIES = {
    "/t/acme/": 8,
    "/t/acme/start": 7,
    "/t/acme/playground": 4,
    "/t/acme/deployments": 5,
    "/t/acme/deployments/new": 3,
    "/t/acme/deployments/{deployment}": 8,
    "/t/acme/deployments/{deployment}?tab=replicas": 5,
    "/t/acme/deployments/{deployment}?tab=rollouts": 6,
    "/t/acme/deployments/{deployment}?tab=requests": 7,
    "/t/acme/deployments/{deployment}?tab=events": 6,
    "/t/acme/deployments/{deployment}/settings": 3,
    "/t/acme/deployments/{deployment}/pause": 7,
    "/t/acme/keys": 2,
    "/t/acme/keys/new": 3,
    "/t/acme/requests": 5,
    "/t/acme/usage": 5,
    "/t/acme/usage?by=deployment": 6,
    "/t/acme/usage?by=version": 6,
    "/t/acme/members": 2,
    "/t/acme/members/leave": 0,
    "/t/acme/audit": 2,
}


@pytest.mark.parametrize("url", PAGE_QUERIES)
def test_a_page_asks_the_database_as_often_for_much_as_for_little(url, alice, personas):
    busy = fill(personas, num_requests=1)
    url = url.format(deployment=busy.deployment.id)
    assert num_queries(alice, url) == FRAME_QUERIES + PAGE_QUERIES[url.replace(busy.deployment.id, "{deployment}")]
    for number in range(3):
        deploy(personas.acme, name=f"other-{number}")
    assert num_queries(alice, url) == FRAME_QUERIES + PAGE_QUERIES[url.replace(busy.deployment.id, "{deployment}")]


def test_no_page_asks_more_than_eight_times():
    assert max(PAGE_QUERIES.values()) <= 8


@pytest.mark.parametrize(
    "name", ["home", "start", "playground", "deployments", "requests", "keys", "usage", "members", "audit"]
)
def test_every_page_works_before_there_is_anything(name, alice):
    text = page(alice, reverse(f"console:{name}", args=["acme"]))
    assert "None" not in text.replace('placeholder="None"', "")


def test_the_first_page_leads_to_the_checklist_until_the_first_request(alice, signed_in, personas):
    assert 'href="/t/acme/start">Get started</a><a class="button"' in page(alice, "/t/acme/")
    assert "/t/acme/start" not in page(signed_in("carol"), "/t/acme/")


def test_the_first_page_says_whether_it_is_well(alice, busy):
    text = page(alice, "/t/acme/")
    assert "1 request failed or was refused since" in text
    assert "Make the first call" not in text
    assert "internal" in text


def test_the_first_page_shows_use_against_limits(alice, busy, personas):
    limits = Limits(requests_per_minute=5, tokens_per_minute=1000)
    set_tenant_quota(actor=platform_actor(personas.root), tenant_id=personas.acme.id, limits=limits)
    text = page(alice, "/t/acme/")
    assert "4 of 5" in text
    assert "fill-warn" in text


def test_a_suspended_tenant_reads_why(alice, personas):
    suspend_tenant(actor=PLATFORM, tenant_id=personas.acme.id, reason="the invoice is open")
    assert "the invoice is open" in page(alice, "/t/acme/")


def test_what_a_tenant_wrote_is_text_and_never_markup(alice, personas):
    issue_key(actor=member_actor(personas.alice, "acme"), name="<script>alert(1)</script>")
    text = page(alice, "/t/acme/keys")
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert" in text


@pytest.mark.parametrize(
    ("name", "entries"),
    [
        (
            "alice",
            "Home, Get started, Playground, Models, Deployments, Rollouts, Approvals, Requests, API keys, Webhooks, "
            "Usage, Members, Audit",
        ),
        ("carol", "Home, Playground, Models, Deployments, Rollouts, Requests, API keys, Usage, Members"),
        ("bill", "Home, Usage, Members"),
    ],
)
def test_the_navigation_names_what_one_may_open(name, entries, signed_in, busy):
    client = signed_in(name)
    text = page(client, "/t/acme/")
    menu = text.split('aria-label="Acme"')[1].split("</nav>")[0]
    assert ", ".join(re.findall(r">([^<]+)</a>", menu)) == entries
    assert "Platform" not in text


def test_who_may_change_nothing_is_offered_no_change(signed_in, busy):
    carol = signed_in("carol")
    assert "Create a key" not in page(carol, "/t/acme/keys")
    assert "Settings" not in page(carol, f"/t/acme/deployments/{busy.deployment.id}")
    assert "Deploy a version" not in page(carol, "/t/acme/deployments")


def test_who_may_not_read_requests_is_shown_none(signed_in, busy):
    bill = signed_in("bill")
    for url in ("/t/acme/", "/t/acme/usage"):
        assert "req_" not in page(bill, url)


def test_a_live_part_comes_without_its_frame(alice, busy):
    here = f"/t/acme/deployments/{busy.deployment.id}"
    live = {
        "/t/acme/": "Last errors",
        "/t/acme/start": "All done",
        "/t/acme/deployments": "Live",
        here: "KV pool",
        f"{here}?tab=replicas": "rep_0",
        f"{here}?tab=requests": busy.request_id,
        "/t/acme/requests": busy.request_id,
        f"{here}?tab=events": "Smoke passed",
    }
    for url, words in live.items():
        part = page(alice, url, hx_request="true")
        assert "<html" not in part
        assert words in part


def test_without_a_price_a_cost_is_not_told_as_nothing(alice, root, busy):
    for url in ("/t/acme/", "/t/acme/usage"):
        text = page(alice, url)
        assert "no price set" in text
        assert "$0" not in text
    assert "data-input" not in page(alice, "/t/acme/playground")
    root.post("/platform/prices", {"deployment_id": "", "input_usd": "0", "output_usd": "0.5", "effective_from": ""})
    assert "no price set" not in page(alice, "/t/acme/usage")
    assert 'data-input="0" data-output="500000"' in page(alice, "/t/acme/playground")


def test_the_usage_page_names_keys_deployments_and_versions(alice, busy):
    assert "checkout" in page(alice, "/t/acme/usage")
    assert "chat" in page(alice, "/t/acme/usage?by=deployment")
    assert "tiny v" in page(alice, "/t/acme/usage?by=version")


@pytest.mark.parametrize("query", ["?range=1y&by=secret", "?range=&by=", "?range=24h&range=x"])
def test_a_range_or_breakdown_that_does_not_exist_is_the_usual_one(query, alice, busy):
    assert 'aria-current="true">7 days' in page(alice, f"/t/acme/usage{query}")


def test_no_answer_to_a_member_may_be_kept_by_a_cache(alice, busy):
    for url in ("/t/acme/", "/t/acme/keys", "/t/acme/keys/new", "/t/acme/usage"):
        assert "no-store" in alice.get(url)["Cache-Control"]
