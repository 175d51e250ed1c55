import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from dataplane.contracts.replica import ControlCall, GetStatus, MarkReady, Refused, ReplicaState, Status
from dataplane.contracts.wire import FrameReader, frame
from dataplane.fleet.control import ControlClient, ControlLostError, ControlRefusedError

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def status(progress: int) -> Status:
    return Status(replica_id="rep-1", state=ReplicaState.READY, progress=progress, pending=0, cause="")


@asynccontextmanager
async def server(path: Path, answer) -> AsyncIterator[ControlClient]:
    served: list[asyncio.Task[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(asyncio.current_task())
        frames: FrameReader[ControlCall] = FrameReader(ControlCall)
        try:
            while data := await reader.read(65536):
                for call in frames.feed(data):
                    if (reply := await answer(call)) is None:
                        return
                    writer.write(reply)
        except ConnectionError:
            pass
        finally:
            writer.transport.abort()

    listening = await asyncio.start_unix_server(serve, path)
    client = ControlClient(path)
    async with listening:
        yield client
        client.close()
        await asyncio.gather(*served)


async def test_calls_of_several_tasks_get_each_its_own_answer(short_dir: Path) -> None:
    count = 0

    async def answer(_: ControlCall) -> bytes:
        nonlocal count
        count += 1
        await asyncio.sleep(0)
        return frame(status(count))

    async with server(short_dir / "c", answer) as client:
        answers = await asyncio.gather(*[client.call(GetStatus(), 5) for _ in range(20)])
    assert [each.progress for each in answers] == list(range(1, 21))


async def test_a_late_answer_is_never_taken_for_that_of_the_next_call(short_dir: Path) -> None:
    slow = asyncio.Event()
    count = 0

    async def answer(_: ControlCall) -> bytes:
        nonlocal count
        count += 1
        mine = count
        if mine == 1:
            await slow.wait()
        return frame(status(mine))

    async with server(short_dir / "c", answer) as client:
        with pytest.raises(ControlLostError):
            await client.call(GetStatus(), 0.05)
        slow.set()
        assert (await client.call(GetStatus(), 5)).progress == 2


async def test_a_refusal_a_broken_connection_and_a_missing_socket_are_told_apart(short_dir: Path) -> None:
    async def answer(call: ControlCall) -> bytes | None:
        return frame(Refused(code="state", message="it drains")) if isinstance(call, MarkReady) else None

    async with server(short_dir / "c", answer) as client:
        with pytest.raises(ControlRefusedError, match="it drains"):
            await client.call(MarkReady(), 5)
        with pytest.raises(ControlLostError):
            await client.call(GetStatus(), 5)
    with pytest.raises(ControlLostError):
        await ControlClient(short_dir / "none").call(GetStatus(), 5)


async def test_bytes_that_are_no_answer_break_the_connection(short_dir: Path) -> None:
    async def answer(_: ControlCall) -> bytes:
        return b"\xff\xff\xff\xff rubbish"

    async with server(short_dir / "c", answer) as client:
        with pytest.raises(ControlLostError, match="limit"):
            await client.call(GetStatus(), 5)
