"""The sizes of a stream's events: what they tell of the text, and that it is read all the same."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane.contracts.generation import FinishReason
from dataplane.worker.answers import AnswerWriter, Endpoint, Usage
from dataplane.worker.choice import Piece
from dataplane.worker.padding import BUCKET_BYTES

endpoints = st.sampled_from(Endpoint)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
PLAIN = "abcdefgh" * 8
"""As many bytes in JSON as it has letters."""


def stream(endpoint: Endpoint, pieces: list[str], *, model: str = "m", padded: bool = True) -> list[bytes]:
    """Return the events of an answer that comes in ``pieces``, with its end and its usage."""
    writer = AnswerWriter(endpoint, "req_1", model, include_usage=True, padded=padded)
    events = [writer.event(Piece(0, text, None, None)) for text in pieces]
    events += [writer.event(Piece(0, "", FinishReason.STOP, None)), writer.usage_event(Usage(3, len(pieces), 0))]
    return [event for event in events if event]


def said(event: bytes) -> dict[str, Any]:
    assert event.startswith(b"data: ")
    assert event.endswith(b"}\n\n")
    return {name: value for name, value in json.loads(event[6:]).items() if name != "created"}


@given(endpoints, st.lists(texts, min_size=1, max_size=5), texts)
def test_every_event_fills_whole_buckets_and_says_what_it_says_without(
    endpoint: Endpoint, pieces: list[str], model: str
) -> None:
    padded, plain = (stream(endpoint, pieces, model=model, padded=padded) for padded in (True, False))
    assert [len(event) % BUCKET_BYTES for event in padded] == [0] * len(plain)
    for event, expected in zip(map(said, padded), map(said, plain), strict=True):
        assert event.pop("obfuscation").isascii()
        assert event == expected


@given(endpoints, texts, st.integers(1, BUCKET_BYTES), st.integers(1, BUCKET_BYTES))
def test_texts_of_up_to_a_bucket_are_alike_whatever_the_model_is_called(
    endpoint: Endpoint, model: str, one: int, other: int
) -> None:
    _, first, second, *_ = stream(endpoint, ["", PLAIN[:one], PLAIN[:other]], model=model)
    assert len(first) == len(second)


@pytest.mark.parametrize("endpoint", Endpoint)
def test_the_noise_is_another_one_each_time(endpoint: Endpoint) -> None:
    _, *events = stream(endpoint, ["a"] * 50)
    noises = [json.loads(event[6:])["obfuscation"] for event in events[:49]]
    assert len(set(noises)) == len(noises)


@pytest.mark.parametrize("endpoint", Endpoint)
def test_an_answer_that_is_not_streamed_carries_none(endpoint: Endpoint) -> None:
    writer = AnswerWriter(endpoint, "req_1", "m", padded=True)
    assert b"obfuscation" not in writer.whole([Piece(0, "a", FinishReason.STOP, None)], Usage(3, 1, 0))
