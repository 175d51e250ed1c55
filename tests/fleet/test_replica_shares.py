"""Shares and service on their way from the fleet to a worker: at once, over a socket that may fail."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from dataplane.contracts.catalog import EngineSettings, Share
from dataplane.contracts.leases import Lease
from dataplane.contracts.replica import (
    AddService,
    Attach,
    ControlAnswer,
    ControlCall,
    Drain,
    GetStatus,
    MarkReady,
    Refused,
    ReplicaState,
    SetShares,
    Status,
)
from dataplane.contracts.wire import FrameReader, frame
from dataplane.fleet import smoke
from dataplane.fleet.backends import WorkerSpec
from dataplane.fleet.plan import Assignment
from dataplane.fleet.replica import Patience, Replica

pytestmark = pytest.mark.anyio
S = ReplicaState
NEVER_LOOKS = Patience(look_s=1000, start_look_s=0.01)
CHAT = Assignment("dep_chat", "ver_1", "d" * 64, "acme", "chat", EngineSettings())
ATTACH = Attach("dep_chat", "ver_1", "d" * 64, "m", "r", "chat", EngineSettings(), {"acme": Share()}, b"salt")
SHARES = SetShares({"acme": Share(cap_tokens=80)}, {"acme": Lease(0, 5)}, 1)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Worker:
    """The control socket of a worker, and its process. ``answers`` says what a kind of call gets; None: it hangs up."""

    pid = 1

    def __init__(self) -> None:
        self.state = S.WARM_IDLE
        self.answers: dict[type, ControlAnswer | None] = {}
        self.heard: list[ControlCall] = []
        self.ended = asyncio.Event()
        self.changed = asyncio.Condition()
        self.served: list[asyncio.Task[None]] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.served.append(asyncio.current_task())
        frames: FrameReader[ControlCall] = FrameReader(ControlCall)
        try:
            while data := await reader.read(65536):
                for call in frames.feed(data):
                    async with self.changed:
                        self.heard += [] if isinstance(call, GetStatus) else [call]
                        self.changed.notify_all()
                    if (answer := self._answer(call)) is None:
                        return
                    writer.write(frame(answer))
        except ConnectionError:
            pass
        finally:
            writer.transport.abort()

    def _answer(self, call: ControlCall) -> ControlAnswer | None:
        self.state = {Attach: S.WARMING, MarkReady: S.READY, Drain: S.DRAINING}.get(type(call), self.state)
        return self.answers.get(type(call), Status("rep", self.state, 0, 0, ""))

    async def until_heard(self, kind: type[ControlCall], count: int = 1) -> None:
        async with asyncio.timeout(60), self.changed:
            await self.changed.wait_for(lambda: sum(isinstance(call, kind) for call in self.heard) >= count)

    async def start(self, _: WorkerSpec) -> "Worker":
        return self

    async def wait(self) -> str:
        await self.ended.wait()
        return "exited"

    def terminate(self) -> None:
        self.ended.set()

    kill = terminate


@contextlib.asynccontextmanager
async def serving(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Replica, Worker]]:
    """A READY replica that is never looked at again unless it has something to say."""

    async def generates(*_: object) -> int:
        return 1

    monkeypatch.setattr(smoke, "generate", generates)
    worker, became = Worker(), asyncio.Condition()
    states: set[asyncio.Task[None]] = set()

    async def note() -> None:
        async with became:
            became.notify_all()

    def listen(replica: Replica, old: ReplicaState) -> None:
        states.add(asyncio.ensure_future(note()))

    spec = WorkerSpec("rep", folder / "h", folder / "c")
    replica: Any = Replica(spec, worker, NEVER_LOOKS, listen)
    async with await asyncio.start_unix_server(worker.serve, spec.control_socket):
        life = asyncio.ensure_future(replica.live())

        async def until(state: ReplicaState) -> None:
            async with asyncio.timeout(60), became:
                await became.wait_for(lambda: replica.state is state)

        await until(S.WARM_IDLE)
        replica.attach(ATTACH, CHAT, 0, None)
        await until(S.READY)
        yield replica, worker
        worker.ended.set()
        await life
        await asyncio.gather(*worker.served)
    await asyncio.gather(*states)


async def settled(condition: Callable[[], bool]) -> None:
    """Let the replica's own task take an answer that has come."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0)


async def test_new_shares_are_told_at_once_and_one_message_at_a_time(short_dir: Path, monkeypatch) -> None:
    async with serving(short_dir, monkeypatch) as (replica, worker):
        assert replica.takes_shares
        replica.set_shares(SHARES)
        assert not replica.takes_shares
        await worker.until_heard(SetShares)
        assert worker.heard[-1] == SHARES
        await settled(lambda: replica.takes_shares)
        assert (replica.shares_lost, replica.note) == (False, "")


async def test_shares_that_may_not_have_arrived_are_said_to_be_lost_and_refused_ones_are_not(
    short_dir: Path, monkeypatch
) -> None:
    async with serving(short_dir, monkeypatch) as (replica, worker):
        worker.answers[SetShares] = None
        replica.set_shares(SHARES)
        await settled(lambda: replica.takes_shares)
        assert replica.shares_lost
        assert "not in force" in replica.note
        worker.answers[SetShares] = Refused("not_allowed", "the guarantees add up to 9")
        replica.set_shares(SHARES)
        assert not replica.shares_lost
        await settled(lambda: replica.takes_shares)
        assert not replica.shares_lost
        assert "add up to 9" in replica.note
        del worker.answers[SetShares]
        replica.set_shares(SHARES)
        await settled(lambda: replica.takes_shares)
        assert (replica.state, replica.note) == (S.READY, "")


async def test_what_others_served_is_known_to_be_told_only_once_it_is_answered(short_dir: Path, monkeypatch) -> None:
    async with serving(short_dir, monkeypatch) as (replica, worker):
        worker.answers[AddService] = None
        replica.add_service({"acme": 4.0})
        await settled(lambda: replica.takes_service)
        assert (replica.told_service, replica.state) == ({}, S.READY)
        del worker.answers[AddService]
        replica.add_service({"acme": 4.0})
        await settled(lambda: replica.takes_service)
        assert replica.told_service == {"acme": 4.0}


async def test_a_replica_that_drains_still_takes_shares_and_one_that_is_stopped_does_not(
    short_dir: Path, monkeypatch
) -> None:
    async with serving(short_dir, monkeypatch) as (replica, worker):
        replica.drain("by order")
        assert replica.takes_shares
        replica.set_shares(SHARES)
        await worker.until_heard(SetShares)
        assert [type(call) for call in worker.heard[-2:]] == [Drain, SetShares]
        replica.stop("not wanted")
        await settled(lambda: replica.state is S.STOPPED)
        assert not replica.takes_shares
