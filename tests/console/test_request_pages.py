"""Requests: found, listed, and each with where its time went. Who may open them is the matrix of tests/isolation."""

import re
from datetime import timedelta
from types import SimpleNamespace

import pytest
from console_world import FRAME_QUERIES, PLATFORM_FRAME_QUERIES, fill, late, num_queries, page
from django.utils import timezone
from domain import PLATFORM, deploy

from console.views import requests
from controlplane.deployments.services import delete_deployment
from controlplane.metering.services import ingest, set_price
from dataplane.contracts.ids import Kind, encode, new_id
from dataplane.contracts.usage import Outcome, Phases
from tenants.actor import member_actor
from tenants.services.keys import playground_key


def call(personas, busy: SimpleNamespace, **fields):
    """Have acme make a call that ends well, of which everything was measured."""
    gateway = Phases(auth_ms=2, admission_ms=3, cold_ms=640)
    replica = Phases(
        own_budget_ms=0, fair_share_ms=180, memory_ms=40, prefill_ms=310, decode_ms=1850, preempted_ms=240,
        preemptions=1, kv_blocks=18, batch_rows=5.42,
    )  # fmt: skip
    life = late(
        personas.acme.id, deployment_id=busy.deployment.id, version_id=busy.version.id, key_id=busy.key.id,
        prompt_tokens=800, endpoint="/v1/completions", **fields,
    )  # fmt: skip
    last = life.closed(400, phases=gateway, ttft_ms=1215, duration_ms=3080)
    ingest(actor=PLATFORM, records=[life.admit(), life.final(400, phases=replica, cached_tokens=512), last])
    return life


def rows(text: str) -> list[str]:
    """Return the ids of the requests that a page lists, in its order."""
    return re.findall(r'title="(req_\w+)"', text)


def test_a_request_is_listed_with_what_it_called_and_came_to(alice, busy, personas):
    set_price(actor=PLATFORM, input_microusd=1_000_000, output_microusd=2_000_000)
    life = call(personas, busy, arm="candidate", forced=True, at_ms=int(timezone.now().timestamp() * 1000) + 5000)
    text = page(alice, "/t/acme/requests")
    assert rows(text)[0] == life.request_id
    line = text.split(life.request_id)[2].split("</tr>")[0]
    for words in (
        f"chat@{busy.version.number}", "candidate, forced", busy.key.prefix, "Finished", "800", "400", "1,215 ms",
        "3,080 ms", "$0.0016",
    ):  # fmt: skip
        assert words in line, words


def test_the_newest_comes_first_and_pages_follow_one_another(alice, busy, personas, monkeypatch):
    monkeypatch.setattr(requests, "_PAGE_ROWS", 3)
    for _ in range(4):
        call(personas, busy)
    first = page(alice, "/t/acme/requests?outcome=ok")
    older = re.search(r'href="(\?[^"]*before=req_[^"]*)"', first)
    assert older is not None
    assert "outcome=ok" in older[1]
    second = page(alice, "/t/acme/requests" + older[1].replace("&amp;", "&"))
    listed = rows(first) + rows(second)
    assert len(rows(first)) == len(rows(second)) == 3
    assert listed == sorted(listed, reverse=True)
    assert ">Newest</a>" in second


@pytest.mark.parametrize(
    ("query", "number"),
    [
        ("", 5), ("outcome=ok", 3), ("outcome=failed", 1), ("outcome=refused", 1), ("outcome=running", 0),
        ("arm=stable", 5), ("arm=candidate", 0), ("deployment={deployment}", 4), ("version={version}", 4),
        ("key={key}", 4), ("deployment={deployment}&outcome=refused", 0), ("range=1h", 5), ("before=nonsense", 5),
        ("outcome=nonsense&arm=1&deployment=dep_of_nobody&range=1y", 5),
    ],
)  # fmt: skip
def test_the_address_chooses_what_is_listed(query, number, alice, busy, personas):
    ingest(actor=PLATFORM, records=[late(personas.acme.id).refused()])
    ids = {"deployment": busy.deployment.id, "version": busy.version.id, "key": busy.key.id}
    assert len(rows(page(alice, f"/t/acme/requests?{query.format(**ids)}"))) == number


