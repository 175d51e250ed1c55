"""The server process: doors, signals, and the order in which everything starts and ends."""

import asyncio
import contextlib
import os
import secrets
import socket
from collections.abc import Mapping

import httpx
import structlog

from dataplane.contracts import memory
from dataplane.contracts.catalog import Share
from dataplane.contracts.generation import EngineLoad
from dataplane.contracts.replica import Attach, ReplicaState
from dataplane.http_server.asgi import App, Receive, Scope, Send
from dataplane.http_server.server import on_end_signals, open_path, open_port, serving
from dataplane.spool.shipper import ShipError, Shipper
from dataplane.spool.writer import SpoolWriter
from dataplane.worker.app import Worker
from dataplane.worker.control import ControlServer
from dataplane.worker.lifecycle import TransitionError
from dataplane.worker.metrics import Metrics
from dataplane.worker.replica import EXIT_FAILED, Replica
from dataplane.worker.settings import Settings, SettingsError

_LAST_WORDS_S = 2
_FLUSH_S = 2.0
_FAILURE_LINGER_S = 5.0
_log = structlog.get_logger(__name__)


async def serve(settings: Settings) -> tuple[int, str]:
    """Run the worker until it is stopped; return its exit status and why it stopped.

    What is started last is ended first: no request runs any more when the engine ends, no record is written any more
    when the spool is closed and shipped.

    Raises:
        SettingsError: a path or an environment that cannot be used.
        ListenError: a door that cannot be opened.
    """
    waiting = settings.queue_wait_s, settings.queue_limit
    replica = Replica(settings.replica_id, settings.stall_s, settings.parallel, *waiting)
    async with contextlib.AsyncExitStack() as running:
        doors = _listen(settings, running)
        spool = await _spool(settings, running)
        running.push_async_callback(replica.stop)
        worker = Worker(replica, Metrics(), spool, trust_header=settings.trust_tenant_header)
        app = worker.app()
        control = await _control(replica, settings, running)
        server = await running.enter_async_context(
            serving(app, doors, _LAST_WORDS_S, patience_s=settings.client_patience_s)
        )
        starting = asyncio.create_task(_start(replica, settings, app, doors))
        running.push_async_callback(_cancelled, starting)
        _drain_on_signals(replica, settings.drain_s)
        stopped = asyncio.create_task(replica.stopped.wait())
        await asyncio.wait({server, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if replica.exit_status == EXIT_FAILED and control is not None:
            with contextlib.suppress(TimeoutError):  # the fleet asks for the reason; an exit status cannot carry it
                await asyncio.wait_for(control.told.wait(), _FAILURE_LINGER_S)
    return replica.exit_status, replica.cause


async def _control(replica: Replica, settings: Settings, running: contextlib.AsyncExitStack) -> ControlServer | None:
    if settings.control_socket is None:
        return None
    control = ControlServer(replica, settings.control_socket)
    await control.start()
    running.push_async_callback(control.stop)
    return control


async def _cancelled(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _listen(settings: Settings, running: contextlib.AsyncExitStack) -> list[socket.socket]:
    """Open the doors, TCP first."""
    doors = []
    if settings.port is not None:
        doors.append(running.enter_context(open_port(settings.host, settings.port)))
    if settings.socket is not None:
        doors.append(running.enter_context(open_path(settings.socket)))
    return doors


async def _spool(settings: Settings, running: contextlib.AsyncExitStack) -> SpoolWriter | None:
    """Open the usage spool, and ship it where there is a control plane."""
    if settings.spool_dir is None:
        return None
    if settings.control_url is not None:
        secret = os.environ.get("PAGODA_INTERNAL_SECRET")
        if not secret:
            raise SettingsError("--control-url needs the environment variable PAGODA_INTERNAL_SECRET")
        shipper = Shipper(settings.spool_dir, settings.control_url, secret)
        running.push_async_callback(_last_shipment, shipper, asyncio.create_task(shipper.run()))
    try:
        spool = SpoolWriter(settings.spool_dir, settings.replica_id, settings.spool_max_mb * 2**20)
    except (OSError, ValueError) as error:
        raise SettingsError(f"--spool-dir {settings.spool_dir}: {error}") from error
    running.push_async_callback(spool.close)
    return spool


async def _last_shipment(shipper: Shipper, shipping: "asyncio.Task[None]") -> None:
    """Ship the closed spool if that is quick; else it is an orphan that the next process on this node adopts."""
    await _cancelled(shipping)
    with contextlib.suppress(ShipError, httpx.HTTPError, OSError, TimeoutError):
        async with asyncio.timeout(_FLUSH_S):
            await shipper.flush()


def _drain_on_signals(replica: Replica, drain_s: float) -> None:
    """SIGTERM and SIGINT drain; a second one ends what still runs at once."""

    def handle() -> None:
        try:
            replica.drain(drain_s, "told to stop by a signal")
        except TransitionError:
            replica.end_all()

    on_end_signals(handle)


async def _start(replica: Replica, settings: Settings, app: App, doors: list[socket.socket]) -> None:
    await replica.start(settings.model)
    if settings.model is None or replica.state is not ReplicaState.WARM_IDLE:
        return
    await replica.attach(
        Attach(
            deployment_id="",
            version_id="",
            version_digest="",
            model_dir=str(settings.model.resolve()),
            runtime_dir=str(settings.runtime_dir),
            served_name=settings.model.resolve().name,
            engine=settings.engine,
            tenants=settings.tenants,
            salt_secret=secrets.token_bytes(32),
        )
    )
    model, load = replica.model, replica.engine.load
    if model is None or load is None:
        return
    lack = _lack_of_room(settings.tenants, load, model.context_tokens)
    if lack:
        replica.fail(lack, EXIT_FAILED)
        return
    try:
        await verify(app, model.attach.served_name)
        replica.mark_ready("its first generation was answered")
    except (VerificationError, TransitionError) as error:
        replica.fail(str(error), EXIT_FAILED)
        return
    pool_tokens = load.total_blocks * load.block_size
    print(
        f"Serving {model.attach.served_name} at {_address(settings, doors)}"
        f" (context {model.context_tokens} tokens, KV pool {pool_tokens} tokens, {model.kernels})",
        flush=True,
    )


def _lack_of_room(tenants: Mapping[str, Share], load: EngineLoad, context_tokens: int) -> str:
    """Say for whose longest request the guarantees of others leave no room; empty if for nobody's."""
    shut_out = memory.shut_out(tenants, load.total_blocks, load.block_size, context_tokens, 1)
    if shut_out is None:
        return ""
    tenant_id, needed_blocks, left_blocks = shut_out
    return (
        f"tenant {tenant_id}: its longest request takes {needed_blocks * load.block_size} tokens of KV memory, and "
        f"beside what the others are guaranteed the pool has {left_blocks * load.block_size}; lower a guarantee, "
        "its cap or the context, or give the pool more memory"
    )


def _address(settings: Settings, doors: list[socket.socket]) -> str:
    if settings.port is None:
        return f"unix:{settings.socket}"
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"http://{host}:{doors[0].getsockname()[1]}/v1"


class VerificationError(Exception):
    """The model loaded but does not generate."""


async def verify(app: App, model_name: str) -> None:
    """Make one real generation through the whole serving path but the socket.

    Raises:
        VerificationError: it failed; the message is the answer's.
    """

    async def trusted(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "server": ("verification", None)}, receive, send)

    transport = httpx.ASGITransport(app=trusted)
    async with httpx.AsyncClient(transport=transport, base_url="http://worker", timeout=None) as client:  # noqa: S113
        body = {"model": model_name, "prompt": "Hello", "max_tokens": 2, "temperature": 0, "ignore_eos": True}
        answer = await client.post("/v1/completions", json=body)
    if answer.status_code != httpx.codes.OK or answer.json()["usage"]["completion_tokens"] != 2:
        raise VerificationError(f"the model's first generation failed: {answer.text}")
