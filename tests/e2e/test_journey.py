"""What people do with the product, in a real browser, against a real model."""

import re

import openai
import pytest
from conftest import knows
from people import make_key, set_limits
from playwright.sync_api import Locator, Page, expect
from running_stack import wait_for

ASK = [{"role": "user", "content": "Say hello."}]
ENDLESS = " ".join(["one two three four five six"] * 4)
"""Answered greedily, the bundled model repeats itself until it is stopped (transformers does the same)."""


def test_the_stack_describes_itself_with_the_agreed_keys(product):
    assert set(product.details) == {
        "console_url", "api_url", "gateway_url", "admin_email", "admin_password", "tenant", "user_email",
        "user_password", "api_key", "model",
    }  # fmt: skip


def test_a_key_made_in_the_console_calls_the_model_and_the_request_shows_up(visitor, known_client, product):
    model = product.details["model"]
    with visitor.window("user") as page:
        client = known_client(make_key(page, "journey"))
        assert model in [card.id for card in client.models.list()]

        chat = client.chat.completions.with_raw_response.create(model=model, messages=ASK, max_tokens=8)
        answer = chat.parse()
        assert answer.choices[0].message.content
        assert 0 < answer.usage.completion_tokens <= 8
        chunks = list(client.chat.completions.create(model=model, messages=ASK, max_tokens=8, stream=True))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert client.completions.create(model=model, prompt="Once upon a time", max_tokens=4).choices[0].text
        parts = client.completions.create(model=model, prompt="Once upon a time", max_tokens=4, stream=True)
        assert "".join(part.choices[0].text for part in parts if part.choices)

        page.goto("/t/acme/usage?range=24h&by=key")
        total = page.locator("section", has_text="By key").get_by_role("row").filter(has_text="journey")
        expect(total.first.get_by_role("cell").nth(1)).to_have_text("4")
        page.get_by_role("navigation").get_by_role("link", name="Requests").click()
        row = request_row(page, chat.headers["x-request-id"])
        expect(row).to_contain_text("Finished" if answer.choices[0].finish_reason == "stop" else "Token limit")
        row.get_by_role("link").click()
        expect(page.get_by_role("heading", name="Where the time went")).to_be_visible()
        expect(page.get_by_text(re.compile(r"from arrival to end"))).to_be_visible()
        expect(page.locator("dd", has_text="journey")).to_be_visible()


def request_row(page: Page, request_id: str) -> Locator:
    return page.get_by_role("row").filter(has=page.locator(f"a[href$='{request_id}']"))


def test_a_wrong_key_is_a_401_and_a_wrong_model_a_404_that_names_the_right_ones(client_of, product):
    with pytest.raises(openai.AuthenticationError) as refused:
        client_of("pgd_live_nonsense").models.list()
    assert refused.value.status_code == 401
    with pytest.raises(openai.NotFoundError, match=re.escape(product.details["model"])):
        client_of(product.details["api_key"]).chat.completions.create(model="gpt-4", messages=ASK)


def test_the_key_is_shown_once(visitor):
    with visitor.window("user", permissions=["clipboard-read", "clipboard-write"]) as page:
        text = make_key(page, "seen once")
        page.get_by_role("button", name="Copy the key").click()
        expect(page.get_by_role("button", name="Copied")).to_be_visible()
        assert page.evaluate("navigator.clipboard.readText()") == text
        page.reload()
        expect(page.get_by_label("Name")).to_be_empty()
        assert text not in page.content()
        page.go_back()
        assert text not in page.content()
        page.goto("/t/acme/keys")
        assert text not in page.content()
        expect(page.get_by_role("row").filter(has_text="seen once")).to_contain_text("in 90 days")


def test_a_refused_form_is_swapped_in_place_with_the_focus_on_its_fault(visitor):
    with visitor.window("user") as page:
        page.goto("/t/acme/keys/new")
        visitor.problems.clear()
        page.get_by_role("button", name="Create the key").click()
        expect(page.get_by_text("This field is required.")).to_be_visible()
        expect(page.get_by_label("Name")).to_be_focused()
        assert [problem for problem in visitor.problems if "422" not in problem] == []
        visitor.problems.clear()  # the browser itself logs the 422


