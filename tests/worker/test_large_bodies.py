"""Large bodies are read beside the event loop, one at a time, and those of too many values are not read at all."""

import asyncio
import threading
import tracemalloc

import pytest

from dataplane.contracts.errors import ApiError, Code
from dataplane.worker import requests
from dataplane.worker.app import Worker
from dataplane.worker.metrics import Metrics
from dataplane.worker.prompts import TokenPrompt
from dataplane.worker.replica import Replica
from dataplane.worker.requests import GenerationRequest

pytestmark = pytest.mark.anyio

LARGE = b'{"model":"m","messages":[{"role":"user","content":"' + b"x" * 1_000_000 + b'"}]}'
TURNS = 1000


@pytest.fixture
def worker() -> Worker:
    return Worker(Replica("rep_1", 1.0), Metrics(), None, trust_header=False)


class Held:
    """Reads a chat request, but not before it is let go; ``at_once`` is how many were read at the same time."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.at_once = 0
        self._running = 0

    def __call__(self, body: bytes) -> GenerationRequest:
        self._running += 1
        self.at_once = max(self.at_once, self._running)
        assert self.let_go.wait(60), "the loop did not turn"
        self._running -= 1
        return requests.parse_chat(body)


async def test_the_loop_turns_as_often_as_it_likes_while_a_large_body_is_read(worker: Worker) -> None:
    held = Held()
    reading = [asyncio.create_task(worker.read(held, LARGE)) for _ in range(3)]
    turns = 0
    while turns < TURNS:
        await asyncio.sleep(0)
        turns += 1
    assert not any(task.done() for task in reading)
    held.let_go.set()
    assert [request.model for request in await asyncio.gather(*reading)] == ["m"] * 3
    assert held.at_once == 1


async def test_a_small_body_waits_for_no_thread(worker: Worker) -> None:
    small = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
    with pytest.raises(StopIteration) as done:
        worker.read(requests.parse_chat, small).send(None)
    assert done.value.value == requests.parse_chat(small)


async def test_what_is_wrong_with_a_large_body_is_told_as_of_a_small_one(worker: Worker) -> None:
    with pytest.raises(ApiError) as refusal:
        await worker.read(requests.parse_chat, LARGE[:-1])
    assert refusal.value.code is Code.INVALID_JSON


@pytest.mark.parametrize(
    "values",
    [b'{"role":"user","content":""},', b"{},", b"[],", b'"",', b"1,", b"[[[[[[[[[[]]]]]]]]]],", b'{"":{"":{"":[]}}},'],
)
def test_nothing_is_made_of_a_body_of_too_many_values(values: bytes) -> None:
    body = b'{"model":"m","messages":[' + values * (3_000_000 // len(values)) + b"0]}"
    tracemalloc.start()
    try:
        with pytest.raises(ApiError, match="too much for one request") as refusal:
            requests.parse_chat(body)
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert refusal.value.code is Code.INVALID_REQUEST
    assert most_bytes < 4 * len(body)


@pytest.mark.parametrize("text", ["[],{}", '\\"[{,', "\\\\", "\\n"])
def test_a_long_text_may_say_anything(text: str) -> None:
    content = text.encode() * (2_000_000 // len(text))
    body = b'{"model":"m","messages":[{"role":"user","content":"' + content + b'"}]}'
    assert requests.parse_chat(body).model == "m"


def test_a_prompt_of_as_many_ids_as_a_long_context_has_is_read() -> None:
    body = b'{"model":"m","prompt":[' + b"1," * 131_071 + b"1]}"
    assert requests.parse_completion(body).prompt == TokenPrompt([1] * 131_072)
