"""One replica's life, from the start of its process to its end: one task that watches it, and the commands to it.

    STARTING ── answers ──> WARM_IDLE ── attach ──> LOADING ── loaded ──> WARMING ── a real generation ──> READY
        READY ── sleep ──> ASLEEP ── wake ──> WARMING ── a real generation ──> READY
        any of them ── drain, stop ──> DRAINING ──> STOPPED          any of them ── death, hang, refusal ──> STOPPED

The worker reports its own state; this side mirrors it, except for READY, which only a generation through the serving
path earns, and DRAINING and ASLEEP, which are shown before the worker hears of them, so that no gateway sends more
meanwhile.
"""

import asyncio
import time
from collections.abc import Mapping
from typing import Protocol

import msgspec
import structlog

from dataplane.contracts.replica import (
    AddService,
    Attach,
    ControlCall,
    Drain,
    GetStatus,
    MarkReady,
    ReplicaState,
    SetShares,
    Sleep,
    Status,
    Wake,
)
from dataplane.fleet import smoke
from dataplane.fleet.backends import Backend, Process, StartError, WorkerSpec
from dataplane.fleet.control import ControlClient, ControlLostError, ControlRefusedError
from dataplane.fleet.plan import Assignment, ReplicaView
from dataplane.fleet.starts import Need
from dataplane.fleet.watchdog import Watchdog

_LOADING = frozenset({ReplicaState.LOADING, ReplicaState.WARMING})
_PROGRESS_DUE = _LOADING | {ReplicaState.STARTING}
_TAKES_SHARES = frozenset({ReplicaState.WARMING, ReplicaState.READY, ReplicaState.ASLEEP, ReplicaState.DRAINING})
_STATUS_TIMEOUT_S = 1.0
_SHARES_TIMEOUT_S = 1.0
"""Answered at once, like a status, and told again where it is not: a replica that hangs is to be seen all the same."""
_CALL_TIMEOUT_S = 5.0
_POOL_TIMEOUT_S = 30.0
"""To give KV memory back, or to take it."""
_log = structlog.get_logger(__name__)


class Patience(msgspec.Struct, frozen=True):
    """How long a replica may go without progress, by phase, and the pace of looking; seconds."""

    look_s: float = 0.25
    start_look_s: float = 0.05
    start_s: float = 120.0
    load_s: float = 60.0
    hang_s: float = 8.0
    drain_s: float = 30.0
    stop_s: float = 10.0


class Listener(Protocol):
    """Hears of each state change, after it happened."""

    def __call__(self, replica: "Replica", old: ReplicaState) -> None:
        """Take note; the replica carries its new state and the cause."""


class _EndedError(Exception):
    """The replica's life is over; the sentence says why."""