def test_tokens_appear_in_the_playground_with_who_made_them(visitor, product):
    with visitor.window("user") as page:
        page.goto("/t/acme/playground")
        answer = page.locator("#answer")
        page.get_by_label("Most tokens").fill("24")
        page.get_by_role("button", name="Send").click()
        expect(answer).to_have_attribute("aria-busy", "true")
        expect(page.locator("#finished")).to_contain_text("Answer finished")
        expect(answer).to_have_attribute("aria-busy", "false")
        expect(answer).to_contain_text(re.compile(r"\w{3}"))
        expect(page.locator("#ttft")).to_have_text(re.compile(r"^[\d,]+ ms$"))
        expect(page.locator("#rate")).to_have_text(re.compile(r"^[\d.]+$"))
        expect(page.locator("#version")).to_have_text(f"{product.details['model']} v1")
        expect(page.locator("#replica")).to_have_text(re.compile("^rep_"))
        request_id = page.locator("#request-id").inner_text()
        page.goto("/t/acme/requests")
        expect(request_row(page, request_id)).to_contain_text("Playground")


def test_a_refusal_is_shown_in_the_playground(visitor):
    with visitor.window("user") as page:
        page.goto("/t/acme/playground")
        page.get_by_label("Most tokens").fill("100000")
        page.get_by_role("button", name="Send").click()
        expect(page.locator("#answer .note")).to_contain_text("100000")
        expect(page.get_by_role("button", name="Send")).to_be_visible()


@pytest.mark.parametrize("way", ["stop", "close"])
def test_stopping_or_closing_the_tab_frees_the_replica(way, visitor, product):
    with visitor.window("user") as page:
        page.goto("/t/acme/playground")
        page.get_by_role("textbox", name="Message", exact=True).fill(ENDLESS)
        page.get_by_label("Temperature").fill("0")
        page.get_by_label("Most tokens").fill("4000")
        page.get_by_role("button", name="Send").click()
        expect(page.locator("#tokens")).to_have_text(re.compile(r"[2-9]|\d\d"))
        request_id = page.locator("#request-id").inner_text()
        wait_for(lambda: product.serving_replica()["load"]["num_running"] == 1, "a running request")
        if way == "stop":
            page.keyboard.press("Escape")
            expect(page.locator("#ended")).to_have_text("Stopped")
        else:
            page.close()
        wait_for(lambda: product.serving_replica()["load"]["num_running"] == 0, "an idle replica")
        outcome = "SELECT outcome FROM metering_usagerow WHERE request_id = %s AND state = 'settled'"
        (row,) = wait_for(lambda: product.query(outcome, request_id), "the settled row")
        assert row["outcome"] == "aborted"


def test_an_admin_sees_the_fleet_and_a_quota_bites_until_it_is_lifted(visitor, client_of, product):
    model = product.details["model"]
    client = client_of(product.details["api_key"])

    def call() -> str:
        try:
            client.chat.completions.create(model=model, messages=ASK, max_tokens=1)
        except openai.RateLimitError as refused:
            return str(refused)
        return ""

    with visitor.window("admin") as page:
        page.goto("/")
        expect(page.get_by_role("heading", name="Fleet")).to_be_visible()
        expect(page.get_by_text(f"acme/{model}")).to_be_visible()
        expect(page.get_by_text("Ready", exact=True)).to_be_visible()
        set_limits(page, {"Requests per minute": "1"})
        refusal = wait_for(call, "a refusal")
        assert "requests" in refusal
        assert "minute" in refusal
        set_limits(page, {"Requests per minute": ""})
        wait_for(lambda: call() == "", "a call that is served")


def test_a_revoked_key_is_refused(visitor, known_client):
    with visitor.window("user") as page:
        client = known_client(make_key(page, "short-lived"))
        page.goto("/t/acme/keys")
        page.get_by_role("link", name="Revoke short-lived").click()
        page.get_by_label("Write “short-lived” to confirm").fill("short-lived")
        page.get_by_role("button", name="Revoke the key").click()
        expect(page.get_by_role("row").filter(has_text="short-lived")).to_contain_text("Revoked")
        wait_for(lambda: not knows(client), "the refusal of a revoked key")


def test_an_expired_session_takes_a_live_page_to_sign_in(visitor):
    with visitor.window("user") as page:
        page.goto("/t/acme/")
        page.context.clear_cookies(name="pagoda_session")
        expect(page).to_have_url(re.compile(r"/account/login/\?next=/t/acme/$"))


def test_signing_out_leaves_no_page_behind(visitor, product):
    with visitor.window() as page:
        page.goto("/t/acme/keys")
        page.get_by_label("Email").fill(product.details["user_email"])
        page.get_by_label("Password").fill(product.details["user_password"])
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("heading", name="API keys")).to_be_visible()
        page.get_by_role("button", name="Sign out").click()
        expect(page).to_have_url(re.compile(r"/account/login/"))
        page.goto("/t/acme/keys")
        expect(page.get_by_label("Password")).to_be_visible()
