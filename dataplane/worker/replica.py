"""The replica: which model it holds, in which state it is, which requests run, and what the control socket may ask."""

import asyncio
import contextlib
import os
import time
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, assert_never

import structlog

from dataplane.contracts import failpoints, probes
from dataplane.contracts.errors import ApiError, Code
from dataplane.contracts.generation import QUEUE_LIMIT_PER_TENANT, LoadModel, ReleasePool, RestorePool
from dataplane.contracts.model_config import ModelConfig, parse_config
from dataplane.contracts.parallel import Parallel
from dataplane.contracts.replica import (
    AbortRequest,
    AddService,
    Attach,
    ControlAnswer,
    ControlCall,
    Drain,
    Dump,
    GetDump,
    GetStatus,
    MarkReady,
    Refused,
    ReplicaState,
    SetShares,
    Sleep,
    Status,
    Wake,
)
from dataplane.text.client import TokenizerClient
from dataplane.worker import lifecycle
from dataplane.worker.doors import Caller
from dataplane.worker.engine_client import EngineClient, LoadError
from dataplane.worker.lifecycle import Event, TransitionError
from dataplane.worker.memory import anonymous_bytes, children_of
from dataplane.worker.probing import Probes
from dataplane.worker.sharing import Sharing

EXIT_FAILED = 1
EXIT_ENGINE_LOST = 70
"""EX_SOFTWARE: another process may do better."""
_log = structlog.get_logger(__name__)


class Model:
    """What is known of the attached model once it is loaded."""

    def __init__(self, attach: Attach, config: ModelConfig, context_tokens: int, kernels: str) -> None:
        self.attach = attach
        self.vocab_size = config.vocab_size
        self.has_end = bool(config.eos_token_ids)
        self.context_tokens = context_tokens
        self.kernels = kernels
        self.created_s = int(time.time())


