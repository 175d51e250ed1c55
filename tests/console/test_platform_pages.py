from types import SimpleNamespace

import pytest
from console_world import PLATFORM_FRAME_QUERIES, fill, num_queries, page, report_node
from domain import PLATFORM
from spool_records import Life

from controlplane.metering.services import ingest
from dataplane.contracts.ids import Kind, new_id
from dataplane.contracts.replica import TRIAL_PREFIX, Device, NodeReport, ReplicaState, Tier, TierCost
from tenants.actor import platform_actor
from tenants.selectors import get_tenant, list_tenants, tenant_serving
from tenants.serving import ServingLimits

FORM = {
    "requests_per_minute": "60", "tokens_per_minute": "", "concurrent_requests": "4", "max_request_tokens": "",
}  # fmt: skip


def limits_of(personas, slug="acme"):
    return next(found for row, found in list_tenants(actor=platform_actor(personas.root)) if row.slug == slug)


def test_the_fleet_shows_replicas_with_whose_blocks_they_hold(root, busy):
    text = page(root, "/platform/fleet")
    for words in ("Node n1", "acme/chat", "rep_0", "In use 20", "Free 100", ">acme<"):
        assert words in text, words
    assert "<html" not in page(root, "/platform/fleet", hx_request="true")


def test_the_fleet_misses_no_replica_that_rests_is_spare_tries_a_version_or_has_ended(root, busy):
    chat = {"deployment_id": busy.deployment.id, "cause": "told"}
    trial = {"deployment_id": f"{TRIAL_PREFIX}{busy.version.id}", "cause": "told"}
    report_node([
        SimpleNamespace(replica_id="rep_1", state=ReplicaState.READY, **chat),
        SimpleNamespace(replica_id="rep_2", state=ReplicaState.LOADING, **chat),
        SimpleNamespace(replica_id="rep_3", state=ReplicaState.ASLEEP, **chat),
        SimpleNamespace(replica_id="rep_4", state=ReplicaState.STOPPED, **chat),
        SimpleNamespace(replica_id="rep_5", state=ReplicaState.WARM_IDLE, cause="waits"),
        SimpleNamespace(replica_id="rep_6", state=ReplicaState.LOADING, **trial),
    ])  # fmt: skip
    text = page(root, "/platform/fleet")
    for words in ("1 <small>of 2", "Spare process", "Check of a version", "Ended: 1 process<"):
        assert words in text, words


@pytest.mark.parametrize(
    ("url", "queries"),
    [
        ("/platform/fleet", 7),
        ("/platform/tenants", 2),
        ("/platform/budgets", 5),
        ("/platform/warm-pool", 4),
        ("/platform/prices", 2),
        ("/platform/jobs", 7),
        ("/platform/requests", 5),
        ("/platform/audit", 4),
        ("/platform/health", 8),
    ],
)
def test_a_page_of_the_platform_asks_at_most_eight_times(url, queries, root, busy, answering):
    assert num_queries(root, url) == PLATFORM_FRAME_QUERIES + queries
    assert queries <= 8


def test_the_platforms_pages_work_before_there_is_anything(db, root):
    assert "No node has reported" in page(root, "/platform/fleet")
    assert "Acme" in page(root, "/platform/tenants")
    assert "Nothing is deployed" in page(root, "/platform/budgets")
    assert "No node has reported" in page(root, "/platform/warm-pool")
    assert "No price is set" in page(root, "/platform/prices")
    assert "No job is dead" in page(root, "/platform/jobs")


def test_limits_are_edited_and_an_empty_field_is_no_limit(root, personas):
    assert root.post("/platform/tenants/acme/limits", FORM).status_code == 302
    found = limits_of(personas)
    assert (found.requests_per_minute, found.tokens_per_minute, found.concurrent_requests) == (60, None, 4)
    assert 'value="60"' in page(root, "/platform/tenants/acme/limits")
    assert root.post("/platform/tenants/acme/limits", FORM | {"requests_per_minute": ""}).status_code == 302
    assert limits_of(personas).requests_per_minute is None


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "many", "2147483648", "9" * 400])
def test_a_limit_that_is_none_is_refused_at_its_field_and_changes_nothing(value, root, personas):
    answer = root.post("/platform/tenants/acme/limits", FORM | {"requests_per_minute": value})
    assert answer.status_code == 422
    assert answer.content.decode().count('class="error"') == 1
    assert limits_of(personas).concurrent_requests is None


