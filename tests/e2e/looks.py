"""How any page must look: accessible in both themes, and no wider than a phone."""

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

THEMES = ("light", "dark")
PHONE_WIDTHS = (320, 390)


def show(page: Page, theme: str) -> None:
    """Show the page in a theme, until it is loaded again."""
    page.evaluate("theme => { document.documentElement.dataset.theme = theme; }", theme)


def serious_faults(page: Page) -> list[str]:
    """Return what axe finds of the serious and the critical."""
    return [
        f"{page.url} {fault['id']}: {node['html'][:160]} {node['failureSummary'][:300]}"
        for fault in Axe().run(page).response["violations"]
        if fault["impact"] in ("serious", "critical")
        for node in fault["nodes"]
    ]


def faults_of_width(page: Page) -> list[str]:
    """Return at which widths of phones the page scrolls sideways; the window is as before afterwards."""
    found, before = [], page.viewport_size
    for width in PHONE_WIDTHS:
        page.set_viewport_size({"width": width, "height": 800})
        over = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        if over > 0:
            found.append(f"{page.url} at {width} px: {over} px too wide")
    if before:
        page.set_viewport_size(before)
    return found
