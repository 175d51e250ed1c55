"""A headless browser on the running product. ``--shots DIR`` keeps the screenshots of the README."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright
from running_stack import RunningStack, wait_for

FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
DESKTOP = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 844}
_DEADLINE_MS = 60_000


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shots", type=Path, default=None, help="folder in which the README's screenshots are remade")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """The system's Chromium. A module's, not the session's: its event loop must not run under Django's tests."""
    expect.set_options(timeout=_DEADLINE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=list(FLAGS))
        yield browser
        browser.close()


class Visitor:
    """Opens the console as a person, in a window of its own; a script's error or a refused resource fails the test."""

    def __init__(self, chromium: Browser, details: dict[str, str]) -> None:
        self._chromium, self._details = chromium, details
        self._signed_in: dict[str, Any] = {}
        self.problems: list[str] = []

    @contextmanager
    def window(self, who: str = "", theme: str = "light", **options: Any) -> Iterator[Page]:
        """Open a window in which ``user``, ``admin`` or nobody is signed in."""
        if who and who not in self._signed_in:
            self._sign_in(who)
        context = self._context(**{"storage_state": self._signed_in.get(who), "viewport": DESKTOP, **options})
        context.add_cookies([{"name": "pagoda_theme", "value": theme, "url": self._details["console_url"]}])
        page = context.new_page()
        page.on("pageerror", lambda error: self.problems.append(f"{page.url}: {error}"))
        page.on("console", lambda line: line.type == "error" and self.problems.append(f"{page.url}: {line.text}"))
        yield page
        context.close()

    def _context(self, **options: Any) -> BrowserContext:
        context = self._chromium.new_context(
            base_url=self._details["console_url"], reduced_motion="reduce", **options
        )  # fmt: skip
        context.set_default_timeout(_DEADLINE_MS)
        return context

    def _sign_in(self, who: str) -> None:
        context = self._context(viewport=DESKTOP)
        page = context.new_page()
        page.goto("/")
        page.get_by_label("Email").fill(self._details[f"{who}_email"])
        page.get_by_label("Password").fill(self._details[f"{who}_password"])
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("button", name="Sign out")).to_be_visible()
        self._signed_in[who] = json.loads(json.dumps(context.storage_state()))
        context.close()


@pytest.fixture(scope="module")
def visitors(chromium: Browser, product: RunningStack) -> Visitor:
    product.serving_replica()
    return Visitor(chromium, product.details)


@pytest.fixture
def visitor(visitors: Visitor) -> Iterator[Visitor]:
    visitors.problems.clear()
    yield visitors
    assert visitors.problems == []


@pytest.fixture
def client_of(product: RunningStack) -> Callable[[str], openai.OpenAI]:
    """Return the official client with a key; it never tries twice, so that every answer is seen."""
    return lambda key: openai.OpenAI(base_url=product.details["gateway_url"], api_key=key, max_retries=0)


@pytest.fixture
def known_client(client_of: Callable[[str], openai.OpenAI]) -> Callable[[str], openai.OpenAI]:
    """Return that client once the gateway, which hears of a key a moment after it was made, knows it."""

    def known(key: str) -> openai.OpenAI:
        client = client_of(key)
        wait_for(lambda: knows(client), "a gateway that knows the key")
        return client

    return known


def knows(client: openai.OpenAI) -> bool:
    """Say whether the gateway takes the client's key."""
    try:
        client.models.list()
    except openai.AuthenticationError:
        return False
    return True


@pytest.fixture
def shots(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Where screenshots go: the folder of ``--shots``, else one that is thrown away."""
    folder: Path = request.config.getoption("--shots") or tmp_path
    folder.mkdir(parents=True, exist_ok=True)
    return folder
