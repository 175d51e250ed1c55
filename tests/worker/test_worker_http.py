"""The OpenAI-compatible door of a real worker process on a tiny random model."""

import asyncio
import json
import random
import re
import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from worker_process import TIMEOUT_S, WorkerProcess

from dataplane.contracts import headers
from dataplane.contracts.replica import Status


@pytest.fixture(params=["tcp", "unix"])
def client(worker: WorkerProcess, request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    with worker.client() if request.param == "tcp" else worker.trusted_client() as found:
        yield found


@pytest.fixture
def tcp(worker: WorkerProcess) -> Iterator[httpx.Client]:
    with worker.client() as found:
        yield found


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": "Once upon", "max_tokens": 24, "temperature": 0, "ignore_eos": True} | fields


def complete(client: httpx.Client, **fields: Any) -> dict[str, Any]:
    answer = client.post("/v1/completions", json=body(**fields))
    assert answer.status_code == 200, answer.text
    return answer.json()


def events(text: str) -> list[Any]:
    """The data of a stream's events; the last must be [DONE]."""
    data = [event.strip().removeprefix("data: ") for event in text.split("\n\n") if event.strip()]
    assert data[-1] == "[DONE]"
    assert data.count("[DONE]") == 1
    return [json.loads(piece) for piece in data[:-1]]


def streamed(client: httpx.Client, **fields: Any) -> tuple[str, str, list[Any]]:
    """Text, finish reason and chunks of a streamed completion."""
    answer = client.post("/v1/completions", json=body(stream=True, **fields))
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    chunks = events(answer.text)
    choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
    reasons = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    assert len(reasons) == 1
    assert choices[-1]["finish_reason"]
    return "".join(choice["text"] for choice in choices), reasons[0], chunks


def test_a_completion_has_openais_shape(client: httpx.Client) -> None:
    answer = client.post("/v1/completions", json=body())
    found = answer.json()
    assert found["object"] == "text_completion"
    assert found["model"] == "tiny"
    assert found["id"] == answer.headers[headers.PUBLIC_REQUEST_ID]
    assert found["choices"][0] | {"text": ""} == {"index": 0, "text": "", "logprobs": None, "finish_reason": "length"}
    usage = found["usage"]
    assert usage["completion_tokens"] == 24
    assert usage["total_tokens"] == usage["prompt_tokens"] + 24


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_stream_joined_is_the_answer_that_is_not_streamed(client: httpx.Client, temperature: int) -> None:
    fields = {"temperature": temperature, "seed": 11, "max_tokens": 60}
    whole = complete(client, **fields)
    text, reason, chunks = streamed(client, **fields)
    assert (text, reason) == (whole["choices"][0]["text"], whole["choices"][0]["finish_reason"])
    assert all("usage" not in chunk for chunk in chunks)


def test_a_stream_tells_its_usage_once_when_asked(client: httpx.Client) -> None:
    whole = complete(client)
    _, _, chunks = streamed(client, stream_options={"include_usage": True})
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1]["choices"] == []
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert chunks[-1]["usage"][name] == whole["usage"][name]


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("completions", {"prompt": "Once upon"}),
        ("chat/completions", {"messages": [{"role": "user", "content": "hello"}]}),
    ],
)
def test_events_are_padded_to_whole_buckets_unless_the_caller_opts_out(
    tcp: httpx.Client, path: str, asked: dict[str, Any]
) -> None:
    asked = {"model": "tiny", "max_tokens": 12, "temperature": 0, "stream": True} | asked
    *padded, done, _ = tcp.post(f"/v1/{path}", json=asked).content.split(b"\n\n")
    assert done == b"data: [DONE]"
    assert {(len(event) + 2) % 64 for event in padded} == {0}
    assert all(b'"obfuscation":"' in event for event in padded)
    plain = tcp.post(f"/v1/{path}", json=asked | {"stream_options": {"include_obfuscation": False}}).text
    assert "obfuscation" not in plain
    assert [chunk["choices"] for chunk in events(plain)] == [json.loads(event[6:])["choices"] for event in padded]


def test_chat_streams_a_role_first_and_joins_to_the_whole_answer(client: httpx.Client) -> None:
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 16, "temperature": 0}
    whole = client.post("/v1/chat/completions", json=chat).json()
    assert whole["object"] == "chat.completion"
    message = whole["choices"][0]["message"]
    assert message["role"] == "assistant"
    chunks = events(client.post("/v1/chat/completions", json=chat | {"stream": True}).text)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0]["role"] == "assistant"
    assert all("role" not in delta for delta in deltas[1:])
    assert "".join(delta.get("content", "") for delta in deltas) == message["content"]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}