class Replica:
    """Holds the engine process and the tokenizer child, and moves through the states of :mod:`.lifecycle`.

    Args:
        replica_id: what the fleet calls it.
        stall_s: seconds of pending work without progress after which it calls itself unhealthy.
        parallel: across how many processes its model is spread.
        queue_wait_s: how long a request may wait for its first token, where its caller does not say; None is for ever.
        queue_limit: most requests of one tenant that wait.
    """

    def __init__(
        self,
        replica_id: str,
        stall_s: float,
        parallel: Parallel = Parallel(),  # noqa: B008 - frozen
        queue_wait_s: float | None = None,
        queue_limit: int = QUEUE_LIMIT_PER_TENANT,
    ) -> None:
        self.replica_id = replica_id
        self.queue_wait_s = queue_wait_s
        self.engine = EngineClient()
        self.tokenizer = TokenizerClient()
        self.state = ReplicaState.STARTING
        self.cause = "its libraries are being imported"
        self.exit_status = 0
        self.model: Model | None = None
        self.stopped = asyncio.Event()
        self.sharing = Sharing(self.engine)
        self._stall_s = stall_s
        self._parallel = parallel
        self._queue_limit = queue_limit
        self._requests = 0
        self.probes = Probes(self.engine.fail)
        self._idle = asyncio.Event()
        self._idle.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._opening: asyncio.Task[None] | None = None

    async def start(self, model_dir: Path | None = None) -> None:
        """Start both children; the replica is WARM_IDLE once the engine's libraries are imported.

        Args:
            model_dir: of the model that it will be given, where that is known: its tokenizer is opened meanwhile.
        """
        await asyncio.gather(self.engine.start(), self.tokenizer.prepare())
        if model_dir is not None:
            self._opening = asyncio.create_task(self.tokenizer.start(model_dir))
        self._spawn(self._watch_engine())
        await self._first(self.engine.imported, self.engine.lost)
        if self.engine.imported.is_set() and self.state is ReplicaState.STARTING:
            self._advance(Event.ENGINE_UP, "its libraries are imported")

    async def stop(self) -> None:
        """End both children."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        await self.tokenizer.stop()
        await self.engine.stop()

    # -- requests

    @contextlib.contextmanager
    def running(self, caller: Caller, model_name: str | None) -> Iterator[Model]:
        """Hold the replica for one request; draining waits for it. A probe counts for nothing.

        Raises:
            ApiError: it takes no requests now, or holds another model than the caller wants.
        """
        model = self._model_for(caller, model_name)
        if caller.probe:
            with self.probes.running(caller.sequence_id, busy=self._is_busy(model)):
                yield model
            return
        self._requests += 1
        self._idle.clear()
        if self._is_busy(model):
            self.probes.give_up()
        try:
            yield model
        finally:
            self._requests -= 1
            if self._requests == 0:
                self._idle.set()

    def _is_busy(self, model: Model) -> bool:
        """Say whether half of the slots are taken, or anybody waits: then there is no room for probes."""
        load = self.engine.load
        num_running, num_waiting = (load.num_running, load.num_waiting) if load else (0, 0)
        return num_waiting > 0 or 2 * max(num_running, self._requests) >= model.attach.engine.max_num_seqs

    def _model_for(self, caller: Caller, name: str | None) -> Model:
        if self.state in (ReplicaState.DRAINING, ReplicaState.STOPPED):
            raise ApiError(Code.SHUTTING_DOWN, "this replica is shutting down; try again", retry_after_s=1.0)
        if self.model is None or not lifecycle.may_generate(self.state, verifying=caller.trusted):
            what = "is asleep" if self.state is ReplicaState.ASLEEP else "is still being loaded"
            raise ApiError(Code.MODEL_COLD, f"the model {what}; try again", retry_after_s=2.0)
        attach = self.model.attach
        if caller.deployment_id:
            # The gateway resolved the name; a replica that took another deployment meanwhile must not answer for this.
            if caller.deployment_id != attach.deployment_id or caller.version_id not in ("", attach.version_id):
                raise ApiError(Code.MODEL_COLD, "this replica holds another model; try again", retry_after_s=1.0)
        elif name is not None and name != attach.served_name:
            raise ApiError(
                Code.MODEL_NOT_FOUND,
                f"the model {name[:200]!r} does not exist here; what may be called is {attach.served_name!r}",
                param="model",
            )
        return self.model

    def fill_tokens(self, tenant_id: str) -> int:
        """Return where a completion without max_tokens ends: the context, or the tenant's cap where that is less."""
        if self.model is None:
            return 0
        share = self.sharing.shares.get(tenant_id)
        if share is None or share.cap_tokens is None:
            return self.model.context_tokens
        return min(share.cap_tokens, self.model.context_tokens)

    # -- health

    @property
    def stalled_s(self) -> float:
        """Seconds that pending work has gone without progress; 0 when nothing is pending."""
        return time.monotonic() - self.engine.progressed_s if self.engine.num_pending else 0.0

    @property
    def is_healthy(self) -> bool:
        """Whether requests are taken and move: being alive is not enough."""
        return self.state is ReplicaState.READY and self.stalled_s < self._stall_s

    def status(self) -> Status:
        """Return what the replica says of itself."""
        model = self.model
        return Status(
            replica_id=self.replica_id,
            state=self.state,
            progress=self.engine.progress,
            pending=self.engine.num_pending,
            cause=self.cause,
            detail=self.engine.phase if self.state is ReplicaState.LOADING else "",
            kernels=model.kernels if model else "",
            context_tokens=model.context_tokens if model else 0,
            load=self.engine.load,
            tenants=self.engine.tenants,
            memory_bytes=anonymous_bytes(
                os.getpid(), self.engine.pid, *children_of(self.engine.pid), self.tokenizer.pid or 0
            ),
            converted=self.engine.converted,
            shares_number=self.engine.shares_number,
        )

    # -- control

    async def answer(self, call: ControlCall) -> ControlAnswer:
        """Act on a control call."""
        try:
            match call:
                case GetStatus():
                    return self.status()
                case GetDump():
                    dump = await self.engine.dump()
                    return Dump(status=self.status(), sequences=dump.sequences)
                case Attach():
                    self._advance(Event.ATTACH, f"loads {call.served_name}")
                    self._spawn(self._load(call))
                case SetShares() | AddService():
                    self.sharing.take(call)
                case MarkReady():
                    self.mark_ready("the fleet saw a generation")
                case Sleep():
                    await self.sleep("told to sleep")
                case Wake():
                    await self.wake("told to wake")
                case Drain(deadline_s):
                    self.drain(deadline_s, "told to drain")
                case AbortRequest(request_id):
                    self._abort(request_id)
                case _:
                    assert_never(call)
        except TimeoutError:
            return Refused(code="busy", message="the engine is in a long step or hangs")
        except (TransitionError, LoadError, ValueError) as error:
            return Refused(code="not_allowed", message=str(error))
        return self.status()

    async def attach(self, call: Attach) -> None:
        """Load a model and return when it is loaded or has failed; :attr:`state` says which."""
        self._advance(Event.ATTACH, f"loads {call.served_name}")
        await self._load(call)

    async def _load(self, call: Attach) -> None:
        self.sharing.shares = call.tenants
        try:
            armed = failpoints.of_version(call.version_id)
            failpoints.arm(armed)
            config = parse_config((Path(call.model_dir) / "config.json").read_bytes())
            _, loaded = await asyncio.gather(
                self._opening or self.tokenizer.start(Path(call.model_dir)),
                self.engine.load_model(
                    LoadModel(
                        model_dir=call.model_dir,
                        runtime_dir=call.runtime_dir,
                        version_digest=call.version_digest,
                        engine=call.engine,
                        tenants=call.tenants | probes.TENANTS,
                        salt_secret=call.salt_secret,
                        failpoints=armed,
                        parallel=self._parallel,
                        leases=call.leases,
                        queue_limit_per_tenant=self._queue_limit,
                    )
                ),
            )
        except (LoadError, ApiError, OSError, ValueError) as error:
            self.fail(f"the model cannot be loaded: {error}", EXIT_FAILED)
            return
        if self.state is not ReplicaState.LOADING:
            return  # told to drain meanwhile
        self.model = Model(call, config, loaded.context_tokens, loaded.kernels)
        self._advance(Event.LOADED, "the model is loaded")
        _log.info(
            "model_loaded",
            model=call.served_name,
            kernels=loaded.kernels,
            context_tokens=loaded.context_tokens,
            total_blocks=loaded.load.total_blocks,
            block_size=loaded.load.block_size,
            load_ms=loaded.load_ms,
        )

    def mark_ready(self, cause: str) -> None:
        """A real generation went through the serving path.

        Raises:
            TransitionError: the replica is not WARMING.
        """
        self._advance(Event.VERIFIED, cause)

    async def sleep(self, cause: str) -> None:
        """Admit nothing, give the KV pool back and keep the weights; returns when the memory is given back.

        Raises:
            ValueError: requests are running.
            TransitionError: the replica is not READY.
        """
        if self._requests:  # race: a request came between the fleet's look and its call
            raise ValueError(f"{self._requests} requests are running")
        self.probes.give_up()
        self._advance(Event.SLEEP, cause)
        await self._change_pool(ReleasePool())

    async def wake(self, cause: str) -> None:
        """Make the KV pool again; a generation that verifies it is to follow.

        Raises:
            TransitionError: the replica is not ASLEEP.
        """
        self._advance(Event.WAKE, cause)
        await self._change_pool(RestorePool())

    async def _change_pool(self, message: ReleasePool | RestorePool) -> None:
        try:
            await self.engine.change_pool(message)
        except LoadError as error:
            # Half asleep is no state to go on from: a fresh process takes its place.
            self.fail(f"its KV memory cannot be given back or taken again: {error}", EXIT_FAILED)

    def drain(self, deadline_s: float, cause: str) -> None:
        """Admit nothing more; :attr:`stopped` is set when what ran has ended, at the latest after ``deadline_s``.

        Raises:
            TransitionError: it drains already, or has stopped.
        """
        self._advance(Event.DRAIN, cause)
        self.probes.give_up()
        self._spawn(self._finish(deadline_s))

    async def _finish(self, deadline_s: float) -> None:
        try:
            async with asyncio.timeout(deadline_s):
                await self._idle.wait()
        except TimeoutError:
            _log.warning("drain_deadline", requests=self._requests, deadline_s=deadline_s)
            self.end_all()
        if self.state is ReplicaState.DRAINING:  # else it failed meanwhile
            self._advance(Event.DRAINED, self.cause)
        self.stopped.set()

    def end_all(self) -> None:
        """End what runs with an error for its callers."""
        self.engine.fail_all(ApiError(Code.SHUTTING_DOWN, "the replica was shut down; try again", retry_after_s=1.0))

    def _abort(self, request_id: str) -> None:
        error = ApiError(Code.REQUEST_FAILED, "the request was ended by the service")
        for sequence_id in self.engine.running_ids():
            if sequence_id.rpartition(".")[0] == request_id:
                self.engine.fail(sequence_id, error)

    # -- inner life

    def _advance(self, event: Event, cause: str) -> None:
        old, self.state = self.state, lifecycle.advance(self.state, event)
        self.cause = cause
        _log.info("replica_state", old=old.value, new=self.state.value, cause=cause)

    def fail(self, cause: str, exit_status: int) -> None:
        """Give up for ever: :attr:`stopped` is set, ``cause`` says why, the process is to end with ``exit_status``."""
        if self.state is not ReplicaState.STOPPED:
            self.exit_status = exit_status
            self._advance(Event.FAILED, cause)
            self.stopped.set()

    async def _watch_engine(self) -> None:
        await self.engine.lost.wait()
        self.fail("the engine process ended", EXIT_ENGINE_LOST)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @staticmethod
    async def _first(*events: asyncio.Event) -> None:
        waits = [asyncio.create_task(event.wait()) for event in events]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