def test_a_range_leaves_out_what_is_older(alice, busy, personas):
    old = late(personas.acme.id)
    two_days_ago = timezone.now() - timedelta(days=2)
    old.request_id = encode(Kind.REQUEST, int(two_days_ago.timestamp() * 1000), 1)
    ingest(actor=PLATFORM, records=old.whole())
    assert old.request_id not in rows(page(alice, "/t/acme/requests?range=24h"))
    assert old.request_id in rows(page(alice, "/t/acme/requests?range=7d"))


def test_the_list_of_a_deployment_is_its_own_and_keeps_its_tab(alice, busy, personas):
    other = deploy(personas.acme, name="other")
    ingest(actor=PLATFORM, records=late(personas.acme.id, deployment_id=other.id).whole())
    text = page(alice, f"/t/acme/deployments/{busy.deployment.id}?tab=requests&deployment={other.id}&outcome=ok")
    assert len(rows(text)) == 3
    assert '<input type="hidden" name="tab" value="requests">' in text
    assert 'name="deployment"' not in text
    empty = page(alice, f"/t/acme/deployments/{busy.deployment.id}?tab=requests&outcome=running")
    assert 'href="?tab=requests&amp;range=all"' in empty


def test_a_deleted_deployment_and_the_playground_keep_their_names(alice, personas):
    gone = deploy(personas.acme, name="gone")
    delete_deployment(actor=member_actor(personas.alice, "acme"), deployment_id=gone.id, confirm="gone")
    bob = member_actor(personas.bob, "acme")
    playground_key(actor=bob)
    call(personas, SimpleNamespace(deployment=gone, version=SimpleNamespace(id=""), key=SimpleNamespace(id="")))
    text = page(alice, "/t/acme/requests")
    assert "gone (deleted)" in text
    assert "Playground of bob" in text


def test_an_id_leads_to_its_page_from_wherever_it_is_sought(alice, root, busy):
    for client, here in ((alice, "/t/acme/requests"), (root, "/platform/requests")):
        answer = client.get(here, {"id": f" {busy.request_id} "})
        assert answer["Location"] == f"{here}/{busy.request_id}"
    tab = page(alice, f"/t/acme/deployments/{busy.deployment.id}?tab=requests")
    assert 'action="/t/acme/requests"' in tab


@pytest.mark.parametrize("sought", ["nonsense", new_id(Kind.REQUEST), "req_<b>"])
def test_an_id_that_is_not_found_is_told_with_why(sought, alice, busy):
    text = page(alice, f"/t/acme/requests?id={sought}")
    assert "There is no request" in text
    assert "leaves no row" in text
    assert "<b>" not in text


def test_before_there_is_any_request_the_first_call_is_offered(alice, personas):
    assert 'href="/t/acme/playground">Make the first call' in page(alice, "/t/acme/requests?range=all")
    assert "Show every request" in page(alice, "/t/acme/requests?outcome=failed")


def test_a_request_tells_where_its_time_went_as_a_picture_and_as_a_table(alice, busy, personas):
    life = call(personas, busy)
    text = page(alice, f"/t/acme/requests/{life.request_id}")
    picture = text.split('role="img" aria-label="')[1].split('"')[0]
    for words in ("Cold wait 640 ms", "Fair share 180 ms", "Prefill 310 ms", "Decode 1,850 ms", "Delivery 15 ms"):
        assert words in picture, words
    assert "3,085 ms from arrival to end" in text
    assert "unknown" not in text
    assert "240 ms of it preempted" in text
    for words in (
        "512 of 800 tokens",
        "18 at most",
        "5.4 sequences a step",
        "/v1/completions",
        "Prompt and answer are",
    ):
        assert words in text, words
    assert "data-poll" not in text


def test_what_nobody_measured_is_unknown_and_not_zero(alice, busy):
    text = page(alice, f"/t/acme/requests/{busy.request_id}")
    assert "Prefill unknown" in text
    assert "0 ms" not in text.split('role="img"')[1].split('"')[1]
    assert "at least" in text