def test_token_ids_and_their_text_give_the_same_answer(tcp: httpx.Client) -> None:
    # Ids 3 to 258 are the bytes, in order of the byte, in this tokenizer: no merges across "zq".
    assert complete(tcp, prompt=[3 + byte for byte in b"zq"])["usage"]["prompt_tokens"] == 2


def test_the_same_seed_draws_the_same_text_and_another_does_not(tcp: httpx.Client) -> None:
    def text(seed: int) -> str:
        return complete(tcp, temperature=1, seed=seed, max_tokens=40)["choices"][0]["text"]

    assert text(5) == text(5)
    assert text(5) != text(6)


def test_a_warm_prefix_gives_the_same_text_and_says_what_was_cached(tcp: httpx.Client) -> None:
    prompt = "a prefix that is longer than a few blocks of eight tokens each, sent twice"
    first, second = complete(tcp, prompt=prompt), complete(tcp, prompt=prompt)
    assert first["choices"] == second["choices"]
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= 8


# -- stops


def free_text(client: httpx.Client, length: int = 200) -> str:
    """Text without characters that a cut could have left half: safe to pick stops from."""
    return str(complete(client, max_tokens=length)["choices"][0]["text"])


@pytest.mark.parametrize("width", [1, 2, 3, 6])
def test_a_stop_string_cuts_text_across_token_borders_streamed_or_not(tcp: httpx.Client, width: int) -> None:
    text = free_text(tcp)
    rng = random.Random(width)
    for _ in range(6):
        start = rng.randrange(5, len(text) - width)
        stop = text[start : start + width]
        if "\ufffd" in stop:
            continue
        expected = text[: text.index(stop)]
        whole = complete(tcp, max_tokens=200, stop=[stop, "never-in-the-text"])
        assert whole["choices"][0]["text"] == expected
        assert whole["choices"][0]["finish_reason"] == "stop"
        assert whole["usage"]["completion_tokens"] < 200
        joined, reason, chunks = streamed(tcp, max_tokens=200, stop=stop, stream_options={"include_usage": True})
        assert (joined, reason) == (expected, "stop")
        assert chunks[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]


def test_a_stop_found_at_the_length_cap_is_a_stop(tcp: httpx.Client) -> None:
    for cap in range(20, 60):
        text = str(complete(tcp, max_tokens=cap)["choices"][0]["text"])
        last = text[-1]
        if last != "\ufffd" and text.index(last) == len(text) - 1:
            choice = complete(tcp, max_tokens=cap, stop=last)["choices"][0]
            assert (choice["text"], choice["finish_reason"]) == (text[:-1], "stop")
            return
    pytest.fail("no length of this text ends with a character that it has not had before")


def test_a_stop_string_does_not_end_a_completion_below_min_tokens(tcp: httpx.Client) -> None:
    text = free_text(tcp)
    stop = next(character for character in text if character != "\ufffd")
    answer = complete(tcp, max_tokens=100, stop=stop, min_tokens=50)
    assert answer["usage"]["completion_tokens"] > 50
    assert answer["choices"][0]["text"].startswith(text[: text.index(stop) + 1])


def test_a_stop_token_ends_the_text_and_is_not_part_of_it(tcp: httpx.Client) -> None:
    stop_ids = list(range(259, 320))  # pairs of letters
    answer = complete(tcp, max_tokens=200, stop_token_ids=stop_ids)
    choice = answer["choices"][0]
    assert choice["finish_reason"] == "stop"
    longer = complete(tcp, max_tokens=answer["usage"]["completion_tokens"])["choices"][0]["text"]
    assert longer.startswith(choice["text"])
    assert len(longer) == len(choice["text"]) + 2


def test_the_context_is_filled_when_max_tokens_is_absent(tcp: httpx.Client) -> None:
    answer = complete(tcp, prompt=[5] * 2000, max_tokens=None)
    assert answer["usage"]["total_tokens"] == 2048
    assert answer["choices"][0]["finish_reason"] == "length"


# -- errors


def error_of(answer: httpx.Response, status: int = 400) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "code", "param", "request_id"}
    return dict(error)


