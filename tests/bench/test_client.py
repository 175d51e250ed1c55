"""The benchmark's client, against a server that answers byte for byte as it is told."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import figures
import pytest
from client import CallFailed, Client, Measured, Timing
from hypothesis import given
from hypothesis import strategies as st
from workloads import Request, Workload

USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":%d}}\n\n'
DONE = b"data: [DONE]\n\n"


def piece(text: bytes) -> bytes:
    return b'data: {"choices":[{"index":0,"text":"%s","finish_reason":null}],"usage":null}\n\n' % text


def answer(body: bytes, chunk: int, status: bytes = b"200 OK") -> bytes:
    chunks = [body[start : start + chunk] for start in range(0, len(body), chunk)]
    framed = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in [*chunks, b""])
    return b"HTTP/1.1 %s\r\ntransfer-encoding: chunked\r\n\r\n%s" % (status, framed)


@contextmanager
def served(reply: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """Answer every connection with ``reply`` once its request has come, and keep what was asked."""
    asked: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        asked.append(await reader.readexactly(length))
        writer.write(reply)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(handle, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asked
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        server.close()
        loop.run_until_complete(server.wait_closed())
        loop.close()


def one_call(output_tokens: int, callers: int | None = 1, count: int = 1) -> Workload:
    return Workload("A", callers, [Request([1, 2, 3], output_tokens)] * count, [])


@pytest.mark.parametrize("chunk", [1, 7, 10_000])
def test_pieces_are_counted_by_text_and_tokens_by_usage_however_the_bytes_are_cut(chunk: int) -> None:
    body = piece(b"") + piece(b"a") + piece(b'\\"text\\":\\"\\"') + piece(b"") + USAGE % 5 + DONE
    with served(answer(body, chunk)) as (url, asked):
        measured = Client([url], "m", {"cache_prompt": False}).run(one_call(5))
    (timing,) = measured.timings
    assert len(timing.pieces_s) == 2
    assert timing.output_tokens == 5
    assert timing.began_s <= timing.pieces_s[0] <= timing.pieces_s[1] <= timing.ended_s
    assert b'"cache_prompt": false' in asked[0]
    assert b'"ignore_eos": true' in asked[0]


def test_each_tenant_calls_a_server_of_its_own_and_no_other() -> None:
    reply = answer(piece(b"a") + USAGE % 1 + DONE, 100)
    calls = [Request([1], 1, tenant=tenant) for tenant in ("a", "b", "a", "a")]
    with served(reply) as (first, by_a), served(reply) as (second, by_b):
        Client([first, second], "m", {}).run(Workload("E-dedicated", None, calls, []))
    assert (len(by_a), len(by_b)) == (3, 1)


@pytest.mark.parametrize("callers", [3, None])
def test_every_call_is_made_once(callers: int | None) -> None:
    with served(answer(piece(b"a") + USAGE % 1 + DONE, 100)) as (url, asked):
        measured = Client([url], "m", {}).run(one_call(1, callers, count=7))
    assert len(measured.timings) == len(asked) == 7


def test_a_flood_ends_with_what_is_counted_and_may_be_refused() -> None:
    flood = [Request([1], 1, at_s, "flooding") for at_s in (0.0, 0.0, 3600.0)]
    with served(answer(piece(b"a") + USAGE % 2 + DONE, 100)) as (url, asked):
        measured = Client([url], "m", {}).run(replace(one_call(2, None), flood=flood))
    assert len(measured.timings) == 1
    assert len(measured.flood) == 2  # each had two tokens where it asked for one, so it failed; the third never began
    assert len(asked) <= 3


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (answer(b'{"error":"no such model"}', 100, b"404 Not Found"), "404: .*no such model"),
        (answer(piece(b"a") + USAGE % 5, 100), r"without \[DONE\]"),
        (answer(piece(b"a") + USAGE % 4 + DONE, 100), "4 of 5 tokens"),
        (answer(piece(b"a"), 100)[:-5], "lost"),
    ],
)
def test_a_run_with_a_call_that_failed_has_no_figures(reply: bytes, words: str) -> None:
    with served(reply) as (url, _), pytest.raises(CallFailed, match=words):
        Client([url], "m", {}).run(one_call(5))


def test_figures_are_those_of_the_field() -> None:
    quick = Timing(10.0, [10.5, 11.0, 11.5], 11.5, 3)
    slow = Timing(10.0, [13.0, 13.1], 13.1, 2)
    found = figures.summarise(Measured([quick, slow], 4.0, 0.2))
    assert found["output_tokens_per_s"] == 1.25
    assert (found["ttft_p50_ms"], found["ttft_p95_ms"]) == (1750, 3000)
    assert found["tpot_p95_ms"] == 500
    assert found["itl_p99_ms"] == 500  # of 500, 500, 100
    assert found["good_share"] == 0  # one begins too late, the other goes on too slowly
    assert found["client_cpu_share"] == 0.05


def test_the_rate_of_all_counts_what_came_while_calls_came_whether_they_ended_or_not() -> None:
    counted = Timing(0.0, [1.0, 3.0], 3.0, 2)
    cut = [Timing(4.0, [4.0, 9.0]), Timing(8.0, [8.5])]
    # From 2 s on, a quarter of the 8 in which calls came, until the last of them came.
    assert figures.summarise(Measured([counted], 9.0, 0.0, cut))["all_pieces_per_s"] == pytest.approx(2 / 6, abs=1e-4)
    assert "all_pieces_per_s" not in figures.summarise(Measured([counted], 9.0, 0.0))


def test_a_call_within_every_limit_is_good() -> None:
    good = Timing(0.0, [figures.TTFT_LIMIT_S, 2.5], 2.5, 4)
    assert figures.summarise(Measured([good], 2.5, 0.0))["goodput_per_s"] == pytest.approx(0.4)


def test_a_call_without_text_has_no_time_to_first_token() -> None:
    with pytest.raises(ValueError, match="no text"):
        figures.summarise(Measured([Timing(0.0, [], 1.0, 3)], 1.0, 0.0))


@given(values=st.lists(st.floats(0, 1e6), min_size=1), share=st.floats(0, 1))
def test_a_quantile_is_a_value_that_so_many_do_not_exceed(values: list[float], share: float) -> None:
    ordered = sorted(values)
    found = figures.quantile(ordered, share)
    assert found in ordered
    assert sum(value <= found for value in ordered) >= share * len(ordered) - 1e-9
