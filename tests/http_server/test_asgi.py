"""Bodies: whole and within bounds, or refused before they take memory or time."""

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from dataplane.contracts.errors import ApiError, Code
from dataplane.http_server.asgi import ABORT, ClientGone, Receive, abort_of, gone, read_body

pytestmark = pytest.mark.anyio

END = {"type": "http.request", "body": b"end"}
GONE = {"type": "http.disconnect"}


def part(size_bytes: int) -> dict[str, Any]:
    return {"type": "http.request", "body": b"x" * size_bytes, "more_body": True}


def sends(*messages: dict[str, Any]) -> Receive:
    left = iter(messages)

    async def receive() -> dict[str, Any]:
        return next(left)

    return receive


def scope(*headers: tuple[bytes, bytes]) -> dict[str, Any]:
    return {"headers": list(headers)}


async def refusal(sent: Iterable[dict[str, Any]], *headers: tuple[bytes, bytes]) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await read_body(scope(*headers), sends(*sent), 10)
    return caught.value


async def test_parts_are_joined_and_each_is_counted_before_it_is_kept() -> None:
    counted: list[int] = []
    body = await read_body(scope(), sends(part(2), part(5), END), 10, hold=counted.append)
    assert (body, counted) == (b"xxxxxxxend", [2, 5, 3])


async def test_a_body_over_the_limit_is_refused_at_the_part_that_exceeds_it() -> None:
    assert (await refusal([part(5), part(6)])).code is Code.BODY_TOO_LARGE


async def test_a_body_declared_too_large_is_refused_unread() -> None:
    assert (await refusal([], (b"content-length", b"11"))).code is Code.BODY_TOO_LARGE
    assert await read_body(scope((b"content-length", b"3")), sends(END), 10) == b"end"


@pytest.mark.parametrize("values", [[b"gzip"], [b"identity", b"identity"], [b""]])
async def test_an_encoded_body_is_refused_unread(values: list[bytes]) -> None:
    error = await refusal([], *((b"content-encoding", value) for value in values))
    assert (error.code, error.param) == (Code.INVALID_REQUEST, "content-encoding")
    assert await read_body(scope((b"content-encoding", b"Identity")), sends(END), 10) == b"end"


async def test_a_body_that_does_not_come_is_refused_in_time() -> None:
    never = asyncio.Event()

    async def receive() -> dict[str, Any]:
        await never.wait()
        return END

    with pytest.raises(ApiError, match=r"within 0\.01 s"):
        await read_body(scope(), receive, 10, timeout_s=0.01)


async def test_a_caller_that_leaves_is_noticed_in_a_body_and_after_it() -> None:
    with pytest.raises(ClientGone):
        await read_body(scope(), sends(part(1), GONE), 10)
    receive = sends(END, GONE, END)
    await gone(receive)
    assert await receive() == END


def test_a_connection_can_be_dropped_only_where_the_server_is_ours() -> None:
    dropped: list[bool] = []
    abort_of({"extensions": {ABORT: lambda: dropped.append(True)}})()
    abort_of({"extensions": None})()
    abort_of({})()
    assert dropped == [True]
