"""Parts on their way in: before Django, hashed while they come, and only what was announced is kept."""

import asyncio
import hashlib
import json
import os
import socket
import threading
from collections.abc import AsyncIterator, Iterator, MutableMapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import uvicorn

from controlplane.api import part_receiver
from controlplane.api.part_receiver import PartReceiver
from controlplane.registry.stores import CHECKSUM_HEADER, Part, StoreFull
from controlplane.registry.stores.local import IncomingPart, LocalStore

KEY = "ver_01h2xcejqtf2nbrexx3vqjhp41/model.safetensors"
PIECE = os.urandom(3 * 2**20)
PART = Part(number=1, size_bytes=len(PIECE), sha256=hashlib.sha256(PIECE).hexdigest())


@pytest.fixture
def store(settings, tmp_path: Path) -> LocalStore:
    settings.PAGODA_HOME = tmp_path
    return LocalStore(tmp_path / "store")


@pytest.fixture
def upload(store: LocalStore) -> str:
    return store.begin(KEY)


class Sender:
    """One request: sends ``chunks`` and keeps the answer."""

    def __init__(self, chunks: AsyncIterator[bytes], **changes: Any) -> None:
        self._chunks = chunks
        self._over = False
        self.taken_bytes = 0
        self.messages: list[MutableMapping[str, Any]] = []
        self.scope = scope(**changes)

    async def receive(self) -> MutableMapping[str, Any]:
        if self._over:
            await asyncio.Event().wait()
        chunk = await anext(self._chunks, None)
        if chunk == b"hangs up":
            return {"type": "http.disconnect"}
        self._over = chunk is None
        self.taken_bytes += len(chunk or b"")
        return {"type": "http.request", "body": chunk or b"", "more_body": chunk is not None}

    async def send(self, message: MutableMapping[str, Any]) -> None:
        self.messages.append(message)

    async def to(self, receiver: PartReceiver) -> int:
        """Send, and return the status; 0 for none."""
        await receiver(self.scope, self.receive, self.send)
        return int(self.messages[0]["status"]) if self.messages else 0

    @property
    def body(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.messages[1]["body"])
        return answer


def scope(
    part: Part = PART, *, key: str = KEY, method: str = "PUT", path: str | None = None, length: int | None = None
) -> dict[str, Any]:
    target = LocalStore(Path("/")).target(f"{key} ", part, expires_s=60)
    url = urlsplit(target.url)
    return {
        "type": "http", "method": method, "path": path or url.path, "query_string": url.query.encode(),
        "headers": [
            (b"content-length", str(part.size_bytes if length is None else length).encode()),
            (CHECKSUM_HEADER.encode(), target.headers[CHECKSUM_HEADER].encode()),
        ],
    }  # fmt: skip


async def in_chunks(data: bytes, size_bytes: int = 65_536) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size_bytes):
        yield data[start : start + size_bytes]


async def passed_on(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 299})


def receiver() -> PartReceiver:
    return PartReceiver(passed_on)


def leftovers(store: LocalStore) -> list[Path]:
    return [path for path in store.root.rglob("*") if path.is_file()]


def test_a_part_is_kept_as_it_was_announced(store, upload):
    sender = Sender(in_chunks(PIECE))
    assert asyncio.run(sender.to(receiver())) == 200
    assert sender.body == {"number": 1, "size_bytes": len(PIECE), "sha256": PART.sha256}
    (arrived,) = store.arrived(upload)
    assert arrived.is_the(PART)
    assert store.seal(upload, [PART]) == PART.sha256


def test_a_part_sent_twice_is_one_part(store, upload):
    for _ in range(2):
        assert asyncio.run(Sender(in_chunks(PIECE)).to(receiver())) == 200
    assert len(leftovers(store)) == 1


def test_little_of_a_part_is_in_memory_at_a_time(store, upload, monkeypatch):
    written: list[int] = []
    write = IncomingPart.write

    def counting(self: IncomingPart, chunk: bytes) -> None:
        written.append(len(chunk))
        write(self, chunk)

    monkeypatch.setattr(IncomingPart, "write", counting)
    assert asyncio.run(Sender(in_chunks(PIECE)).to(receiver())) == 200
    assert len(written) < 8
    assert max(written) <= 2**20 + 65_536


