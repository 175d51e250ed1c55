"""System parts: what running needs, and what only tests need."""

import shutil

import pytest

from stack import system


def test_a_browser_is_asked_for_by_the_tests_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    assert system.CHROMIUM not in system.missing(for_tests=False)
    assert system.CHROMIUM in system.missing(for_tests=True)
    assert system.SETPRIV in system.missing(for_tests=False)
