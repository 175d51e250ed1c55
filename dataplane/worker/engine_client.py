"""The server's end of the engine process: starts it, sends it work, hands out what it produces, notices its death."""

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping

import structlog

from dataplane.contracts import probes
from dataplane.contracts.errors import ApiError, Code
from dataplane.contracts.generation import (
    CONVERT,
    AbortSequence,
    CountService,
    DumpEngine,
    EngineDump,
    EngineLoad,
    FromEngine,
    Loaded,
    LoadFailed,
    LoadModel,
    LoadProgress,
    PoolChanged,
    ReleasePool,
    RestorePool,
    SequenceDelta,
    SetTenants,
    StepDone,
    Submit,
    TenantLoad,
    TenantsSet,
    ToEngine,
    failed,
)
from dataplane.contracts.wire import FrameError, FrameReader, frame

_EXIT_WAIT_S = 5.0
_DUMP_WAIT_S = 5.0
_THREADING = {"OMP_WAIT_POLICY": "PASSIVE"}
"""OpenMP's threads sleep where they wait for each other. Spinning, they hold the cores that the others need whenever
anything else runs: with the machine's load at three times its cores, tokens/s fell to a tenth."""
_SERVERS_OWN = frozenset({"PAGODA_INTERNAL_SECRET"})
"""With it usage is shipped and the catalog read; an engine does neither."""
_log = structlog.get_logger(__name__)


