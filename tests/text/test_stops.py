from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane.text.stops import StopMatcher

texts = st.text("ab🙂", max_size=30)
stops = st.lists(st.text("ab🙂", min_size=1, max_size=4), max_size=3)
borders = st.lists(st.integers(0, 30), max_size=10)


def naive(text: str, stops: list[str]) -> tuple[str, bool]:
    """Grow the text a character at a time; the first stop that it ends with cuts it, the longest of several."""
    for end in range(len(text) + 1):
        hits = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if hits:
            return text[: end - max(hits)], True
    return text, False


def cut(text: str, borders: list[int]) -> list[str]:
    places = sorted({0, len(text), *(min(border, len(text)) for border in borders)})
    return [text[a:b] for a, b in pairwise(places)]


@given(texts, stops, borders)
def test_text_is_cut_at_the_earliest_stop_however_it_arrives(text: str, stops: list[str], borders: list[int]) -> None:
    matcher = StopMatcher(stops)
    answers = [matcher.push(piece) for piece in cut(text, borders)]
    answers.append(matcher.push("", last=True))
    assert ("".join(emitted for emitted, _ in answers), answers[-1][1]) == naive(text, stops)


@given(texts, stops)
def test_only_what_may_begin_a_stop_is_held_back(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    emitted, hit = matcher.push(text)
    if not hit:
        held = text[len(emitted) :]
        assert held == "" or any(stop.startswith(held) and stop != held for stop in stops)
        longer = [text[place:] for place in range(len(emitted))]
        assert not any(stop.startswith(suffix) for suffix in longer for stop in stops)


@given(texts, stops, texts)
def test_after_a_hit_nothing_more_comes(text: str, stops: list[str], more: str) -> None:
    matcher = StopMatcher(stops)
    if matcher.push(text)[1]:
        assert matcher.push(more) == ("", True)
        assert matcher.push(more, last=True) == ("", True)


def test_the_stop_that_is_complete_first_wins_over_one_that_began_earlier() -> None:
    assert StopMatcher(["abcd", "bc"]).push("abcd") == ("a", True)
    assert StopMatcher(["abc", "c"]).push("abc") == ("", True)


def test_an_empty_stop_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopMatcher(["a", ""])
