"""A person without a mouse: what is not reached by Tab is not there."""

from playwright.sync_api import Locator, Page

_MOST_STOPS = 120


def tab_to(page: Page, target: Locator) -> None:
    """Press Tab until ``target`` has the focus, past the end of the page where need be."""
    target.wait_for()
    for _ in range(_MOST_STOPS):
        page.keyboard.press("Tab")
        if target.evaluate("each => each === document.activeElement"):
            return
    raise AssertionError(f"{target} is not reached by Tab on {page.url}")


def press(page: Page, target: Locator) -> None:
    """Reach a link or a button, and press Enter on it."""
    tab_to(page, target)
    page.keyboard.press("Enter")


def write(page: Page, target: Locator, text: str) -> None:
    """Reach a field, and write ``text`` in place of what is there."""
    tab_to(page, target)
    page.keyboard.press("ControlOrMeta+a")
    if text:
        page.keyboard.type(text)
    else:
        page.keyboard.press("Delete")


def go(page: Page, menu: str, name: str) -> None:
    """Follow an entry of the menu that has the name ``menu``, whatever number stands beside it."""
    found = page.get_by_role("navigation", name=menu, exact=True).locator("a").filter(has_text=name)
    press(page, found.first)
