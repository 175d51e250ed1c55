"""What people do in the console more than once."""

from playwright.sync_api import Page, expect


def make_key(page: Page, name: str) -> str:
    """Make a key, and return its text."""
    page.goto("/t/acme/keys")
    page.get_by_role("link", name="Create a key").click()
    page.get_by_label("Name").fill(name)
    page.get_by_role("button", name="Create the key").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"{name} is made.")
    return page.locator("#key-text").inner_text()


def set_limits(page: Page, limits: dict[str, str]) -> None:
    """Change limits of acme, as an admin; an empty text lifts one."""
    page.goto("/platform/tenants")
    page.get_by_role("link", name="Edit limits of acme").click()
    for label, value in limits.items():
        page.get_by_label(label).fill(value)
    page.get_by_role("button", name="Save the limits").click()
    expect(page.get_by_role("status")).to_contain_text("The limits of acme are saved")
