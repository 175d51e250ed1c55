"""What no view is asked about: bodies without end, bodies that never come, NUL in an address."""

import asyncio
from collections.abc import AsyncIterator, MutableMapping
from typing import Any

import pytest
from django.core.asgi import get_asgi_application
from django.test import Client

from controlplane import bodies
from controlplane.bodies import MAX_BODY_BYTES, BoundedBodies, Receive, Send


class _Caller:
    """Sends a body part by part and keeps what it is answered."""

    def __init__(self, parts: AsyncIterator[bytes]) -> None:
        self._parts = parts
        self._sent = False
        self.taken_bytes = 0
        self.answers: list[MutableMapping[str, Any]] = []

    async def receive(self) -> MutableMapping[str, Any]:
        if self._sent:
            await asyncio.Event().wait()
        part = await anext(self._parts, None)
        self._sent = part is None
        self.taken_bytes += len(part or b"")
        return {"type": "http.request", "body": part or b"", "more_body": part is not None}

    async def send(self, message: MutableMapping[str, Any]) -> None:
        self.answers.append(message)

    @property
    def status(self) -> int:
        return int(self.answers[0]["status"])


async def _repeated(part: bytes, times: int) -> AsyncIterator[bytes]:
    for _ in range(times):
        yield part


async def _never() -> AsyncIterator[bytes]:
    yield b"{"
    await asyncio.Event().wait()


def _scope(path: str) -> dict[str, Any]:
    return {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
        "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "",
        "headers": [(b"host", b"127.0.0.1"), (b"transfer-encoding", b"chunked")],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8000),
    }  # fmt: skip


def _answered(caller: _Caller, path: str = "/internal/usage") -> int:
    application = BoundedBodies(get_asgi_application())
    asyncio.run(application(_scope(path), caller.receive, caller.send))
    return caller.status


def test_a_chunked_body_without_end_is_refused_before_it_is_kept() -> None:
    caller = _Caller(_repeated(b"a" * 2**20, 1000))
    assert _answered(caller) == 413
    assert caller.taken_bytes <= MAX_BODY_BYTES + 2**20
    assert len(caller.answers) == 2


def test_a_body_that_never_comes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "BODY_TIMEOUT_S", 0.05)
    assert _answered(_Caller(_never())) == 408


def test_a_body_within_the_bound_reaches_the_view() -> None:
    assert _answered(_Caller(_repeated(b"a" * 2**20, 8))) == 401


def test_waiting_for_the_caller_to_go_is_not_a_body_that_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "BODY_TIMEOUT_S", 0.05)

    async def slow(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        assert not (await receive())["more_body"]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(receive(), 0.2)
        await send({"type": "http.response.start", "status": 200})

    async def one_then_silence() -> AsyncIterator[MutableMapping[str, Any]]:
        yield {"type": "http.request", "body": b"", "more_body": False}
        await asyncio.Event().wait()

    said = one_then_silence()
    caller = _Caller(_never())
    asyncio.run(BoundedBodies(slow)(_scope("/"), lambda: anext(said), caller.send))
    assert caller.status == 200


@pytest.mark.parametrize("path", ["/api/v1/keys/%00", "/api/v1/me?tenant=%00", "/t/evil/?x=a%00b", "/%00"])
def test_nul_in_an_address_is_refused_by_name(path: str) -> None:
    answer = Client().get(path)
    assert answer.status_code == 400
    assert b"NUL" in answer.content