def test_limits_of_serving_are_edited_beside_the_others(root, personas):
    page_url = "/platform/tenants/acme/limits"
    assert root.post(page_url, FORM | {"deployments": "7", "kept_replicas": "6"}).status_code == 302
    found = tenant_serving(actor=platform_actor(personas.root), tenant_id=personas.acme.id)
    assert (found, limits_of(personas).requests_per_minute) == (ServingLimits(deployments=7, kept_replicas=6), 60)
    text = page(root, page_url)
    for words in ('value="7"', 'value="6"', "Empty: 20", "Empty: 4"):
        assert words in text
    assert root.post(page_url, FORM | {"deployments": "", "kept_replicas": "2147483648"}).status_code == 422
    assert tenant_serving(actor=platform_actor(personas.root), tenant_id=personas.acme.id) == found


def test_a_form_without_fields_lifts_no_limit(root, personas):
    root.post("/platform/tenants/acme/limits", FORM)
    assert root.post("/platform/tenants/acme/limits", {}).status_code == 422
    assert limits_of(personas).requests_per_minute == 60


def test_suspending_wants_the_name_and_a_reason(root, personas):
    url = "/platform/tenants/evil/suspend"
    for refused in (
        {},
        {"confirm": "evil"},
        {"confirm": "evil", "reason": " "},
        {"confirm": "acme", "reason": "fraud"},
    ):
        assert root.post(url, refused).status_code == 422
    assert root.post(url, {"confirm": "evil", "reason": "fraud"}).status_code == 302
    assert not get_tenant(actor=platform_actor(personas.root), slug="evil").active
    assert "Suspended" in page(root, "/platform/tenants")
    assert root.post("/platform/tenants/evil/resume").status_code == 302
    assert get_tenant(actor=platform_actor(personas.root), slug="evil").active


def test_a_tenant_that_does_not_exist_is_not_found(root):
    page(root, "/platform/tenants/nobody/limits", status=404)


def test_a_pool_tells_what_each_tenant_is_promised_uses_borrows_and_caches(root, busy):
    share = {"tenant": "acme", "guarantee_tokens": "128", "cap_tokens": "", "weight": "3"}
    assert root.post(f"/platform/budgets/{busy.deployment.id}/share", share).status_code == 302
    text = page(root, "/platform/budgets")
    for words in (
        "acme/chat",
        "Used 128",
        "Borrowed 192",
        "Cached 128",
        "Guaranteed 128",
        "Weight 3",
        "2 running, 1 waiting",
    ):
        assert words in text, words


def test_the_longest_wait_of_late_is_told_of_whom_it_struck(root, personas):
    busy = fill(personas)
    assert "No wait in 5 min" in page(root, "/platform/budgets")
    for queue_ms in (40, 9_300):
        life = Life(personas.acme.id, deployment_id=busy.deployment.id)
        life.request_id = new_id(Kind.REQUEST)
        ingest(actor=PLATFORM, records=[life.admit(), life.final(1, queue_ms=queue_ms), life.closed(1)])
    assert "Longest wait, 5 min: 9,300 ms" in page(root, "/platform/budgets")


