"""The playground's stream, against a gateway that is a few lines of asyncio."""

import asyncio
import io
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

from console_world import page
from django.core.handlers.asgi import ASGIRequest
from hypothesis import given
from hypothesis import strategies as st

from console.views import playground

_Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nx-request-id: req_1\r\nx-served-version: ver_1\r\nx-served-replica: rep_1\r\nconnection: close\r\n\r\n"  # noqa: E501
REFUSAL = b'{"error": {"message": "Too many requests a minute.", "code": "rate_limited"}}'


def with_gateway(settings, answer: _Answer, use: Callable[[], Awaitable[object]]) -> object:
    """Run ``use`` while a gateway answers each call with ``answer``."""

    async def run() -> object:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        settings.PAGODA_GATEWAY_URL = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server:
            return await use()

    return asyncio.run(run())


async def read_call(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
    )
    return head, await reader.readexactly(length)


UNKNOWN = b'{"error": {"message": "This API key is not known.", "code": "invalid_api_key"}}'


def unknown_key() -> bytes:
    head = b"HTTP/1.1 401 Unauthorized\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(UNKNOWN)
    return head + UNKNOWN


async def relayed(body: bytes = b"{}", key: str = "pgd_test") -> bytes:
    return b"".join([chunk async for chunk in playground._relay(body, key)])


def events(stream: bytes) -> list[str]:
    return [line[5:].strip().decode() for line in stream.split(b"\n") if line.startswith(b"data:")]


def test_a_key_that_the_gateway_has_not_heard_of_yet_is_tried_again(settings):
    calls = []

    async def answer(reader, writer):
        calls.append(await read_call(reader))
        writer.write(unknown_key() if len(calls) < 3 else SSE + b"data: [DONE]\n\n")
        await writer.drain()
        writer.close()

    stream = with_gateway(settings, answer, relayed)
    assert events(stream)[1:] == ["[DONE]"]
    assert len(calls) == 3


def test_a_key_that_stays_unknown_is_an_event_that_says_so(settings, monkeypatch):
    monkeypatch.setattr(playground, "_NEWS_S", 0.2)

    async def answer(reader, writer):
        await read_call(reader)
        writer.write(unknown_key())
        await writer.drain()
        writer.close()

    assert events(with_gateway(settings, answer, relayed))[-1] == UNKNOWN.decode()


def test_the_stream_passes_through_after_an_event_that_says_who_answers(settings):
    seen = {}

    async def answer(reader, writer):
        seen["head"], seen["body"] = await read_call(reader)
        writer.write(SSE + b'data: {"choices": []}\n\ndata: [DONE]\n\n')
        await writer.drain()
        writer.close()

    stream = with_gateway(settings, answer, lambda: relayed(b'{"model": "m"}', "pgd_secret"))
    first, *rest = events(stream)
    assert json.loads(first) == {
        "request_id": "req_1",
        "version_id": "ver_1",
        "replica_id": "rep_1",
        "is_refused": False,
    }
    assert rest == ['{"choices": []}', "[DONE]"]
    assert b"authorization: bearer pgd_secret" in seen["head"].lower()
    assert seen["body"] == b'{"model": "m"}'
    assert b"pgd_secret" not in stream


def test_a_refusal_is_an_event_with_its_sentence(settings):
    async def answer(reader, writer):
        await read_call(reader)
        writer.write(b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: %d\r\n\r\n%s" % (len(REFUSAL), REFUSAL))
        await writer.drain()
        writer.close()

    stream = with_gateway(settings, answer, relayed)
    first, last = map(json.loads, events(stream))
    assert first["is_refused"]
    assert last["error"]["message"] == "Too many requests a minute."


def test_a_gateway_that_is_away_is_an_event_too(settings):
    settings.PAGODA_GATEWAY_URL = "http://127.0.0.1:1"
    assert "cannot be reached" in json.loads(events(asyncio.run(relayed()))[-1])["error"]["message"]


def test_a_gateway_that_breaks_off_is_an_event_too(settings):
    async def answer(reader, writer):
        await read_call(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\ndata")
        await writer.drain()
        writer.transport.abort()

    assert "cannot be reached" in json.loads(events(with_gateway(settings, answer, relayed))[-1])["error"]["message"]


def test_a_tab_that_closes_closes_the_call_to_the_gateway(settings):
    closed = asyncio.Event()

    async def answer(reader, writer):
        await read_call(reader)
        writer.write(SSE + b'data: {"choices": []}\n\n')
        await writer.drain()
        await reader.read()  # returns at the end of the connection
        closed.set()
        writer.close()

    async def look_and_leave():
        stream = playground._relay(b"{}", "pgd_test")
        await anext(stream)
        await anext(stream)
        await stream.aclose()
        await asyncio.wait_for(closed.wait(), 10)

    with_gateway(settings, answer, look_and_leave)
    assert closed.is_set()


def test_a_body_over_the_playgrounds_size_is_refused_with_the_size(alice):
    big = b"x" * (playground.MAX_BODY_BYTES + 1)
    answer = alice.post("/t/acme/playground/stream", big, content_type="application/json")
    assert answer.status_code == 413
    assert "256 KiB" in answer.content.decode()


def test_a_body_that_does_not_declare_its_size_is_measured():
    scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": []}
    for size_bytes, too_large in ((playground.MAX_BODY_BYTES, False), (playground.MAX_BODY_BYTES + 1, True)):
        assert playground.is_too_large(ASGIRequest(scope, io.BytesIO(b"x" * size_bytes))) is too_large


def test_a_stream_of_an_expired_session_takes_the_page_to_sign_in(client, db):
    answer = client.post(
        "/t/acme/playground/stream", b"{}", content_type="application/json", headers={"hx-request": "true"}
    )
    assert answer.status_code == 204
    assert answer["HX-Redirect"].startswith("/account/login/")


def test_the_page_names_models_and_versions_and_never_a_key(alice, busy):
    text = page(alice, "/t/acme/playground?model=chat")
    assert '<option value="chat"' in text
    assert busy.version.id in text
    assert "pgd_live_" not in text


NOW = datetime(2026, 9, 21, tzinfo=UTC)
prices = st.builds(
    SimpleNamespace,
    deployment_id=st.sampled_from(["", "dep_1", "dep_2"]),
    input_microusd=st.integers(0, 10**6),
    output_microusd=st.integers(0, 10**6),
    effective_from=st.integers(-50, 50).map(lambda days: NOW + timedelta(days=days)),
)


@given(st.lists(prices, max_size=8))
def test_the_price_is_the_newest_that_counts_of_the_deployment_else_of_the_house(listed):
    listed.sort(key=lambda price: price.effective_from, reverse=True)
    found = playground.price_at(listed, "dep_1", NOW)
    counting = [price for price in listed if price.effective_from <= NOW]
    own = [price for price in counting if price.deployment_id == "dep_1"]
    house = [price for price in counting if price.deployment_id == ""]
    expected = next(iter(own or house), None)
    assert found == ((expected.input_microusd, expected.output_microusd) if expected else (None, None))
