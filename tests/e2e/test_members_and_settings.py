"""Owners at work in a real browser: somebody is invited and joins, a deployment gets an idle policy."""

from playwright.sync_api import expect

INVITED = "dora@acme.example"
PHRASE = "a long enough phrase"


def test_who_is_invited_opens_an_account_through_the_link_and_belongs(visitor):
    with visitor.window("user") as page:
        page.goto("/t/acme/members")
        page.get_by_role("link", name="Invite somebody").click()
        page.get_by_label("Email address").fill(INVITED)
        page.get_by_label("Viewer").check()
        page.get_by_role("button", name="Make the invitation").click()
        link = page.locator("#invitation-link").inner_text()
    with visitor.window() as page:
        page.goto(link)
        page.get_by_role("link", name="Open an account").click()
        expect(page.get_by_label("Email")).to_have_value(INVITED)
        page.get_by_label("Password").fill(PHRASE)
        page.get_by_role("button", name="Open the account").click()
        page.get_by_role("button", name="Join").click()
        expect(page.get_by_role("status")).to_contain_text("Welcome to Acme")
        expect(page.get_by_role("link", name="Audit")).to_have_count(0)
    with visitor.window("user") as page:
        page.goto("/t/acme/members")
        row = page.get_by_role("row").filter(has_text=INVITED)
        expect(row).to_contain_text("Viewer")
        row.get_by_role("link", name="Remove").click()
        page.get_by_label(f"Write “{INVITED}” to confirm").fill(INVITED)
        page.get_by_role("button", name="Remove the member").click()
        expect(page.get_by_role("row").filter(has_text=INVITED)).to_have_count(0)


def test_an_idle_policy_is_chosen_in_words_and_told_in_words(visitor):
    with visitor.window("user") as page:
        page.goto("/t/acme/deployments")
        page.get_by_role("cell").get_by_role("link").first.click()
        page.get_by_role("link", name="Settings").click()
        page.get_by_label("Warm").select_option("after 4 hours")
        page.get_by_label("On disk").select_option("after 1 hour")
        page.get_by_role("button", name="Save the settings").click()
        expect(page.get_by_text("it is the colder tier")).to_be_visible()
        visitor.problems[:] = [problem for problem in visitor.problems if "422" not in problem]
        page.get_by_label("On disk").select_option("after 1 day")
        page.get_by_label("Sun").last.check()
        page.get_by_label("From, UTC").last.fill("08:00")
        page.get_by_label("To, UTC").last.fill("18:00")
        page.get_by_label("Replicas", exact=True).last.fill("1")
        page.get_by_role("button", name="Save the settings").click()
        expect(page.get_by_text("Warm after 4 hours, on disk after 1 day without a call.")).to_be_visible()
        expect(page.get_by_text("Sun, 08:00–18:00 UTC: at least 1 replica ready")).to_be_visible()
        page.get_by_role("link", name="Settings").click()
        for label in ("Warm", "On disk"):
            page.get_by_label(label).select_option("never")
        page.get_by_label("Sun").first.uncheck()
        page.get_by_role("button", name="Save the settings").click()
        expect(page.get_by_text("It stays ready however idle it is.")).to_be_visible()
