"""Photographs of pages, as the README shows them."""

from pathlib import Path

from playwright.sync_api import Page

_MOST_BYTES = 250_000


def shoot(page: Page, path: Path, *, whole: bool = False) -> None:
    """Write what the window shows, or the ``whole`` page, to ``path``; an empty page or a heavy picture fails."""
    page.screenshot(path=path, full_page=whole)
    size_bytes = path.stat().st_size
    assert 10_000 < size_bytes < _MOST_BYTES, f"{path.name} has {size_bytes} bytes"