def engine_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of an engine whose server has ``environ``."""
    return {**_THREADING, **{name: value for name, value in environ.items() if name not in _SERVERS_OWN}}


class LoadError(Exception):
    """The engine process could not load the model; the sentence says why."""


class SequenceFeed:
    """What the engine says of the sequences of one request, collected until its reader takes it.

    The reader may be as slow as its client: what waits here is at most the sequences' tokens, which max_tokens bounds.
    """

    def __init__(self, sequence_ids: list[str], on_delta: Callable[[SequenceDelta], None]) -> None:
        self.sequence_ids = sequence_ids
        self._on_delta = on_delta
        self._deltas: list[SequenceDelta] = []
        self._arrived = asyncio.Event()

    def push(self, delta: SequenceDelta) -> None:
        """Add ``delta``."""
        self._on_delta(delta)
        self._deltas.append(delta)
        self._arrived.set()

    async def take(self) -> list[SequenceDelta]:
        """Wait for deltas and return all there are."""
        await self._arrived.wait()
        self._arrived.clear()
        taken, self._deltas = self._deltas, []
        return taken


class _Connection(asyncio.Protocol):
    """The stream from an engine process: a frame is taken the moment it is whole, without a task to wake."""

    _transport: asyncio.Transport

    def __init__(self, take: Callable[[FromEngine], None], lose: Callable[[], None]) -> None:
        self._take = take
        self._lose = lose
        self._frames: FrameReader[FromEngine] = FrameReader(FromEngine)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._frames.feed(data):
                self._take(message)
        except FrameError:
            _log.exception("engine_frame_unreadable")
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._lose()


class EngineClient:
    """One engine process.

    ``progress`` grows with everything it does. ``lost`` is set when it is gone, whatever the reason; by then every
    feed has got its error.
    """

    def __init__(self) -> None:
        self.converted = False
        self.imported = asyncio.Event()
        self.lost = asyncio.Event()
        self.progress = 0
        self.progressed_s = time.monotonic()
        self.load: EngineLoad | None = None
        self.tenants: list[TenantLoad] = []
        self.shares_number = 0
        self.phase = "starting"
        self.step_s = 0.0
        self.model_s = 0.0
        self._feeds: dict[str, SequenceFeed] = {}
        self._probing: set[str] = set()
        self._loading: asyncio.Future[Loaded] | None = None
        self._dumps: list[asyncio.Future[EngineDump]] = []
        self._pool_changes: list[asyncio.Future[PoolChanged]] = []
        self._transport: asyncio.Transport | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id; 0 before the start."""
        return self._process.pid if self._process else 0

    @property
    def num_pending(self) -> int:
        """Sequences that the engine has not finished, but for those of probes, and a load that goes on.

        By the engine's own count where that is higher: an engine that hangs still holds what its callers gave up.
        """
        held = self.load.num_running + self.load.num_waiting if self.load is not None else 0
        return max(len(self._feeds) - len(self._probing), held) + (self._loading is not None)

    async def start(self) -> None:
        """Start the process; :attr:`imported` is set once its libraries are there."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "dataplane.worker.engine_process", "--fd", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr,
                env=engine_environment(os.environ),
            )
        connection = _Connection(self._take, self._lose)
        self._transport, _ = await asyncio.get_running_loop().create_unix_connection(lambda: connection, sock=ours)

    async def load_model(self, request: LoadModel) -> Loaded:
        """Load a model.

        Raises:
            LoadError: it cannot be loaded, or the process died of it.
        """
        self._loading = asyncio.get_running_loop().create_future()
        self._progressed()
        try:
            self._send(request)
            return await self._loading
        finally:
            self._loading = None

    def submit(self, request: Submit, on_delta: Callable[[SequenceDelta], None]) -> SequenceFeed:
        """Hand a request to the engine.

        Raises:
            ApiError: the engine is gone, or the same request is running already.
        """
        if self.lost.is_set():
            raise ApiError(Code.REPLICA_LOST, "the model's process has ended; try again")
        if request.request_id in self._feeds:
            raise ApiError(Code.INVALID_REQUEST, "this attempt of the request is running here already")
        if not self.num_pending:
            self.progressed_s = time.monotonic()  # idle time is no stall
        feed = SequenceFeed(request.sequence_ids(), on_delta)
        self._feeds.update(dict.fromkeys(feed.sequence_ids, feed))
        if request.tenant_id in probes.TENANTS:
            self._probing.update(feed.sequence_ids)
        self._send(request)
        return feed

    def abort(self, feed: SequenceFeed, sequence_id: str | None = None) -> None:
        """End a sequence that nobody waits for any more; without an id all of the request."""
        for ended in feed.sequence_ids if sequence_id is None else [sequence_id]:
            if self._forget(ended) and not self.lost.is_set():
                self._send(AbortSequence(request_id=ended))

    def fail(self, sequence_id: str, error: ApiError) -> bool:
        """End the request of a running sequence with an error for its caller; False when there is none of that id."""
        feed = self._feeds.get(sequence_id)
        if feed is None:
            return False
        self.abort(feed)
        feed.push(failed(sequence_id, error))
        return True

    def running_ids(self) -> list[str]:
        """Return the ids of the sequences that have not ended."""
        return list(self._feeds)

    def fail_all(self, error: ApiError) -> None:
        """End everything that runs with an error."""
        for sequence_id in self.running_ids():
            self.fail(sequence_id, error)

    def set_tenants(self, message: SetTenants) -> None:
        """Change the shares; :attr:`shares_number` says which are in force."""
        self._send(message)

    def count_service(self, message: CountService) -> None:
        """Count what other replicas served."""
        self._send(message)

    async def change_pool(self, message: ReleasePool | RestorePool) -> None:
        """Release or restore the KV pool, and return when that is done.

        Raises:
            LoadError: it cannot be, or the process is gone.
        """
        waiter: asyncio.Future[PoolChanged] = asyncio.get_running_loop().create_future()
        self._pool_changes.append(waiter)
        self._send(message)
        if self.lost.is_set():
            raise LoadError("the engine process has ended")
        changed = await waiter
        if changed.error:
            raise LoadError(changed.error)

    async def dump(self) -> EngineDump:
        """Return the engine's own dump, after the step that runs.

        Raises:
            LoadError: the process is gone.
            TimeoutError: the step takes too long.
        """
        waiter: asyncio.Future[EngineDump] = asyncio.get_running_loop().create_future()
        self._dumps.append(waiter)
        self._send(DumpEngine())
        async with asyncio.timeout(_DUMP_WAIT_S):
            return await waiter

    async def stop(self) -> int:
        """Close the stream, which ends the process; kill it if it does not. Returns its exit status."""
        if self._process is None:
            return 0
        if self._transport is not None:
            self._transport.abort()
            await self.lost.wait()
        try:
            return await asyncio.to_thread(self._process.wait, _EXIT_WAIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return await asyncio.to_thread(self._process.wait)

    def _send(self, message: ToEngine) -> None:
        if self._transport is not None and not self.lost.is_set():
            self._transport.write(frame(message))

    def _progressed(self) -> None:
        self.progress += 1
        self.progressed_s = time.monotonic()

    def _take(self, message: FromEngine) -> None:
        self._progressed()
        match message:
            case StepDone():
                self.load = message.load
                self.step_s += message.step_ms / 1000
                self.model_s += message.model_ms / 1000
                self.tenants = self.tenants if message.tenants is None else message.tenants
                for delta in message.deltas:
                    self._deliver(delta)
            case LoadProgress(phase, done_bytes, total_bytes):
                self.converted = self.converted or phase == CONVERT
                self.phase = f"{phase} {100 * done_bytes // total_bytes} %" if total_bytes else phase
                self.imported.set()
            case Loaded(load=load):
                self.load = load
                if self._loading is not None and not self._loading.done():
                    self._loading.set_result(message)
            case LoadFailed(reason):
                if self._loading is not None and not self._loading.done():
                    self._loading.set_exception(LoadError(reason))
            case TenantsSet():
                self.shares_number, self.tenants = message.number, message.tenants
            case PoolChanged():
                change = self._pool_changes.pop(0)
                if not change.done():
                    change.set_result(message)
            case EngineDump():
                waiter = self._dumps.pop(0)
                if not waiter.done():
                    waiter.set_result(message)

    def _deliver(self, delta: SequenceDelta) -> None:
        feed = self._feeds.get(delta.request_id)
        if feed is None:
            return  # aborted while its last tokens were under way
        if delta.finish_reason is not None:
            self._forget(delta.request_id)
        feed.push(delta)

    def _forget(self, sequence_id: str) -> bool:
        self._probing.discard(sequence_id)
        return self._feeds.pop(sequence_id, None) is not None

    def _lose(self) -> None:
        error = ApiError(Code.REPLICA_LOST, "the model's process ended while it worked on this request; try again")
        self.lost.set()
        self.fail_all(error)
        waiters: list[asyncio.Future[EngineDump] | asyncio.Future[PoolChanged] | asyncio.Future[Loaded]] = [
            *self._dumps,
            *self._pool_changes,
        ]
        if self._loading is not None:
            waiters.append(self._loading)
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(LoadError(error.message))
