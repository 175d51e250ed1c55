"""The engine process: one loop that takes messages, steps while there is work, and else sleeps on its socket.

``python -m dataplane.worker.engine_process --fd N`` is started by the server with one end of a socket pair. It imports
torch at once, so that a warm idle process only has to attach weights. It ends when the server does: by the end of the
stream, and by the kernel's word (PDEATHSIG) where a long step would not see that.
"""

import argparse
import contextlib
import gc
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Sequence

import structlog

from dataplane import logs, sandbox
from dataplane.contracts import failpoints
from dataplane.contracts.errors import ApiError, Code
from dataplane.contracts.generation import (
    AbortSequence,
    CountService,
    DumpEngine,
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
    TenantsSet,
    ToEngine,
    failed,
)
from dataplane.contracts.wire import FrameReader, frame
from dataplane.engine.engine import Engine
from dataplane.engine.intake import Refusal
from dataplane.engine.runner import Row, RowResult, Runner
from dataplane.model.parallel.group import RankLost
from dataplane.model.parallel.ranks import end_process
from dataplane.worker.engine_setup import Pool, set_up
from dataplane.worker.masks import Grammar, Masks

_log = structlog.get_logger(__name__)
_READ_BYTES = 1 << 20
_TENANTS_EVERY_S = 0.25
_BLOCKED_LOOK_S = 0.05
"""How late a deadline is seen while all that waits, waits for a lease."""


class ServerGone(Exception):
    """The server closed its end."""


class Channel:
    """Frames to and from the server over a blocking socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._frames: FrameReader[ToEngine] = FrameReader(ToEngine)
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)

    def send(self, message: FromEngine) -> None:
        """Write one frame; blocks while the server does not read.

        Raises:
            ServerGone: nobody is there to read it.
        """
        try:
            self._connection.sendall(frame(message))
        except (BrokenPipeError, ConnectionResetError) as error:
            raise ServerGone from error

    def receive(self, *, wait_s: float | None, waking_fd: int = -1) -> list[ToEngine]:
        """Return the messages that are there; where there are none, sleep until one comes.

        Args:
            wait_s: how long to sleep at most; None is for ever.
            waking_fd: another descriptor that ends the sleep when it can be read; -1 is none.

        Raises:
            ServerGone: the end of the stream.
        """
        messages: list[ToEngine] = []
        timeout_ms = None if wait_s is None else wait_s * 1000
        if timeout_ms != 0 and waking_fd >= 0:
            poll = select.poll()
            poll.register(self._connection, select.POLLIN)
            poll.register(waking_fd, select.POLLIN)
            poll.poll(timeout_ms)
            timeout_ms = 0
        while self._poll.poll(0 if messages else timeout_ms):
            data = self._connection.recv(_READ_BYTES)
            if not data:
                raise ServerGone
            messages += self._frames.feed(data)
        return messages


class Stopwatch:
    """A runner that notes how long the model computes, and how many rows, since it was restarted."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.restart()

    def restart(self) -> None:
        """Forget what was noted."""
        self.model_ms = 0.0
        self.num_rows = 0

    def execute(self, rows: Sequence[Row]) -> list[RowResult]:
        """Compute ``rows``; see :class:`dataplane.engine.runner.Runner`."""
        started_s = time.perf_counter()
        self.num_rows += len(rows)
        try:
            return self._runner.execute(rows)
        finally:
            self.model_ms += (time.perf_counter() - started_s) * 1000


