import pytest
from console_world import num_queries, page

from tenants.actor import platform_actor
from tenants.selectors import get_tenant, list_tenants

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


@pytest.mark.parametrize(("url", "queries"), [("/platform/fleet", 7), ("/platform/tenants", 2)])
def test_a_page_of_the_platform_asks_at_most_eight_times(url, queries, root, busy):
    assert num_queries(root, url) == 3 + queries  # session, person, places


def test_the_platforms_pages_work_before_there_is_anything(db, root):
    assert "No node has reported" in page(root, "/platform/fleet")
    assert "Acme" in page(root, "/platform/tenants")


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