def test_a_cost_is_told_with_how_it_was_computed(alice, busy, personas):
    set_price(actor=PLATFORM, input_microusd=1_000_000, output_microusd=2_000_000)
    set_price(actor=PLATFORM, deployment_id=busy.deployment.id, input_microusd=500_000, output_microusd=3_000_000)
    life = call(personas, busy, at_ms=int(timezone.now().timestamp() * 1000) + 5000)
    text = page(alice, f"/t/acme/requests/{life.request_id}")
    assert "800 tokens in at $0.5000 and 400 out at $3.00 for a million" in text
    assert "<strong>$0.0016</strong>" in text
    assert "No price was set when it began" in page(alice, f"/t/acme/requests/{busy.request_id}")


def test_a_failed_request_says_what_its_code_means_and_what_to_do(alice, busy, personas):
    refused = late(personas.acme.id, deployment_id=busy.deployment.id)
    ingest(actor=PLATFORM, records=[refused.closed(0, Outcome.REFUSED, replica_id="", error_code="model_cold")])
    text = page(alice, f"/t/acme/requests/{refused.request_id}")
    for words in ("No replica was ready", "keep a replica ready", "status 503", "came to no replica"):
        assert words in text, words
    assert "In the engine" not in text


def test_every_attempt_is_told_and_a_running_one_is_asked_again(alice, busy, personas):
    life = late(personas.acme.id, deployment_id=busy.deployment.id)
    lost = life.closed(0, Outcome.REDISPATCHED, attempt=1, error_code="replica_lost", duration_ms=800)
    ingest(actor=PLATFORM, records=[lost, life.admit(attempt=2)])
    url = f"/t/acme/requests/{life.request_id}"
    text = page(alice, url)
    for words in ("Begun anew", "rep_1", "rep_2", "The gateway has not said", "Earlier attempts 800 ms", "provisional"):
        assert words in text, words
    assert "data-poll" in text
    part = page(alice, url, hx_request="true")
    assert "<html" not in part
    assert "Earlier attempts" in part


def test_the_platform_looks_into_every_tenants_request(root, signed_in, busy):
    text = page(root, "/platform/requests")
    assert busy.request_id in rows(text)
    assert "acme/chat@" in text
    assert "acme, stable" in text
    one = page(root, f"/platform/requests/{busy.request_id}")
    assert "<dt>Tenant</dt><dd>acme</dd>" in one
    assert "/t/acme/" not in one
    page(signed_in("mallory"), f"/t/evil/requests/{busy.request_id}", status=404)
    page(root, f"/platform/requests/{new_id(Kind.REQUEST)}", status=404)


def test_a_guest_reads_its_own_requests_and_nothing_of_the_owner(root, signed_in, busy, personas):
    share = {"tenant": "evil", "guarantee_tokens": "0", "cap_tokens": "", "weight": "1"}
    root.post(f"/platform/budgets/{busy.deployment.id}/share", share)
    theirs = late(personas.evil.id, deployment_id=busy.deployment.id, version_id=busy.version.id)
    ingest(actor=PLATFORM, records=theirs.whole())
    text = page(signed_in("mallory"), "/t/evil/requests")
    assert rows(text) == [theirs.request_id]
    assert "acme/chat<" in text
    assert "tiny" not in text
    assert "tiny" not in page(signed_in("mallory"), f"/t/evil/requests/{theirs.request_id}")


def test_a_request_is_asked_for_as_often_whatever_it_holds(alice, root, busy, personas):
    life = call(personas, busy)
    for client, url, frame in ((alice, "/t/acme", FRAME_QUERIES), (root, "/platform", PLATFORM_FRAME_QUERIES)):
        assert num_queries(client, f"{url}/requests/{life.request_id}") == frame + 6


def test_the_list_asks_as_often_for_much_as_for_little(alice, personas):
    fill(personas, num_requests=1)
    few = num_queries(alice, "/t/acme/requests")
    fill_more = [late(personas.acme.id) for _ in range(60)]
    ingest(actor=PLATFORM, records=[record for life in fill_more for record in life.whole()])
    assert num_queries(alice, "/t/acme/requests") == few
