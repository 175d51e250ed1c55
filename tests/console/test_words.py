from datetime import timedelta

import pytest
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from console.templatetags import console as words


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0, "0"),
        (9_999, "9,999"),
        (11_648, "11.6k"),
        (1_000_000, "1M"),
        (1_234_567, "1.23M"),
        (5 * 10**9, "5B"),
    ],
)
def test_counts_are_short(value, text):
    assert words.count(value) == text


@given(st.integers(min_value=0, max_value=10**15))
def test_a_count_is_never_longer_than_seven_characters_below_a_trillion(value):
    assert len(words.count(value % 10**12)) <= 7


@pytest.mark.parametrize(
    ("microusd", "text"),
    [
        (0, "$0"),
        (1, "<$0.0001"),
        (99, "<$0.0001"),
        (100, "$0.0001"),
        (999_999, "$1.0000"),
        (1_234_567_890, "$1,234.57"),
    ],
)
def test_money_is_never_nothing_for_something(microusd, text):
    assert words.usd(microusd) == text


@pytest.mark.parametrize(("value", "text"), [(None, "–"), (0, "0 ms"), (9_999, "9,999 ms"), (17_640, "17.6 s")])
def test_durations_have_units(value, text):
    assert words.ms(value) == text


@pytest.mark.parametrize(
    ("back", "text"),
    [
        (timedelta(0), "just now"),
        (timedelta(seconds=30), "30 s ago"),
        (timedelta(minutes=17), "17 min ago"),
        (timedelta(hours=1), "1 hour ago"),
        (timedelta(days=2), "2 days ago"),
        (-timedelta(days=90), "in 90 days"),
    ],
)
def test_a_moment_says_how_long_ago_and_keeps_the_utc_time(back, text):
    moment = timezone.now() - back
    assert words.ago(moment) == (
        f'<time datetime="{moment:%Y-%m-%dT%H:%M:%SZ}" title="{moment:%Y-%m-%dT%H:%M:%SZ}">{text}</time>'
    )


def test_a_moment_that_never_was_is_never():
    assert words.ago(None) == "never"


def test_no_limit_is_said_and_a_limit_is_a_number():
    assert (words.limit(None), words.limit(60)) == ("none", "60")


def test_states_are_words_with_a_tone():
    assert (words.words("warm_idle"), words.tone("warm_idle"), words.tone("never heard of")) == (
        "Warm idle",
        "info",
        "",
    )


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ("stop", "Finished"),
        ("length", "Token limit"),
        ("aborted", "Stopped"),
        ("refused", "Refused"),
        ("warm_idle", "Warm idle"),
    ],
)
def test_a_state_and_how_a_request_ended_are_words(state, text):
    assert words.words(state) == text
