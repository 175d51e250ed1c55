"""Retries, pure."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.notifications.schedule import (
    FAILING_FOR,
    MAX_ATTEMPTS,
    answered,
    has_failed_for_good,
    pause,
)

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)


def total(jitter: float) -> timedelta:
    pauses = [pause(attempts, jitter) for attempts in range(1, MAX_ATTEMPTS)]
    return sum((each for each in pauses if each is not None), timedelta(0))


def test_retries_go_on_for_about_a_day_and_end():
    assert timedelta(days=1) <= total(0.0) <= total(0.999) <= timedelta(hours=31)
    assert pause(MAX_ATTEMPTS, 0.5) is None
    assert pause(MAX_ATTEMPTS + 1, 0.5) is None


@given(st.integers(1, MAX_ATTEMPTS - 2), st.floats(0, 1, exclude_max=True), st.floats(0, 1, exclude_max=True))
def test_each_pause_is_longer_than_the_one_before_whatever_the_dice(attempts, one, other):
    assert timedelta(0) < pause(attempts, one) < pause(attempts + 1, other)


def test_the_last_retry_of_a_receiver_that_was_never_there_switches_it_off():
    assert has_failed_for_good(NOW - total(0.0), NOW)


@given(st.timedeltas(timedelta(0), FAILING_FOR - timedelta(microseconds=1)))
def test_a_receiver_that_failed_for_less_than_a_day_is_kept(span):
    assert not has_failed_for_good(NOW - span, NOW)
    assert not has_failed_for_good(None, NOW)


@pytest.mark.parametrize("status", [200, 201, 204, 299])
def test_any_2xx_is_delivered(status):
    assert answered(status).delivered


@pytest.mark.parametrize("status", [100, 301, 302, 307, 400, 401, 404, 408, 429, 500, 503, 999])
def test_anything_else_is_tried_again_and_says_what_came(status):
    outcome = answered(status)
    assert not outcome.delivered
    assert not outcome.final
    assert str(status) in outcome.error


def test_gone_is_final():
    outcome = answered(410)
    assert (outcome.delivered, outcome.final, outcome.gone) == (False, True, True)