@pytest.mark.parametrize(
    "data",
    [PIECE[:-1] + bytes([PIECE[-1] ^ 1]), PIECE[:-1], PIECE + b"x"],
    ids=["a flipped bit", "too few", "too many"],
)
def test_other_bytes_leave_nothing(store, upload, data):
    sender = Sender(in_chunks(data))
    assert asyncio.run(sender.to(receiver())) == 422
    assert sender.body["error"]["code"] == "part_mismatch"
    assert leftovers(store) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"path": "/api/v1/uploads/ver_01h2xcejqtf2nbrexx3vqjhp41/files/model.safetensors/parts/2"},
        {"path": "/api/v1/uploads/nonsense"},
        {"length": len(PIECE) + 1},
        {"part": Part(1, 10**9, PART.sha256), "length": len(PIECE)},
    ],
)
def test_what_no_address_admits_is_refused_before_its_first_byte(store, upload, changes):
    sender = Sender(in_chunks(PIECE), **changes)
    assert asyncio.run(sender.to(receiver())) == 403
    assert sender.taken_bytes == 0
    assert sender.body["error"]["code"] == "forbidden"
    assert (b"connection", b"close") in sender.messages[0]["headers"]
    assert leftovers(store) == []


def test_everything_else_is_passed_on(store, settings):
    assert asyncio.run(Sender(in_chunks(b""), path="/api/v1/me").to(receiver())) == 299
    assert asyncio.run(Sender(in_chunks(b""), method="GET").to(receiver())) == 299
    settings.PAGODA_STORE_URL = "s3://bucket"
    assert asyncio.run(Sender(in_chunks(PIECE)).to(receiver())) == 299


def test_a_caller_that_hangs_up_leaves_nothing_and_gets_nothing(store, upload):
    async def cut() -> AsyncIterator[bytes]:
        yield PIECE[: 2 * 2**20]
        yield b"hangs up"

    sender = Sender(cut())
    assert asyncio.run(sender.to(receiver())) == 0
    assert leftovers(store) == []


def test_a_caller_that_falls_silent_is_let_go(store, upload, monkeypatch):
    async def silent() -> AsyncIterator[bytes]:
        yield PIECE[:1000]
        await asyncio.Event().wait()

    monkeypatch.setattr(part_receiver, "SILENCE_S", 0.05)
    assert asyncio.run(Sender(silent()).to(receiver())) == 408
    assert leftovers(store) == []


def test_a_caller_that_dawdles_is_let_go(store, upload, monkeypatch):
    async def dawdling() -> AsyncIterator[bytes]:
        for _ in range(1_000_000):
            yield b"x"
            await asyncio.sleep(0)

    monkeypatch.setattr(part_receiver, "PART_S", 0.05)
    assert asyncio.run(Sender(dawdling()).to(receiver())) == 408
    assert leftovers(store) == []


def test_who_sends_a_part_again_is_not_kept_waiting_by_a_dead_connection(store, upload):
    async def story() -> None:
        shared, begun = receiver(), asyncio.Event()

        async def dead() -> AsyncIterator[bytes]:
            yield PIECE[:1000]
            begun.set()
            await asyncio.Event().wait()

        earlier = Sender(dead())
        first = asyncio.create_task(earlier.to(shared))
        await begun.wait()
        assert await Sender(in_chunks(PIECE)).to(shared) == 200
        assert await first == 409
        assert earlier.body["error"]["code"] == "superseded"

    asyncio.run(story())
    assert len(leftovers(store)) == 1
    (arrived,) = store.arrived(upload)
    assert arrived.is_the(PART)


