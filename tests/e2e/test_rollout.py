"""A new version on its way to live traffic, and those who see to it: all from the keyboard."""

import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from crowd import Crowd
from keyboard import go, press, tab_to, write
from looks import THEMES, faults_of_width, serious_faults
from owner import BadLine, Owner, Upload, follow_the_checklist, make_key
from playwright.sync_api import Locator, Page, expect
from psycopg.types.json import Jsonb
from running_stack import RunningStack, wait_for
from short_answers import a_little_different, make_endless_answers

CALLERS = 6
STEPS = (("10", "1 s", "40"), ("25", "1 s", "40"))
DEADLINE_MS = 180_000
"""Two replicas start, and hundreds of requests are answered."""
WIDE = {f"{gate}_{bound}": 100.0 for gate in ("ttft", "tpot") for bound in ("limit", "stop")}


class Stage(NamedTuple):
    """A deployment that serves the first of two versions, and whoever calls it."""

    product: RunningStack
    owner: Owner
    key: str
    name: str
    deployment_id: str
    stable_id: str

    def calls(self) -> Crowd:
        """Return those who call it as long as a block lasts."""
        return Crowd(self.product.details["gateway_url"], self.key, self.name, CALLERS)


@pytest.fixture
def stage(product, tmp_path) -> Iterator[Stage]:
    """Both versions are ready; the deployment is gone afterwards."""
    name = f"tiny-{secrets.token_hex(2)}"
    key = make_key(product.details, ["inference", "deployments"])
    with Owner(product.details["api_url"], key) as owner:
        first = make_endless_answers(tmp_path / "first")
        stable_id, _ = (bring(owner, name, each) for each in (first, a_little_different(tmp_path / "next", first, 1)))
        made = owner.do("POST", "deployments", name=name, version_id=stable_id)
        yield Stage(product, owner, key, name, made["id"], stable_id)
        owner.ask("DELETE", f"deployments/{made['id']}")  # refused where the rollout of a failed test is left


def bring(owner: Owner, model: str, folder: Path) -> str:
    """Upload a version, and return its id once it is ready."""
    upload = Upload(owner, model, folder, BadLine([]), "http")
    upload.run()
    follow_the_checklist(owner, upload.version_id)
    return upload.version_id


@pytest.mark.slow
def test_a_version_is_rolled_out_approved_by_another_person_and_rolled_back(visitor, stage):
    with stage.calls() as crowd, visitor.window("user") as alice, visitor.window("admin") as admin:
        wait_for(lambda: crowd.heard["whole"], "an answer")
        plans(alice, stage)
        press(alice, alice.get_by_role("button", name="Keep it as a draft"))
        expect(badge(alice)).to_have_text("Draft")
        widens(stage, alice.url.rpartition("/")[2])
        press(alice, alice.get_by_role("button", name="Start the rollout"))
        expect(alice.get_by_text("The rollout has started.")).to_be_visible()
        alice.evaluate("window.isTheSame = true")
        comes_to_approval(alice)
        stale = a_tab_that_sleeps(alice)
        approves(admin, stage)
        expect(badge(alice)).to_have_text("Promoted", timeout=DEADLINE_MS)
        assert alice.evaluate("window.isTheSame"), "the page was loaded once"
        looks_well(alice)
        press(stale, stale.get_by_role("button", name="Pause"))
        expect(stale.get_by_role("alert")).to_contain_text("Nothing was done.")
        stale.close()
        rolls_back(alice, stage)
    arms = stage.owner.get(f"deployments/{stage.deployment_id}")["arms"]
    assert [arm["version_id"] for arm in arms if arm["weight"]] == [stage.stable_id]
    assert set(crowd.heard) == {"whole"}, crowd.heard
    assert [problem for problem in visitor.problems if "409" not in problem] == []
    visitor.problems.clear()  # the browser logs the 409 of the stale tab


def plans(page: Page, stage: Stage) -> None:
    """Go to the deployment's rollouts, and write a plan of two short steps."""
    page.goto("/t/acme/")
    go(page, "Acme", "Deployments")
    press(page, page.get_by_role("cell").get_by_role("link", name=stage.name, exact=True))
    press(page, page.get_by_role("link", name="Rollouts", exact=True).last)
    press(page, page.get_by_role("link", name="New rollout"))
    tab_to(page, page.get_by_label("Candidate"))
    page.keyboard.type(stage.name)
    expect(page.get_by_label("Candidate").locator("option:checked")).to_contain_text(f"{stage.name} v2")
    press(page, page.get_by_role("button", name="Little traffic"))
    expect(page.get_by_text("So few prove little")).to_be_visible()
    for number, step in enumerate(STEPS, 1):
        for field, text in zip(("Traffic, %", "At least", "Requests"), step, strict=True):
            write(page, page.get_by_label(f"Step {number}: {field}"), text)
    tab_to(page, page.get_by_label("Ask a person after step 3"))
    page.keyboard.press("ArrowUp")
    write(page, page.get_by_label("Step 3: Traffic, %"), "")
    for field in ("After each change", "Watched at 100 %"):
        write(page, page.get_by_label(field), "1 s")
    tab_to(page, page.get_by_label("The version before is kept"))
    words = page.locator("#preview")
    expect(words).to_contain_text("10 % of the traffic for at least 1 s and 40 requests.")
    expect(words).to_contain_text("25 % of the traffic for at least 1 s and 40 requests. Then a person")
    expect(words).to_contain_text("Fits")
    looks_well(page)


