"""The promises of the front end that can be read from its files."""

import re
from pathlib import Path

import pytest

import console

ROOT = Path(console.__file__).parent
TEMPLATES = sorted((ROOT / "templates").rglob("*.html"))
KB = 1024


@pytest.mark.parametrize(("name", "most_bytes"), [("app.css", 20 * KB), ("app.js", 15 * KB)])
def test_our_own_files_stay_small(name, most_bytes):
    assert (ROOT / "static" / "console" / name).stat().st_size <= most_bytes


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_no_template_has_inline_script_style_or_handler(template):
    text = template.read_text()
    assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:|hx-on|hx-vals=.js:|(?<!help_text)\|safe", text)
    assert all("src=" in tag for tag in re.findall(r"<script[^>]*>", text))


def test_the_script_evaluates_no_text():
    text = (ROOT / "static" / "console" / "app.js").read_text()
    assert not re.search(r"\beval\(|new Function|innerHTML|outerHTML|insertAdjacentHTML|document\.write", text)


def test_every_page_carries_a_policy_that_allows_no_inline_code(alice):
    policy = alice.get("/t/acme/")["Content-Security-Policy"]
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
