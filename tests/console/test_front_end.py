"""The promises of the front end that can be read from its files."""

import re
from pathlib import Path

import pytest

import console

ROOT = Path(console.__file__).parent
TEMPLATES = sorted((ROOT / "templates").rglob("*.html"))
SCRIPTS = sorted((ROOT / "static" / "console").glob("*.js"))
KB = 1024


OF_A_PAGE = (["app.js", "playground.js"], ["app.js", "upload.js", "upload-worker.js"], ["app.js", "rollout.js"])
"""The scripts that a page loads."""


def size_bytes(*names: str) -> int:
    return sum((ROOT / "static" / "console" / name).stat().st_size for name in names)


def test_our_own_style_stays_small():
    assert size_bytes("app.css") <= 20 * KB


@pytest.mark.parametrize("scripts", OF_A_PAGE, ids=lambda names: names[1])
def test_our_own_scripts_of_a_page_stay_small(scripts):
    assert size_bytes(*scripts) <= 15 * KB


def test_every_script_is_one_that_a_page_loads():
    assert {name for names in OF_A_PAGE for name in names} == {path.name for path in SCRIPTS}


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_no_template_has_inline_script_style_or_handler(template):
    text = template.read_text()
    assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:|hx-on|hx-vals=.js:|(?<!help_text)\|safe", text)
    assert all("src=" in tag for tag in re.findall(r"<script[^>]*>", text))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_no_script_evaluates_text(script):
    text = script.read_text()
    assert not re.search(r"\beval\(|new Function|innerHTML|outerHTML|insertAdjacentHTML|document\.write", text)


def test_every_page_carries_a_policy_that_allows_no_inline_code(alice):
    policy = alice.get("/t/acme/")["Content-Security-Policy"]
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