def test_an_unknown_model_names_what_may_be_called(client: httpx.Client) -> None:
    error = error_of(client.post("/v1/completions", json=body(model="gpt-9")), 404)
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert "'tiny'" in error["message"]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_unsupported_parameters_are_refused_on_both_endpoints(client: httpx.Client, path: str) -> None:
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
    fields = chat if "chat" in path else body()
    error = error_of(client.post(path, json=fields | {"length_penalty": 2}))
    assert (error["code"], error["param"], error["type"]) == (
        "unsupported_parameter",
        "length_penalty",
        "invalid_request_error",
    )
    assert error["request_id"].startswith("req_")


def test_a_prompt_over_the_context_names_both_numbers(client: httpx.Client) -> None:
    error = error_of(client.post("/v1/completions", json=body(prompt=[5] * 3000)))
    assert error["code"] == "context_length_exceeded"
    assert {"3000", "2048"} <= set(re.findall(r"\d+", error["message"]))


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "invalid_json"),
        (b'{"model": "tiny", "prompt": "a", "prompt": "b"}', "invalid_json"),
        (b'{"model": "tiny", "prompt": "a", "temperature": NaN}', "invalid_json"),
        (b'{"model": "tiny", "prompt": "\\udfff"}', "invalid_json"),
        (b"[" * 20_000, "invalid_json"),
        (b'{"model": "tiny", "prompt": "a\\u0000b"}', "invalid_request"),
        (b'{"model": "tiny", "prompt": [320]}', "invalid_parameter"),
    ],
)
def test_hostile_json_gets_a_clean_400(tcp: httpx.Client, content: bytes, code: str) -> None:
    answer = tcp.post("/v1/completions", content=content, headers={"content-type": "application/json"})
    assert error_of(answer)["code"] == code


def test_a_body_too_large_is_a_413_and_other_encodings_are_refused(tcp: httpx.Client) -> None:
    as_json = {"content-type": "application/json"}
    error_of(tcp.post("/v1/completions", content=b" " * (4 * 2**20 + 1), headers=as_json), 413)
    error_of(tcp.post("/v1/completions", content=b"{}", headers=as_json | {"content-encoding": "gzip"}))
    error_of(tcp.post("/v1/completions", content=b"{}", headers={"content-type": "text/plain"}))


def test_unknown_addresses_and_methods_get_the_envelope(tcp: httpx.Client) -> None:
    assert error_of(tcp.get("/nothing"), 404)["code"] == "not_found"
    assert error_of(tcp.get("/v1/completions"), 405)["code"] == "method_not_allowed"


def test_internal_headers_do_nothing_on_the_public_port(worker: WorkerProcess, tcp: httpx.Client) -> None:
    spoofed = {headers.REQUEST_ID: "req_01arz3ndektsv4rrffq69g5fav", headers.TENANT: "acme", headers.METER: "1"}
    answer = tcp.post("/v1/completions", json=body(stream=True), headers=spoofed)
    assert answer.headers[headers.PUBLIC_REQUEST_ID] != spoofed[headers.REQUEST_ID]
    assert ": t=" not in answer.text
    assert worker.records(spoofed[headers.REQUEST_ID]) == []


# -- other routes


def test_models_health_and_metrics(client: httpx.Client) -> None:
    complete(client)
    models = client.get("/v1/models").json()["data"]
    assert [(model["id"], model["max_model_len"]) for model in models] == [("tiny", 2048)]
    assert client.get("/health").json()["status"] == "ok"
    page = client.get("/metrics").text
    for name in (
        "num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "prefix_cache_queries_total",
        "prefix_cache_hits_total", "num_preemptions_total", "time_to_first_token_seconds_bucket",
        "time_per_output_token_seconds_bucket", "e2e_request_latency_seconds_bucket",
        "request_queue_time_seconds_bucket", "request_prefill_time_seconds_bucket",
        "request_decode_time_seconds_bucket", "generation_tokens_total",
    ):  # fmt: skip
        assert f"pagoda_{name}" in page
    assert 'pagoda_request_success_total{finished_reason="length",tenant="default"}' in page


# -- the official client