@pytest.mark.parametrize(
    ("bound", "refused", "code"), [("MAX_OF_UPLOAD", 429, "too_many_parts"), ("MAX_AT_ONCE", 503, "overloaded")]
)
def test_slow_senders_take_no_more_than_their_places(store, upload, monkeypatch, bound, refused, code):
    """A tenant that holds every connection that it has an address for would leave none to sign in with."""
    monkeypatch.setattr(part_receiver, bound, 3)
    other_key = "ver_01h2xcejqtf2nbrexx3vqjhp42/model.safetensors"
    store.begin(other_key)

    async def story() -> None:
        shared, begun = receiver(), asyncio.Semaphore(0)

        async def slow() -> AsyncIterator[bytes]:
            yield b"x"
            begun.release()
            await asyncio.Event().wait()

        def part(number: int) -> Part:
            return Part(number, PART.size_bytes, PART.sha256)

        holding = [asyncio.create_task(Sender(slow(), part=part(number)).to(shared)) for number in (2, 3, 4)]
        for _ in holding:
            await begun.acquire()
        late = Sender(in_chunks(PIECE))
        assert await late.to(shared) == refused
        assert (late.body["error"]["code"], late.taken_bytes) == (code, 0)
        assert (b"retry-after", b"2") in late.messages[0]["headers"]
        others = await Sender(in_chunks(PIECE), key=other_key).to(shared)
        assert others == (200 if bound == "MAX_OF_UPLOAD" else 503)
        assert await Sender(in_chunks(PIECE), part=part(4)).to(shared) == 200, "sent anew it takes its own place"
        assert await Sender(in_chunks(PIECE)).to(shared) == 200, "what has ended makes room"
        for task in holding:
            task.cancel()
        await asyncio.gather(*holding, return_exceptions=True)

    asyncio.run(story())


def test_a_server_that_stops_leaves_nothing(store, upload):
    async def story() -> None:
        begun = asyncio.Event()

        async def endless() -> AsyncIterator[bytes]:
            yield PIECE[:1000]
            begun.set()
            await asyncio.Event().wait()

        request = asyncio.create_task(Sender(endless()).to(receiver()))
        await begun.wait()
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request

    asyncio.run(story())
    assert leftovers(store) == []


def test_a_part_of_an_upload_that_has_ended_is_a_conflict(store, upload):
    store.discard(upload)
    sender = Sender(in_chunks(PIECE))
    assert asyncio.run(sender.to(receiver())) == 409
    assert sender.body["error"]["code"] == "upload_ended"


def test_a_full_disk_is_named(store, upload, monkeypatch):
    def full(_self: IncomingPart, _chunk: bytes) -> None:
        raise StoreFull("no room is left under /srv/our/folder; free some disk space and try again")

    monkeypatch.setattr(IncomingPart, "write", full)
    sender = Sender(in_chunks(PIECE))
    assert asyncio.run(sender.to(receiver())) == 507
    assert sender.body["error"]["code"] == "store_full"
    assert "/srv" not in sender.body["error"]["message"]
    assert leftovers(store) == []


@pytest.fixture
def served(store: LocalStore) -> Iterator[int]:
    """The receiver behind the product's own HTTP server; the port."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        receiver(),
        http="dataplane.http_server.protocol:BoundedProtocol",
        lifespan="off",
        log_level="error",
        access_log=False,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    yield int(listener.getsockname()[1])
    server.should_exit = True
    thread.join()
    listener.close()


def test_ten_cuts_of_real_connections_cost_one_part_each(store, upload, served):
    target = store.target(upload, PART, expires_s=60)
    headers = {**target.headers, "content-length": str(len(PIECE))}
    for _ in range(10):
        with socket.create_connection(("127.0.0.1", served)) as connection:
            head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            connection.sendall(f"PUT {target.url} HTTP/1.1\r\nhost: x\r\n{head}\r\n".encode() + PIECE[: 2**20])
    with httpx.Client(base_url=f"http://127.0.0.1:{served}", trust_env=False) as client:
        assert client.put(target.url, headers=dict(target.headers), content=PIECE).status_code == 200
    (arrived,) = store.arrived(upload)
    assert arrived.is_the(PART)
    assert store.seal(upload, [PART]) == PART.sha256


def test_a_connection_that_was_refused_is_closed_with_its_body_unread(store, upload, served):
    with socket.create_connection(("127.0.0.1", served)) as connection:
        target = f"/api/v1/uploads/{KEY.replace('/', '/files/')}/parts/1?expires=9999999999&signature=none"
        connection.sendall(f"PUT {target} HTTP/1.1\r\nhost: x\r\ncontent-length: 100000000\r\n\r\n".encode())
        connection.settimeout(10)
        answer = b""
        while chunk := connection.recv(65_536):
            answer += chunk
    assert answer.startswith(b"HTTP/1.1 403 ")
