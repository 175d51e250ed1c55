"""How any page must look: accessible in both themes, and no wider than a phone."""

from typing import Any

from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Page

THEMES = ("light", "dark")
PHONE_WIDTHS = (320, 390)

_EVERY_RULE: dict[str, Any] = {"resultTypes": ["violations"]}
_RULES_OF_COLOURS = _EVERY_RULE | {"runOnly": {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}}
_FAULTS = """async (options) => (await axe.run(options)).violations
    .filter(({ impact }) => ["serious", "critical"].includes(impact))
    .flatMap(({ id, nodes }) => nodes.map(({ html, failureSummary }) =>
        `${location.href} ${id}: ${html.slice(0, 160)} ${failureSummary.slice(0, 300)}`))"""
"""Only these go to the test: all that axe says of a page takes longer to send than to find."""


def show(page: Page, theme: str) -> None:
    """Show the page in a theme, until it is loaded again."""
    page.evaluate("theme => { document.documentElement.dataset.theme = theme; }", theme)


def serious_faults(page: Page) -> dict[str, list[str]]:
    """Return what axe finds of the serious and the critical in each theme.

    A theme changes colours and nothing else: what has nothing to do with them is asked about in the first alone.
    """
    page.evaluate(AXE_SCRIPT)
    found = {}
    for theme in THEMES:
        show(page, theme)
        found[theme] = page.evaluate(_FAULTS, _EVERY_RULE if theme == THEMES[0] else _RULES_OF_COLOURS)
    return found


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