class LoadedEngine:
    """An engine with its model: takes the messages that need one, and steps.

    A request with a grammar is held until its grammar is compiled, so that no step waits for that.
    """

    def __init__(self, channel: Channel, engine: Engine, stopwatch: Stopwatch, pool: Pool, masks: Masks) -> None:
        self._channel = channel
        self._engine = engine
        self._stopwatch = stopwatch
        self._pool = pool
        self._masks = masks
        self._held: dict[str, tuple[Submit, Grammar]] = {}
        self._refused: list[SequenceDelta] = []
        self._changed = True
        self._blocked = False
        self._tenants_sent_s = float("-inf")

    @property
    def has_work(self) -> bool:
        """Whether anything is to be done or to be delivered."""
        return self._engine.has_work

    @property
    def wait_s(self) -> float | None:
        """How long the next step can wait for a message; None for as long as none comes."""
        if not self.has_work:
            return None
        return _BLOCKED_LOOK_S if self._blocked else 0

    def take(self, message: ToEngine) -> None:
        """Act on one message."""
        self._changed = True
        match message:
            case Submit():
                self._submit(message)
            case AbortSequence(request_id):
                if self._unheld(request_id) is None:
                    self._engine.abort(request_id)
            case SetTenants():
                self._set_tenants(message)
            case CountService(units):
                self._engine.add_service(units)
            case ReleasePool():
                self._change_pool(self._release_pool)
            case RestorePool():
                self._change_pool(self._pool.restore)
            case DumpEngine():
                self._channel.send(self._engine.dump())
            case LoadModel():
                raise RuntimeError("a process that holds a model is never given another")

    @property
    def masks(self) -> Masks:
        """What says which tokens a grammar allows: it wakes this process as its server does."""
        return self._masks

    def _release_pool(self) -> None:
        self._masks.stop()
        self._engine.clear_cache()
        self._pool.release()

    def _change_pool(self, change: Callable[[], None]) -> None:
        try:
            change()
        except (MemoryError, RuntimeError) as error:
            self._channel.send(PoolChanged(error=str(error)))
        else:
            self._channel.send(PoolChanged())

    def _set_tenants(self, message: SetTenants) -> None:
        try:
            self._engine.set_tenants(message.tenants, message.leases)
        except ValueError as error:
            # Shares are checked where they are set; should our pool be smaller than was reckoned, the old ones hold.
            _log.error("shares_refused", error=str(error))
        else:
            self._channel.send(TenantsSet(number=message.number, tenants=self._engine.tenant_loads()))

    def _submit(self, request: Submit) -> None:
        if request.sampling.grammar:
            grammar = self._masks.grammar(request.tenant_id, request.sampling.grammar)
            grammar.users += 1
            self._held[request.request_id] = (request, grammar)
        else:
            self._enqueue(request)

    def _unheld(self, request_id: str) -> Submit | None:
        """Hold a request no longer; None if it was not."""
        request, grammar = self._held.pop(request_id, (None, None))
        if grammar is not None:
            grammar.users -= 1
        return request

    def _release_compiled(self) -> None:
        for request_id, (request, grammar) in list(self._held.items()):
            if not grammar.is_known:
                continue
            if grammar.failure:
                error = ApiError(Code.GRAMMAR_FAILED, f"the grammar: {grammar.failure}")
                self._refused.append(failed(request_id, error))
            else:
                self._enqueue(request)
            self._unheld(request_id)

    def _enqueue(self, request: Submit) -> None:
        try:
            self._engine.submit(request)
        except Refusal as refusal:
            self._refused.append(failed(request.request_id, refusal))

    def step(self) -> None:
        """Run one step if there is work, and report whatever changed."""
        started_s = time.perf_counter()
        self._stopwatch.restart()
        self._masks.poll()
        if self._held:
            self._release_compiled()
            self._changed |= bool(self._refused)
        deltas, self._refused = self._refused, []
        worked = self.has_work
        if worked:
            failpoints.hit("engine.step")
            deltas += self._engine.step()
            # Only a cap that is leased can keep an engine from everything it has to do: it waits for more of it.
            self._blocked = not (deltas or self._stopwatch.num_rows)
        if not (worked or self._changed):
            return
        self._changed = False
        now_s = time.perf_counter()
        due = now_s - self._tenants_sent_s >= _TENANTS_EVERY_S or not self.has_work
        if due:
            self._tenants_sent_s = now_s
        self._channel.send(
            StepDone(
                deltas=deltas,
                load=self._engine.load(),
                step_ms=(now_s - started_s) * 1000,
                model_ms=self._stopwatch.model_ms,
                tenants=self._engine.tenant_loads() if due else None,
            )
        )


def serve(connection: socket.socket) -> None:
    """Work for the server at the other end of ``connection`` until it is gone."""
    channel = Channel(connection)
    _keep_for_good()
    channel.send(LoadProgress(phase="imported", done_bytes=0, total_bytes=0))
    loaded: LoadedEngine | None = None
    while True:
        wait_s = loaded.wait_s if loaded is not None else None
        waking_fd = loaded.masks.fileno() if loaded is not None else -1
        for message in channel.receive(wait_s=wait_s, waking_fd=waking_fd):
            if loaded is not None:
                loaded.take(message)
            elif isinstance(message, LoadModel):
                loaded = _load(channel, message)
            else:
                raise RuntimeError(f"{type(message).__name__} came before a model")
        if loaded is not None:
            loaded.step()


def _load(channel: Channel, request: LoadModel) -> LoadedEngine | None:
    started_s = time.perf_counter()

    def progress(phase: str, done_bytes: int, total_bytes: int) -> None:
        channel.send(LoadProgress(phase=phase, done_bytes=done_bytes, total_bytes=total_bytes))

    failpoints.arm(request.failpoints)
    try:
        setup = set_up(request, progress)
        stopwatch = Stopwatch(setup.runner)
        masks = setup.make_masks()
        engine = setup.make_engine(stopwatch, masks)
    except ServerGone:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a folder does to the loader is a reason to report, not a crash
        channel.send(LoadFailed(message=str(error) or type(error).__name__))
        return None
    _keep_for_good()
    channel.send(
        Loaded(
            context_tokens=setup.context_tokens,
            load=engine.load(),
            kernels=setup.kernels,
            load_ms=round((time.perf_counter() - started_s) * 1000),
        )
    )
    return LoadedEngine(channel, engine, stopwatch, setup.pool, masks)


def _keep_for_good() -> None:
    """Take what is there now out of all collections to come.

    A full one would walk torch and the pool's blocks, and hold up every stream for a quarter of a second.
    """
    gc.collect()
    gc.freeze()


def main() -> None:
    """Entry point of the process."""
    arguments = argparse.ArgumentParser(description="The engine process of a worker; started by its server.")
    arguments.add_argument("--fd", type=int, required=True, help="the socket to the server")
    # A terminal's Ctrl-C and a supervisor's SIGTERM reach the whole group; only the server decides when this ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sandbox.die_with_parent()
    logs.configure()
    with contextlib.suppress(ServerGone):
        try:
            serve(socket.socket(fileno=arguments.parse_args().fd))
        except RankLost as error:
            end_process(str(error))
    os._exit(0)  # nothing is left to save, and tearing down torch takes half a second


if __name__ == "__main__":
    main()
