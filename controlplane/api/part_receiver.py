"""Receives the parts of uploads for the local store, before Django, which keeps a whole body before it asks a view.

An address is signed (:mod:`controlplane.registry.stores.tickets`), so who may send what is known before the first byte
and without a database. The bytes are hashed on their way to the disk; a part that is not what was announced leaves
nothing. Whoever sends a part again is the one who counts: a connection that was cut may look alive here for a while.
"""

import asyncio
import json
from collections.abc import MutableMapping
from typing import Any

import structlog

from controlplane.api.errors import envelope
from controlplane.bodies import Application, Receive, Send
from controlplane.registry import stores
from controlplane.registry.stores import DigestMismatch, StoreFull, UploadGone, tickets
from controlplane.registry.stores.local import IncomingPart, LocalStore
from controlplane.registry.stores.tickets import Ticket, TicketRefused
from dataplane.contracts.headers import PUBLIC_REQUEST_ID
from dataplane.contracts.ids import Kind, new_id

SILENCE_S = 30.0
"""So long a sender may say nothing; and a part may take :data:`PART_S` in all."""
PART_S = 900.0
MAX_AT_ONCE = 256
"""So many parts come in at once, and :data:`MAX_OF_UPLOAD` of one upload: each is a connection, a file and a buffer of
the process that serves everything else, and a sender may be slow."""
MAX_OF_UPLOAD = 16
_PREFIX = "/api/v1/uploads/"
_WRITE_BYTES = 1024 * 1024
_COME_AGAIN = (429, 503)
_log = structlog.get_logger(__name__)
_Answer = tuple[int, dict[str, Any]]


class PartReceiver:
    """An ASGI application that takes parts, and leaves everything else to the one it wraps."""

    def __init__(self, application: Application) -> None:
        self._application = application
        self._receiving: dict[tuple[str, int], asyncio.Task[_Answer]] = {}

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Take the part that the address names, or pass the request on."""
        is_put = scope["type"] == "http" and scope["method"] == "PUT" and scope["path"].startswith(_PREFIX)
        store = stores.from_settings() if is_put else None
        if not isinstance(store, LocalStore):
            await self._application(scope, receive, send)
            return
        request_id = new_id(Kind.REQUEST)
        try:
            ticket = _ticket(scope)
        except TicketRefused as refusal:
            status, body = _refusal(403, "forbidden", str(refusal), request_id)
        else:
            status, body = await self._only_latest(ticket, store, receive, request_id)
        await _answer(send, status, body, request_id)

    async def _only_latest(self, ticket: Ticket, store: LocalStore, receive: Receive, request_id: str) -> _Answer:
        """Receive a part; an older request that is still at it ends."""
        place = (ticket.key, ticket.part.number)
        if refusal := self._crowded(place):
            return _refusal(*refusal, request_id)
        task = asyncio.create_task(_take(ticket, store, receive, request_id))
        if earlier := self._receiving.get(place):
            earlier.cancel()
        self._receiving[place] = task
        try:
            await asyncio.wait([task])
            return (
                _refusal(409, "superseded", "This part is being sent anew.", request_id)
                if task.cancelled()
                else (task.result())
            )
        finally:
            task.cancel()  # where the server ends this request
            if self._receiving.get(place) is task:
                del self._receiving[place]

    def _crowded(self, place: tuple[str, int]) -> tuple[int, str, str] | None:
        """Return the refusal where no other part can be taken now; sending one again is no other."""
        if place in self._receiving:
            return None
        version_id = place[0].partition("/")[0]
        if sum(key.startswith(f"{version_id}/") for key, _ in self._receiving) >= MAX_OF_UPLOAD:
            return 429, "too_many_parts", f"Send at most {MAX_OF_UPLOAD} parts of an upload at a time."
        if len(self._receiving) >= MAX_AT_ONCE:
            return 503, "overloaded", "Too many parts are being sent just now. Send this one again in a few seconds."
        return None


async def _take(ticket: Ticket, store: LocalStore, receive: Receive, request_id: str) -> _Answer:
    part = ticket.part
    try:
        incoming = store.receive(ticket.key, part)  # in a thread, a file opened for a task that ends would stay open
        try:
            await _copy(receive, incoming)
            await asyncio.to_thread(incoming.keep)
        finally:
            incoming.close()
    except DigestMismatch as error:
        return _refusal(422, "part_mismatch", str(error), request_id)
    except UploadGone as error:
        return _refusal(409, "upload_ended", str(error), request_id)
    except StoreFull as error:
        _log.warning("store failed", reason=str(error))  # which folder it is, is the operator's to read
        return _refusal(
            507, "store_full", "The store of files has no room left. Send this part again later.", request_id
        )
    except TimeoutError:
        return _refusal(408, "too_slow", "The part did not arrive in time. Send it again.", request_id)
    except _HungUpError:
        return 0, {}
    return 200, {"number": part.number, "size_bytes": part.size_bytes, "sha256": part.sha256}


class _HungUpError(Exception):
    """The sender has gone."""


async def _copy(receive: Receive, incoming: IncomingPart) -> None:
    """Write the body to ``incoming``, a megabyte at a time: few hops to a thread, little memory."""
    buffer = bytearray()
    more = True
    async with asyncio.timeout(PART_S):
        while more:
            async with asyncio.timeout(SILENCE_S):
                message = await receive()
            if message["type"] == "http.disconnect":
                raise _HungUpError
            buffer += message.get("body", b"")
            more = message.get("more_body", False)
            if len(buffer) >= _WRITE_BYTES or not more:
                await asyncio.to_thread(incoming.write, bytes(buffer))
                buffer.clear()


def _ticket(scope: MutableMapping[str, Any]) -> Ticket:
    headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
    length = headers.get(b"content-length", "")
    return tickets.admit(
        path=scope["path"],
        query=scope["query_string"].decode("latin-1"),
        checksum=headers.get(stores.CHECKSUM_HEADER.encode(), ""),
        size_bytes=int(length) if length.isascii() and length.isdecimal() and len(length) < 12 else -1,
    )


def _refusal(status: int, code: str, message: str, request_id: str) -> _Answer:
    _log.info("part refused", status=status, code=code, request_id=request_id)
    return status, envelope(code, message, {}, request_id)


async def _answer(send: Send, status: int, body: dict[str, Any], request_id: str) -> None:
    if not status:  # nobody is there to hear
        return
    raw = json.dumps(body).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(raw)),
        (PUBLIC_REQUEST_ID.lower().encode(), request_id.encode()),
    ]
    if status != 200:  # the rest of the body is not read
        headers.append((b"connection", b"close"))
    if status in _COME_AGAIN:
        headers.append((b"retry-after", b"2"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": raw})