def test_the_official_client_works_streaming_and_not(worker: WorkerProcess) -> None:
    with openai.OpenAI(base_url=f"{worker.url}/v1", api_key="none", max_retries=0, timeout=TIMEOUT_S) as client:
        assert [model.id for model in client.models.list()] == ["tiny"]
        messages: Any = [{"role": "user", "content": "hello"}]
        whole = client.chat.completions.create(model="tiny", messages=messages, max_tokens=12, temperature=0)
        chunks = list(
            client.chat.completions.create(
                model="tiny", messages=messages, max_tokens=12, temperature=0, stream=True,
                stream_options={"include_usage": True},
            )
        )  # fmt: skip
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert text == whole.choices[0].message.content
        assert chunks[-1].usage is not None
        assert whole.usage is not None
        assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
        legacy = client.completions.create(model="tiny", prompt="hello", max_tokens=4)
        assert legacy.usage is not None
        with pytest.raises(openai.NotFoundError, match="tiny"):
            client.completions.create(model="nope", prompt="x")
        with pytest.raises(openai.BadRequestError) as refused:
            client.completions.create(model="tiny", prompt="x", best_of=2)
        assert refused.value.param == "best_of"


# -- clients that go away or do not read


def raw_request(fields: dict[str, Any]) -> bytes:
    content = json.dumps(fields).encode()
    head = "POST /v1/completions HTTP/1.1\r\nhost: w\r\ncontent-type: application/json\r\n"
    head += f"content-length: {len(content)}"
    return f"{head}\r\n\r\n".encode() + content


def idle(status: Status) -> bool:
    load = status.load
    return status.pending == 0 and load is not None and load.owned_blocks == load.num_running == load.num_waiting == 0


@pytest.mark.anyio
async def test_random_disconnects_leave_free_and_cached_blocks_only(worker: WorkerProcess) -> None:
    rng = random.Random(3)
    turns = asyncio.Semaphore(16)

    async def leave(number: int) -> None:
        request = body(
            prompt=[rng.randrange(3, 300) for _ in range(rng.randrange(1, 300))], max_tokens=1500,
            stream=bool(number % 3), stop=["\u1234"] if number % 2 else None,
        )  # fmt: skip
        sent = raw_request(request)
        async with turns:
            reader, writer = await asyncio.open_connection("127.0.0.1", worker.port)
            cut = rng.randrange(1, len(sent)) if number % 10 == 0 else len(sent)
            writer.write(sent[:cut])
            for _ in range(rng.randrange(0, 4)):
                if not number % 3 or cut < len(sent):
                    await asyncio.sleep(rng.random() / 50)
                elif not await reader.read(200):
                    break
            writer.transport.abort()

    await asyncio.gather(*(leave(number) for number in range(200)))
    load = (await asyncio.to_thread(worker.wait_status, idle)).load
    assert load is not None
    assert load.free_blocks + load.cached_blocks == load.total_blocks
    async with worker.trusted_async_client() as client:
        assert (await client.get("/health")).status_code == 200


def ends_by_abort(worker: WorkerProcess) -> list[str]:
    with worker.trusted_client() as client:
        return [line for line in client.get("/metrics").text.splitlines() if 'finished_reason="aborted"' in line]


def test_a_client_that_never_reads_is_cut_and_its_blocks_are_freed(worker: WorkerProcess) -> None:
    cut_before = ends_by_abort(worker)
    # eight choices: more than all buffers on the way hold
    request = raw_request(body(stream=True, max_tokens=2000, n=8, stream_options={"include_usage": True}))
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(TIMEOUT_S)
        connection.connect(str(worker.socket))
        with worker.held():
            connection.sendall(request)
            worker.wait_status(lambda status: status.pending > 0)
        deadline = time.monotonic() + TIMEOUT_S
        while ends_by_abort(worker) == cut_before:  # what is read sooner is no sign of a client that never reads
            assert time.monotonic() < deadline
            time.sleep(0.01)
        worker.wait_status(idle)
        received = b""
        while data := connection.recv(1 << 20):
            received += data
    assert received.startswith(b"HTTP/1.1 200")
    assert b"[DONE]" not in received  # cut, and nobody can take it for a complete answer
    assert not received.endswith(b"0\r\n\r\n")


def test_a_tokenizer_child_that_dies_comes_back_and_running_streams_go_on(worker: WorkerProcess) -> None:
    with worker.client() as client:
        expected = complete(client, max_tokens=300)["choices"][0]["text"]
        with client.stream("POST", "/v1/completions", json=body(stream=True, max_tokens=300)) as stream:
            lines = stream.iter_lines()
            received = [next(lines) for _ in range(6)]
            worker.child("dataplane.text.child").kill()
            received += lines
        chunks = events("\n".join(received))
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == expected
        assert complete(client, max_tokens=300)["choices"][0]["text"] == expected