class Replica:
    """A replica of this node. Public attributes are for reading; changes go through the methods."""

    def __init__(self, spec: WorkerSpec, backend: Backend, patience: Patience, listener: Listener) -> None:
        self.spec = spec
        self.state = ReplicaState.COLD
        self.cause = ""
        self.since_ms = 0
        self.assignment: Assignment | None = None
        self.status: Status | None = None
        self.note = ""
        self.pid = 0
        self.restarts = 0
        self.loaded_in_ms = 0
        self.first_token_ms = 0
        self.need: Need | None = None
        self.shares_lost = False
        self.told_service: Mapping[str, float] = {}
        self.ending = False
        self.healthy_s = 0.0
        self._backend = backend
        self._patience = patience
        self._listener = listener
        self._control = ControlClient(spec.control_socket)
        self._commands: asyncio.Queue[ControlCall | smoke.SmokeError] = asyncio.Queue()
        self._watchdog = Watchdog()
        self._process: Process | None = None
        self._verifying: asyncio.Task[None] | None = None
        self._sleeps = False
        self._stopping = False
        self._being_told: set[type[ControlCall]] = set()
        self._tokens = 0
        self._end_cause = ""
        self._ends_by_s: float | None = None
        self._attached_at_s = 0.0
        self.entered_at_s = time.monotonic()

    @property
    def replica_id(self) -> str:
        """The id of this process, from its start to its end."""
        return self.spec.replica_id

    @property
    def view(self) -> ReplicaView:
        """What the planner sees."""
        pending, memory_bytes = (self.status.pending, self.status.memory_bytes) if self.status else (0, 0)
        return ReplicaView(self.replica_id, self.state, self.assignment, self.ending, pending, memory_bytes)

    @property
    def in_state_s(self) -> float:
        """Seconds since the latest state change."""
        return time.monotonic() - self.entered_at_s

    def has_worked(self) -> bool:
        """Say whether requests run, or ran since this was asked last."""
        if self.status is None or self.status.load is None:
            return False
        before, self._tokens = self._tokens, self.status.load.prompt_tokens + self.status.load.generation_tokens
        return self.status.pending > 0 or self._tokens != before

    # --- commands

    def attach(self, message: Attach, assignment: Assignment, restarts: int, need: Need | None) -> None:
        """Load ``assignment``; only for a WARM_IDLE replica that never held weights."""
        self.need = need
        self.assignment = assignment
        self.restarts = restarts
        self._attached_at_s = time.monotonic()
        self._become(ReplicaState.LOADING, f"loads version {assignment.version_id}")
        self._commands.put_nowait(message)

    @property
    def takes_shares(self) -> bool:
        """Whether it can be told shares: one message at a time, and also while it drains, for what it gives back."""
        return self.state in _TAKES_SHARES and SetShares not in self._being_told and not self._stopping

    def set_shares(self, message: SetShares) -> None:
        """Tell the replica its tenants' shares; :attr:`shares_lost` says afterwards that they may not have arrived."""
        self.shares_lost = False
        self._tell(message)

    @property
    def takes_service(self) -> bool:
        """Whether it can be told what others served."""
        return AddService not in self._being_told

    def add_service(self, units: dict[str, float]) -> None:
        """Tell the replica what others served; :attr:`told_service` is then that, if it arrived."""
        self._tell(AddService(units))

    def _tell(self, message: SetShares | AddService) -> None:
        self._being_told.add(type(message))
        self._commands.put_nowait(message)

    def sleep(self, cause: str) -> None:
        """Give the KV memory back and keep the weights; only for a READY replica, which it stays if requests run."""
        self._become(ReplicaState.ASLEEP, cause)
        self._commands.put_nowait(Sleep())

    def wake(self, cause: str, need: Need) -> None:
        """Take KV memory again and serve; only for an ASLEEP replica."""
        self.need = need
        self._become(ReplicaState.WARMING, cause)
        self._commands.put_nowait(Wake())

    def drain(self, cause: str) -> None:
        """Take nothing new, finish what runs, end; be killed a moment after the drain's deadline."""
        self._begin_end(cause)
        self._ends_by_s = time.monotonic() + self._patience.drain_s + self._patience.stop_s
        self._commands.put_nowait(Drain(deadline_s=self._patience.drain_s))

    def stop(self, cause: str) -> None:
        """End a process that serves nobody; be killed where it does not."""
        self._begin_end(cause)
        self._ends_by_s = time.monotonic() + self._patience.stop_s
        self._stopping = True
        if self._process is not None:
            self._process.terminate()

    def _begin_end(self, cause: str) -> None:
        self.ending = True
        self._end_cause = cause
        self._become(ReplicaState.DRAINING, cause)

    # --- life

    async def live(self) -> None:
        """Run the whole life; return when nothing of the process is left."""
        self._become(ReplicaState.STARTING, "a process was started")
        try:
            self._process = await self._backend.start(self.spec)
        except StartError as error:
            self._become(ReplicaState.STOPPED, str(error))
            return
        self.pid = self._process.pid
        cause = "the fleet stopped watching"
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._await_death(self._process))
                tasks.create_task(self._watch())
                if self.ending:  # told to stop before there was a process
                    self._process.terminate()
        except* _EndedError as ended:
            cause = str(ended.exceptions[0])
        except* Exception as unexpected:  # noqa: BLE001 - a fault in watching one replica must not end the others
            _log.exception("replica.watch_failed", replica_id=self.replica_id, exc_info=unexpected)
            cause = f"the fleet could not watch it: {unexpected.exceptions[0]!r}"
        finally:
            self._process.kill()
        await self._process.wait()
        self._forget(cause)

    def _forget(self, cause: str) -> None:
        self._control.close()
        if self._verifying is not None:
            self._verifying.cancel()
        for path in (self.spec.http_socket, self.spec.control_socket):
            path.unlink(missing_ok=True)
        well = {ReplicaState.WARM_IDLE} if self.assignment is None else {ReplicaState.READY, ReplicaState.ASLEEP}
        self.healthy_s = self.in_state_s if self.state in well else 0.0
        self._become(ReplicaState.STOPPED, f"{self._end_cause} ({cause})" if self.ending else cause)

    async def _await_death(self, process: Process) -> None:
        raise _EndedError(await process.wait())

    async def _watch(self) -> None:
        while True:
            await self._look()
            pace_s = self._patience.look_s
            if self.state is ReplicaState.STARTING:
                pace_s = self._patience.start_look_s
            try:
                async with asyncio.timeout(pace_s):
                    command = await self._commands.get()
            except TimeoutError:
                continue
            if isinstance(command, smoke.SmokeError):
                raise _EndedError(f"the first generation failed: {command}")
            await self._send(command)
            self._being_told.discard(type(command))

    async def _look(self) -> None:
        try:
            self.status = await self._control.call(GetStatus(), _STATUS_TIMEOUT_S)
        except ControlLostError:
            self._judge(None)
        except ControlRefusedError as error:
            raise _EndedError(f"it refuses to tell its status: {error}") from error
        else:
            self._judge(self.status)
            self._mirror(self.status)

    def _judge(self, status: Status | None) -> None:
        """End a replica that hangs.

        Raises:
            _EndedError: no progress for longer than the phase allows, or the time to end has passed.
        """
        if self._ends_by_s is not None and time.monotonic() > self._ends_by_s:
            raise _EndedError("killed: it did not end in time")
        busy = self.state in _PROGRESS_DUE or (status is not None and status.pending > 0)
        stalled_s = self._watchdog.look(status.progress if status else None, busy, time.monotonic())
        allowed_s = self._patience.hang_s
        if self.state is ReplicaState.STARTING:
            allowed_s = self._patience.start_s
        elif self.state in _LOADING:
            allowed_s = self._patience.load_s
        if stalled_s > allowed_s:
            what = "no answer" if status is None else f"no progress with {status.pending} requests pending"
            raise _EndedError(f"hangs while {self.state.value.replace('_', ' ')}: {what} for {stalled_s:.0f} s")

    def _mirror(self, status: Status) -> None:
        match self.state, status.state:
            case ReplicaState.STARTING, ReplicaState.WARM_IDLE:
                self._become(ReplicaState.WARM_IDLE, "libraries are loaded")
            case ReplicaState.LOADING, ReplicaState.WARMING:
                self._become(ReplicaState.WARMING, "weights are loaded, a first generation runs")
                self._begin_verifying()
            case ReplicaState.DRAINING, _:
                pass
            case _, ReplicaState.STOPPED:
                raise _EndedError(
                    ": ".join(filter(None, (status.cause, status.detail))) or "it gave up without a cause"
                )
            case _, ReplicaState.DRAINING:
                self._begin_end(f"drains by itself: {status.cause}")
            case _:
                pass

    def _begin_verifying(self) -> None:
        self._verifying = asyncio.create_task(self._verify())

    async def _verify(self) -> None:
        try:
            if self.assignment is None:
                raise smoke.SmokeError("it loads a version that nobody assigned")
            self.first_token_ms = await smoke.generate(self.spec.http_socket, self.assignment)
        except smoke.SmokeError as error:
            self._commands.put_nowait(error)
        else:
            self._commands.put_nowait(MarkReady())

    async def _send(self, command: ControlCall) -> None:
        if self.ending and not isinstance(command, Drain | SetShares):
            return
        if isinstance(command, Wake) and not self._sleeps:
            self.need = None
            self._become(ReplicaState.READY, "it had not fallen asleep")
            return
        try:
            self.status = await self._control.call(command, _timeout_s(command))
        except (ControlLostError, ControlRefusedError) as error:
            self._not_taken(command, error)
            return
        self._mirror(self.status)
        match command:
            case SetShares():
                self.note = ""
            case AddService(units):
                self.told_service = units
            case Sleep():
                self._sleeps = True
            case Wake():
                self._sleeps = False
                self._begin_verifying()
            case MarkReady():
                if self.loaded_in_ms == 0:
                    self.loaded_in_ms = round((time.monotonic() - self._attached_at_s) * 1000)
                self._become(ReplicaState.READY, "a first generation was answered")

    def _not_taken(self, command: ControlCall, error: Exception) -> None:
        """Decide what it means that a command was refused or lost.

        Raises:
            _EndedError: the replica cannot go on without it.
        """
        name = type(command).__name__
        if isinstance(command, Sleep) and isinstance(error, ControlRefusedError):
            if self.state is ReplicaState.ASLEEP:  # else it was to wake again meanwhile
                self._become(ReplicaState.READY, f"it was used as it was to fall asleep: {error}")
            return
        if isinstance(command, AddService):
            return  # a total: the next one says it, too
        if not isinstance(command, SetShares):
            raise _EndedError(f"{name} failed: {error}") from error
        _log.error("replica.shares_not_taken", replica_id=self.replica_id, error=str(error))
        self.note = f"the tenants' new shares are not in force: {error}"
        self.shares_lost = isinstance(error, ControlLostError)  # to be sent again

    def _become(self, state: ReplicaState, cause: str) -> None:
        if state is self.state:
            return
        old, self.state, self.cause = self.state, state, cause
        self.since_ms = time.time_ns() // 1_000_000
        self.entered_at_s = time.monotonic()
        self._watchdog.restart()
        self._listener(self, old)


def _timeout_s(command: ControlCall) -> float:
    match command:
        case SetShares() | AddService():
            return _SHARES_TIMEOUT_S
        case Sleep() | Wake():
            return _POOL_TIMEOUT_S
        case _:
            return _CALL_TIMEOUT_S