def widens(stage: Stage, rollout_id: str) -> None:
    """Set the limits of times wide: of few requests to a tiny model they tell what else this machine does."""
    changed = stage.product.query(
        "UPDATE rollouts_rollout SET plan = jsonb_set(plan, '{judge}', plan->'judge' || %s) WHERE id = %s RETURNING id",
        Jsonb(WIDE),
        rollout_id,
    )
    assert changed


def badge(page: Page) -> Locator:
    return page.locator(".page-head .badge")


def comes_to_approval(page: Page) -> None:
    """See the steps go by on the page as it is, and why who made it has to wait."""
    expect(badge(page)).to_have_text(re.compile("Loading|Ramping|Baking"), timeout=DEADLINE_MS)
    expect(badge(page)).to_have_text("Waits for approval", timeout=DEADLINE_MS)
    expect(page.locator(".steps .done")).to_have_count(1 + len(STEPS))
    expect(page.get_by_text("You made this rollout; somebody else approves it.")).to_be_visible()
    expect(page.locator("#plots figure")).to_have_count(4)
    looks_well(page)


def a_tab_that_sleeps(page: Page) -> Page:
    """Open the page once more, in a tab that hears of nothing that comes after."""
    tab = page.context.new_page()
    tab.goto(page.url)
    tab.locator("#live").evaluate("part => part.removeAttribute('data-poll')")
    return tab


def approves(page: Page, stage: Stage) -> None:
    """Find what waits, say why it may be done without what was not run, and approve."""
    page.goto("/")
    go(page, "Platform", "Approvals")
    card = page.locator("section.card", has_text=f"{stage.name} to")
    press(page, card.get_by_text("What each gate said"))
    expect(card.get_by_role("table")).to_be_visible()
    looks_well(page)
    write(page, card.get_by_label("Evals"), "there is no suite yet")
    write(page, card.get_by_label("Shadow traffic"), "it has had a quarter of the real traffic")
    press(page, card.get_by_role("button", name="takes 100 %"))
    expect(page.get_by_text(re.compile(r"^Approved\. .* takes 100 % of the traffic\."))).to_be_visible()


def rolls_back(page: Page, stage: Stage) -> None:
    """Go back to the version that sleeps, and see that it serves."""
    press(page, page.get_by_role("link", name="Roll back"))
    expect(page.get_by_role("heading", level=1)).to_have_text(f"Roll back {stage.name} v2")
    looks_well(page)
    write(page, page.get_by_label("Why, if you want to say"), "its tone is wrong")
    press(page, page.get_by_role("button", name=f"Roll back to {stage.name} v1"))
    expect(badge(page)).to_have_text("Rolled back", timeout=DEADLINE_MS)
    expect(page.get_by_text("its tone is wrong").first).to_be_visible()
    looks_well(page)


def looks_well(page: Page) -> None:
    """See that the page is accessible in both themes, and fits phones."""
    assert serious_faults(page) == {theme: [] for theme in THEMES}
    assert faults_of_width(page) == []


def test_a_tenant_signs_in_makes_a_key_and_sees_where_the_time_of_a_prompt_went(visitor, product):
    with visitor.window() as page:
        signs_in(page, product.details["user_email"], product.details["user_password"])
        go(page, "Acme", "API keys")
        press(page, page.get_by_role("link", name="Create a key"))
        write(page, page.get_by_label("Name"), "by hand")
        press(page, page.get_by_role("button", name="Create the key"))
        expect(page.get_by_role("heading", level=1)).to_have_text("by hand is made.")
        go(page, "Acme", "Playground")
        write(page, page.get_by_role("textbox", name="Message", exact=True), "Say hello.")
        write(page, page.get_by_label("Most tokens"), "8")
        press(page, page.get_by_role("button", name="Send"))
        expect(page.locator("#finished")).to_contain_text("Answer finished")
        press(page, page.locator("#request-id"))
        expect(page.get_by_role("heading", name="Where the time went")).to_be_visible()
        looks_well(page)


def test_an_admin_reads_how_the_platform_is_and_freezes_rollouts_with_a_reason(visitor, product):
    with visitor.window() as page:
        signs_in(page, product.details["admin_email"], product.details["admin_password"])
        for name in ("Health", "Jobs"):
            go(page, "Platform", name)
            expect(page.get_by_role("heading", level=1)).to_have_text(name)
        go(page, "Platform", "Rollouts")
        press(page, page.get_by_role("link", name="Freeze all rollouts"))
        press(page, page.get_by_role("button", name="Freeze all rollouts"))
        reason = page.get_by_label("Reason")
        expect(reason).to_be_focused()
        page.keyboard.type("A node is being replaced.")
        page.keyboard.press("Enter")
        frozen = page.get_by_role("status").filter(has_text="A node is being replaced.")
        expect(frozen).to_be_visible()
        looks_well(page)
        press(page, page.get_by_role("button", name="Lift the freeze"))
        expect(page.get_by_text("The freeze is lifted")).to_be_visible()
        expect(frozen).to_be_hidden()
    assert [problem for problem in visitor.problems if "422" not in problem] == []
    visitor.problems.clear()  # the browser logs the 422 of the form without a reason


def signs_in(page: Page, email: str, password: str) -> None:
    page.goto("/")
    write(page, page.get_by_label("Email"), email)
    write(page, page.get_by_label("Password"), password)
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Sign out")).to_be_visible()
