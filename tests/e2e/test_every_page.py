"""What holds on every page: accessible in both themes, no sideways scroll on a phone, usable from the keyboard."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import openai
import pytest
from conftest import PHONE, Visitor
from looks import THEMES, faults_of_width, serious_faults
from people import make_key, set_limits
from photographs import shoot
from playwright.sync_api import Page, expect
from running_stack import RunningStack

USER_PAGES = (
    "/t/acme/", "/t/acme/start", "/t/acme/start?lang=python", "/t/acme/playground", "/t/acme/models",
    "/t/acme/uploads/new", "/t/acme/deployments",
    "/t/acme/deployments/new", "/t/acme/rollouts", "/t/acme/approvals", "/t/acme/keys", "/t/acme/keys/new",
    "/t/acme/webhooks", "/t/acme/webhooks/new",
    "/t/acme/usage", "/t/acme/members",
    "/t/acme/members/invite", "/t/acme/members/leave", "/t/acme/audit", "/t/acme/audit?who=nobody", "/account/you",
    "/account/email/", "/account/password/change/", "/account/2fa/", "/account/sessions/", "/account/reauthenticate/",
    "/nowhere",
)  # fmt: skip
VERSION_TABS = ("", "?tab=files", "?tab=card", "?tab=compare", "/archive", "/delete")
DEPLOYMENT_TABS = (
    "",
    "?tab=replicas",
    "?tab=rollouts",
    "/rollouts/new",
    "?tab=requests",
    "?tab=events",
    "/isolation",
    "/settings",
    "/pause",
    "/delete",
)
ADMIN_PAGES = (
    "/platform/fleet", "/platform/budgets", "/platform/warm-pool", "/platform/tenants",
    "/platform/rollouts", "/platform/rollouts/freeze", "/platform/approvals", "/platform/tenants/acme/limits",
    "/platform/tenants/acme/suspend", "/platform/prices", "/platform/jobs",
    "/platform/audit", "/platform/audit?tenant=acme&who=nobody", "/platform/health", "/platform/requests",
)  # fmt: skip


def every_page(visitor: Visitor, **options: object) -> Iterator[Page]:
    """Open every page, one after the other."""
    with visitor.window(**options) as page:
        page.goto("/account/login/")
        yield page
    with visitor.window("user", **options) as page:
        for url in USER_PAGES:
            page.goto(url)
            yield page
        page.goto("/t/acme/models")
        model = page.get_by_role("cell").get_by_role("link").first.get_attribute("href")
        page.goto(model or "")
        version = page.get_by_role("cell").get_by_role("link").first.get_attribute("href")
        page.goto("/t/acme/deployments")
        deployment = page.get_by_role("cell").get_by_role("link").first.get_attribute("href")
        page.goto("/t/acme/keys")
        keys = [
            page.get_by_role("link", name=re.compile(act)).first.get_attribute("href") for act in ("Roll", "Revoke")
        ]
        tabs = [
            *(f"{version}{tab}" for tab in VERSION_TABS), *(f"{deployment}{tab}" for tab in DEPLOYMENT_TABS)
        ]  # fmt: skip
        page.goto("/t/acme/requests?range=all")
        request = page.get_by_role("cell").get_by_role("link").first.get_attribute("href")
        for url in (model, *tabs, *keys, request):
            page.goto(url)
            yield page
    with visitor.window("admin", **options) as page:
        page.goto("/platform/jobs")
        job = page.get_by_role("cell").get_by_role("link").first.get_attribute("href")
        page.goto("/platform/budgets")
        isolation, share = (
            page.get_by_role("link", name=re.compile(words)).first.get_attribute("href")
            for words in ("^Isolation on", "^Change the share of")
        )
        for url in (*ADMIN_PAGES, job, isolation, share):
            page.goto(url)
            yield page
    visitor.problems[:] = [problem for problem in visitor.problems if "/nowhere: Failed to load" not in problem]


@dataclass
class Survey:
    """What is wrong with any page, each as a line."""

    faults: dict[str, list[str]] = field(default_factory=lambda: {theme: [] for theme in THEMES})
    wide: list[str] = field(default_factory=list)
    num_pages: int = 0


@pytest.fixture(scope="module")
def survey(visitors: Visitor, product: RunningStack) -> Survey:
    """Every page, looked at once: axe in both themes, and the width of phones."""
    found = Survey()
    client = openai.OpenAI(base_url=product.details["gateway_url"], api_key=product.details["api_key"])
    client.completions.create(model=product.details["model"], prompt="Hello", max_tokens=1)
    for page in every_page(visitors):
        found.num_pages += 1
        for theme, faults in serious_faults(page).items():
            found.faults[theme] += faults
        found.wide.extend(faults_of_width(page))
    assert visitors.problems == []
    return found


@pytest.mark.parametrize("theme", THEMES)
def test_no_page_has_a_serious_fault_of_accessibility(theme, survey):
    assert survey.num_pages >= 35
    assert not survey.faults[theme], "\n".join(survey.faults[theme])


def test_a_planted_fault_is_found(visitor):
    with visitor.window() as page:
        page.goto("/account/login/")
        assert serious_faults(page) == {theme: [] for theme in THEMES}
        page.evaluate("document.querySelector('h1').style.color = 'var(--line)'")
        assert [len(faults) for faults in serious_faults(page).values()] == [1] * len(THEMES)


def test_no_page_scrolls_sideways_on_a_phone(survey):
    assert survey.wide == []


def test_the_menu_of_a_phone_opens_and_closes_from_the_keyboard(visitor):
    with visitor.window("user", viewport=PHONE) as page:
        page.goto("/t/acme/")
        usage = page.get_by_role("navigation").get_by_role("link", name="Usage")
        expect(usage).to_be_hidden()
        page.get_by_role("button", name="Menu").press("Enter")
        expect(usage).to_be_visible()
        page.keyboard.press("Escape")
        expect(usage).to_be_hidden()
        page.get_by_role("button", name="Menu").press("Enter")
        usage.press("Enter")
        expect(page.get_by_role("heading", name="Usage")).to_be_visible()


def test_the_keyboard_skips_to_the_content_and_walks_the_tabs(visitor):
    with visitor.window("user") as page:
        page.goto("/t/acme/playground")
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator("#main")).to_be_focused()
        page.get_by_role("tab", name="curl").press("ArrowRight")
        expect(page.get_by_role("tab", name="Python")).to_be_focused()
        expect(page.locator("#snippet-text")).to_contain_text("from openai import OpenAI")
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("ArrowLeft")
        expect(page.get_by_role("tab", name="JavaScript")).to_have_attribute("aria-selected", "true")


def test_the_code_follows_the_form(visitor):
    with visitor.window("user") as page:
        page.goto("/t/acme/playground")
        page.get_by_role("textbox", name="Message", exact=True).fill('What\'s "true": true\n?')
        page.get_by_label("Seed").fill("7")
        snippet = page.locator("#snippet-text")
        expect(snippet).to_contain_text("What'\\''s")
        expect(snippet).to_contain_text('"seed": 7')
        page.get_by_role("tab", name="Python").click()
        expect(snippet).to_contain_text("stream=True,")
        compile(snippet.inner_text(), "snippet", "exec")


def test_new_figures_move_neither_the_focus_nor_the_page(visitor, client_of, product):
    with visitor.window("user", viewport={"width": 800, "height": 300}) as page:
        page.goto("/t/acme/")
        link = page.get_by_role("link", name="All deployments")
        link.focus()
        page.evaluate("document.querySelector('#live').firstElementChild.id = 'old'; scrollTo(0, 200)")
        where = page.evaluate("scrollY")
        client_of(product.details["api_key"]).completions.create(
            model=product.details["model"], prompt="Hello", max_tokens=1
        )  # fmt: skip
        expect(page.locator("#old")).to_have_count(0)
        expect(link).to_be_focused()
        assert page.evaluate("scrollY") == where > 0


def test_the_theme_is_chosen_and_kept(visitor):
    with visitor.window("user", theme="light") as page:
        page.goto("/t/acme/usage?range=24h")
        page.get_by_role("button", name="Dark").click()
        expect(page.locator("html")).to_have_attribute("data-theme", "dark")
        expect(page).to_have_url(re.compile(r"usage\?range=24h"))
        expect(page.get_by_role("button", name="Dark")).to_have_attribute("aria-pressed", "true")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 18, 15)"


@pytest.mark.slow
def test_the_pages_of_the_readme_can_be_photographed(visitor, known_client, product, shots):
    with visitor.window("admin") as admin, visitor.window("user") as page:
        set_limits(admin, {"Requests per minute": "60", "Tokens per minute": "1000"})
        for name, num_calls in (("Checkout", 4), ("Support chat", 7)):
            client = known_client(make_key(page, name))
            for _ in range(num_calls):
                client.completions.create(model=product.details["model"], prompt="A pagoda is", max_tokens=12)
        page.goto("/t/acme/playground")
        answered(page)
        shoot(page, shots / "playground-light.png")
        page.goto("/t/acme/usage?range=24h")
        expect(page.get_by_role("row").filter(has_text="Support chat").first).to_contain_text("7")
        shoot(page, shots / "usage.png")
        page.goto("/t/acme/")
        expect(page.get_by_text("All well")).to_be_visible()
        shoot(page, shots / "home.png")
        page.get_by_role("link", name="Deployments", exact=True).click()
        page.get_by_role("cell").get_by_role("link").first.click()
        expect(page.get_by_role("heading", name="KV pool")).to_be_visible()
        shoot(page, shots / "deployment.png")
        admin.goto("/platform/fleet")
        expect(admin.get_by_role("heading", name="Node")).to_be_visible()
        shoot(admin, shots / "fleet.png")
        set_limits(admin, {"Requests per minute": "", "Tokens per minute": ""})
    with visitor.window("user", theme="dark") as page:
        page.goto("/t/acme/playground")
        answered(page)
        shoot(page, shots / "playground-dark.png")


def answered(page: Page) -> None:
    page.get_by_label("Temperature").fill("0")
    page.get_by_role("button", name="Send").click()
    expect(page.locator("#finished")).to_contain_text("Answer finished")
    page.mouse.move(0, 0)
