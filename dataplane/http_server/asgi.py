"""ASGI's types, and what every application needs of a caller: its body within bounds, and to know that it has gone."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from dataplane.contracts.errors import ApiError, Code

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

ABORT = "pagoda.abort"
"""Key in ``scope["extensions"]`` of a function that drops the connection unflushed: an orderly close waits until what
is buffered is read, which a caller that never reads makes for ever."""
BODY_TIMEOUT_S = 30.0


class ClientGone(Exception):
    """The caller closed its connection, or does not read from it."""


async def read_body(
    scope: Scope,
    receive: Receive,
    max_bytes: int,
    *,
    timeout_s: float = BODY_TIMEOUT_S,
    hold: Callable[[int], None] = lambda size_bytes: None,
) -> bytes:
    """Collect the body of a request.

    Args:
        scope: ASGI's.
        receive: ASGI's.
        max_bytes: the limit.
        timeout_s: for all of it.
        hold: told of each part's bytes before it is kept; what it raises ends the reading.

    Raises:
        ApiError: BODY_TOO_LARGE, as soon as it is known; INVALID_REQUEST: encoded, or not whole in time.
        ClientGone: before the end.
    """
    if [value.lower() for name, value in scope["headers"] if name == b"content-encoding"] not in ([], [b"identity"]):
        raise ApiError(Code.INVALID_REQUEST, "Send the body without a Content-Encoding.", param="content-encoding")
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value) > max_bytes:
            raise _too_large(max_bytes)
    try:
        async with asyncio.timeout(timeout_s):
            return await _collect(receive, max_bytes, hold)
    except TimeoutError:
        raise ApiError(Code.INVALID_REQUEST, f"The body did not arrive within {timeout_s:g} s.") from None


async def _collect(receive: Receive, max_bytes: int, hold: Callable[[int], None]) -> bytes:
    parts: list[bytes] = []
    size_bytes = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        part: bytes = message.get("body", b"")
        size_bytes += len(part)
        if size_bytes > max_bytes:
            raise _too_large(max_bytes)
        hold(len(part))
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def _too_large(max_bytes: int) -> ApiError:
    return ApiError(Code.BODY_TOO_LARGE, f"The request body is over the limit of {max_bytes} bytes.")


async def gone(receive: Receive) -> None:
    """Return when the caller has closed its connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


def abort_of(scope: Scope) -> Callable[[], None]:
    """Return what drops the connection of ``scope``; nothing happens where the server is not ours."""
    abort: Callable[[], None] = (scope.get("extensions") or {}).get(ABORT, lambda: None)
    return abort
