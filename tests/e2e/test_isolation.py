"""Isolation in a real browser: a share says what it does before it is set, and a tenant reads what it has."""

import re

from playwright.sync_api import expect
from running_stack import wait_for


def test_a_share_says_what_it_does_while_it_is_written_and_enter_sets_nothing(visitor):
    with visitor.window("admin") as page:
        page.goto("/platform/budgets")
        page.get_by_role("link", name=re.compile("^Change the share of acme")).click()
        effect, cap = page.locator("#effect"), page.get_by_label("Cap, tokens")
        expect(effect).to_contain_text("100 % when all want more")
        cap.fill("4000")
        page.get_by_label("Weight").focus()
        expect(effect).to_contain_text("larger ones are refused for the cap")
        page.get_by_label("Guarantee, tokens").fill("9999999")
        cap.focus()
        expect(effect).to_contain_text("It cannot be set.")
        expect(effect).to_contain_text("below its guarantee")
        cap.press("Enter")
        expect(page.get_by_label("Guarantee, tokens")).to_have_value("9999999")
        expect(page.get_by_text("It cannot be set.")).to_be_visible()
        page.get_by_role("link", name="Cancel").click()
        expect(page.get_by_text("Cap whole pool")).to_be_visible()


def test_a_tenant_reads_its_own_isolation_in_words_and_figures(visitor, product, known_client):
    client = known_client(product.details["api_key"])
    client.completions.create(model=product.details["model"], prompt="The pagoda has", max_tokens=8)
    with visitor.window("user") as page:
        page.goto("/t/acme/deployments")
        page.get_by_role("cell").get_by_role("link").first.click()
        page.get_by_role("link", name="Isolation").click()
        expect(page.get_by_role("heading", name="Nobody else’s requests have slowed yours")).to_be_visible()
        expect(page.get_by_text("nobody could look")).to_be_visible()
        page.get_by_role("link", name="1 hour").click()
        expect(page.get_by_role("img", name=re.compile("^Most KV tokens held: most at"))).to_be_visible()


def test_what_a_tenant_has_cached_is_not_found_any_more_once_it_has_emptied_its_cache(visitor, product, known_client):
    client = known_client(product.details["api_key"])

    def cached_tokens() -> int:
        prompt = "A roof for each of its seven floors, and a bell at each corner. " * 4
        answer = client.completions.create(model=product.details["model"], prompt=prompt, max_tokens=1)
        return answer.usage.prompt_tokens_details.cached_tokens

    wait_for(cached_tokens, "a prompt that is found in the cache")
    with visitor.window("user") as page:
        page.goto("/t/acme/deployments")
        page.get_by_role("cell").get_by_role("link").first.click()
        page.get_by_role("link", name="Isolation").click()
        page.get_by_role("button", name="Empty my cache").click()
        expect(page.get_by_text("What you have cached of your prompts here is forgotten")).to_be_visible()
    wait_for(lambda: cached_tokens() == 0, "a prompt of which nothing is found")
    assert cached_tokens() > 0  # of the call before, under the new salt