def test_a_tenant_is_let_in_and_out_again(root, busy, signed_in):
    url = f"/platform/budgets/{busy.deployment.id}"
    share = {"tenant": "evil", "guarantee_tokens": "0", "cap_tokens": "64", "weight": "1"}
    assert root.post(f"{url}/share", share).status_code == 302
    assert "acme/chat" in page(signed_in("mallory"), "/t/evil/deployments")
    assert 'value="64"' in page(root, f"{url}/share?tenant=evil")
    assert root.post(f"{url}/unshare", {"tenant": "evil"}).status_code == 302
    assert "acme/chat" not in page(signed_in("mallory"), "/t/evil/deployments")


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"guarantee_tokens": "100000"}, "do not fit"),
        ({"cap_tokens": "1", "guarantee_tokens": "64"}, "below its guarantee"),
        ({"tenant": "nobody"}, "is not one of the available choices"),
        ({"weight": "0"}, "greater than or equal to 1"),
        ({"weight": "1001"}, "from 1 to 1000"),
        ({"pace_ms": "1001"}, "from 0 to 1000"),
    ],
)
def test_a_share_that_cannot_be_kept_is_refused_with_the_numbers(fields, fault, root, busy):
    share = {"tenant": "evil", "guarantee_tokens": "0", "cap_tokens": "", "weight": "1"} | fields
    answer = root.post(f"/platform/budgets/{busy.deployment.id}/share", share)
    assert answer.status_code == 422
    assert fault in answer.content.decode()


def test_the_warm_pool_tells_tiers_memory_sleepers_and_costs(root, busy):
    asleep = SimpleNamespace(
        replica_id="rep_9", state=ReplicaState.ASLEEP, cause="idle for 5 min", deployment_id=busy.deployment.id,
        memory_bytes=512 << 20, eta_ms=420,
    )  # fmt: skip
    cold = SimpleNamespace(
        replica_id="rep_8", state=ReplicaState.COLD, cause="idle", deployment_id=busy.deployment.id, idle=True,
        tier=Tier.DISK,
    )  # fmt: skip
    idle = SimpleNamespace(replica_id="rep_7", state=ReplicaState.WARM_IDLE, cause="waits")
    report_node(
        [asleep, cold, idle],
        costs={busy.deployment.id: (TierCost(Tier.WARM, 1820, 2400, 7),)},
        resources=NodeReport(32 << 30, 18 << 30, (Device("cpu", "2 cores", 32 << 30),), 2 << 30, 1, 8),
    )
    text = page(root, "/platform/warm-pool")
    for words in (
        "512 MiB of 2 GiB",
        "18 GiB",
        "2 <small>of 8",
        "Idle for 5 min",
        "420 ms",
        "On disk",
        "1,820 ms",
        ":59",
    ):
        assert words in text, words


def test_a_price_is_set_once_and_the_next_takes_over(root, busy):
    price = {"deployment_id": "", "input_usd": "0.15", "output_usd": "0.6", "effective_from": ""}
    assert root.post("/platform/prices", price).status_code == 302
    assert root.post("/platform/prices", price | {"output_usd": "0.7"}).status_code == 302
    later = {"deployment_id": busy.deployment.id, "effective_from": "2999-01-01T00:00"}
    assert root.post("/platform/prices", price | later).status_code == 302
    text = page(root, "/platform/prices")
    assert [text.count(f">{state}<") for state in ("Active", "Past", "Planned")] == [1, 1, 1]
    assert "$0.7000" in text
    assert "acme/chat" in text
    again = root.post("/platform/prices", price | later)
    assert again.status_code == 422
    assert "There is a price from that moment on" in again.content.decode()


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"input_usd": "-1"}, "greater than or equal to 0"),
        ({"output_usd": "2000000"}, "less than or equal to 1000000"),
        ({"output_usd": "0.0000001"}, "no more than 6 decimal places"),
        ({"output_usd": "NaN"}, "Enter a number"),
        ({"effective_from": "2020-01-01T00:00"}, "Choose a time from now on"),
        ({"deployment_id": "dep_of_nobody"}, "is not one of the available choices"),
    ],
)
def test_a_price_that_cannot_be_is_refused_at_its_field(fields, fault, root, busy):
    price = {"deployment_id": "", "input_usd": "1", "output_usd": "1", "effective_from": ""} | fields
    answer = root.post("/platform/prices", price)
    assert answer.status_code == 422
    assert fault in answer.content.decode()
    assert "No price is set" in page(root, "/platform/prices")
