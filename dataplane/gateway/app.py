"""The ASGI application of a gateway, and the tasks that keep it informed."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import httpx
import msgspec
import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dataplane.catalog.follower import Follower
from dataplane.contracts import ids
from dataplane.contracts.catalog import Catalog
from dataplane.contracts.errors import ApiError, Code, envelope
from dataplane.contracts.headers import PUBLIC_REQUEST_ID
from dataplane.contracts.internal_calls import is_internal
from dataplane.gateway import metrics, reply, tokenizing
from dataplane.gateway.cold_queue import Bounds
from dataplane.gateway.completions import Completions
from dataplane.gateway.demand import DemandPost
from dataplane.gateway.door import Door, Headers, wall_ms
from dataplane.gateway.exchange import Running
from dataplane.gateway.intake import Bodies
from dataplane.gateway.limits import Limiter
from dataplane.gateway.metrics import Metrics
from dataplane.gateway.proxy import Proxy
from dataplane.gateway.replicas import Replicas
from dataplane.gateway.settings import Settings
from dataplane.gateway.snapshot import ModelList, Snapshot
from dataplane.gateway.tokenizing import Tokenizing
from dataplane.gateway.waiting_room import WaitingRoom
from dataplane.http_server.asgi import ClientGone
from dataplane.spool.shipper import ShipError, Shipper
from dataplane.spool.writer import SpoolWriter

_REVIEW_S = 1.0
_RESTART_S = 1.0
_LAST_SHIPMENT_S = 3.0
_PATHS = (
    "POST /v1/chat/completions",
    "POST /v1/completions",
    "GET /v1/models",
    "GET /v1/models/{name}",
    *(f"POST {path}" for path in tokenizing.PATHS),
)
_log = structlog.get_logger(__name__)


class Gateway:
    """One gateway process: its state, its application, its background tasks. Made inside a running event loop."""

    def __init__(self, settings: Settings) -> None:
        self.id = ids.new_id(ids.Kind.GATEWAY)
        self.settings = settings
        self.metrics = Metrics(lambda: self._snapshot.catalog)
        self.running = Running()
        self.draining = asyncio.Event()
        self.follower = Follower(
            redis_url=settings.redis_url,
            control_url=settings.control_url,
            internal_secret=settings.internal_secret,
            last_good=settings.home / "catalog.json",
            on_change=self._apply,
            poll_s=settings.catalog_poll_s,
        )
        self._snapshot = Snapshot(self.follower.catalog)
        self.limiter = Limiter(
            settings.redis_url,
            self.id,
            lease_ms=settings.lease_ms,
            renewal_s=settings.lease_renewal_s,
            timeout_s=settings.redis_timeout_s,
        )
        self.replicas = Replicas(settings.fleet_url, settings.internal_secret)
        self.demand = DemandPost(settings.fleet_url, settings.internal_secret, self.id)
        self.room = WaitingRoom(
            self.replicas,
            self.demand,
            bounds=Bounds(settings.max_cold_requests, settings.max_cold_bytes),
            max_tenant_waiting=settings.max_tenant_cold_requests,
            gateways=lambda: self.limiter.gateways,
            heartbeat_s=settings.heartbeat_s,
        )
        self.spool = SpoolWriter(settings.home / "spool", self.id, settings.max_spool_bytes)
        self._shipper = Shipper(settings.home / "spool", settings.control_url, settings.internal_secret)
        self._door = Door(settings.peppers, lambda: self._snapshot)
        self.app = self._application()
        self._watch_gauges()

    def _application(self) -> Starlette:
        bodies = Bodies(self.settings.max_held_bytes, self.settings.max_tenant_held_bytes)
        completions = Completions(
            settings=self.settings,
            door=self._door,
            limiter=self.limiter,
            running=self.running,
            spool=self.spool,
            proxy=Proxy(self.replicas, self.room, self.settings.silent_replica_s, self.settings.max_queue_wait_s),
            metrics=self.metrics,
            bodies=bodies,
        )
        tokens = Tokenizing(
            settings=self.settings, door=self._door, limiter=self.limiter, replicas=self.replicas, bodies=bodies
        )
        app = Starlette(
            routes=[
                Route("/v1/chat/completions", completions, methods=["POST"]),
                Route("/v1/completions", completions, methods=["POST"]),
                *(Route(path, tokens.answer, methods=["POST"]) for path in tokenizing.PATHS),
                Route("/v1/models", self._models, methods=["GET"]),
                Route("/v1/models/{name:path}", self._model, methods=["GET"]),
                Route("/health", self._health, methods=["GET"]),
                Route("/metrics", self._metrics, methods=["GET"]),
            ],
            exception_handlers={
                ApiError: _api_error,
                HTTPException: _http_error,
                ClientGone: _client_gone,
                Exception: _broke,
            },
        )
        app.router.redirect_slashes = False
        return app

    def _watch_gauges(self) -> None:
        for name, text, read in (
            ("num_requests_running", "Accepted requests under way.", lambda: len(self.running)),
            ("num_requests_cold", "Requests that wait for a replica.", lambda: self.room.waiting_count),
            ("replicas_ready", "Replicas that take traffic.", lambda: self.replicas.ready_count),
            ("catalog_number", "Number of the catalog in force.", lambda: self._snapshot.catalog.number),
            ("catalog_refusals", "Arms of deployments kept out of force.", lambda: self.follower.refusals),
            ("redis_up", "1 while limits are shared through Redis.", lambda: not self.limiter.redis_away),
            ("spool_full", "1 while admission is stopped by the spool.", lambda: self.spool.full),
        ):
            self.metrics.watch(name, text, read)

    def _apply(self, catalog: Catalog) -> None:
        self._snapshot = Snapshot(catalog)
        rollouts = {
            deployment.id: {arm.name: [arm.version_id, arm.weight] for arm in deployment.arms}
            for deployment in catalog.deployments.values()
            if len(deployment.arms) > 1
        }
        _log.info("catalog_applied", number=catalog.number, rollouts=rollouts)

    async def _review_forever(self) -> None:
        """Cut what may no longer run, be it by a new catalog or because a key has expired since."""
        while True:
            await asyncio.sleep(_REVIEW_S)
            self.running.review(self._snapshot.catalog, wall_ms())
            self.room.review(self._snapshot)

    def drain(self) -> None:
        """Report unhealthy from now on; an error ends what still runs after the drain time, or at a second call."""
        cause = ApiError(Code.SHUTTING_DOWN, "This gateway is shutting down. Try again.")
        if self.draining.is_set():
            self.running.cut_all(cause)
        self.draining.set()
        asyncio.get_running_loop().call_later(self.settings.drain_s, self.running.cut_all, cause)

    @asynccontextmanager
    async def informed(self) -> AsyncIterator[None]:
        """Keep its tasks running while the block does; then its usage is on the disk, and shipped if that is quick."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._ship_the_rest)
            stack.push_async_callback(self.spool.close)
            stack.push_async_callback(self.limiter.close)
            for name, run in (
                ("catalog", self.follower.run),
                ("replicas", self.replicas.run),
                ("demand", self.demand.run),
                ("limits", self.limiter.run),
                ("usage", self._shipper.run),
                ("review", self._review_forever),
            ):
                await stack.enter_async_context(_kept_running(name, run))
            _log.info("gateway.started", gateway_id=self.id, catalog=self._snapshot.catalog.number)
            yield
        _log.info("gateway.stopped", gateway_id=self.id)

    async def _ship_the_rest(self) -> None:
        """Ship what is left, if the control plane answers; else a later process on this node does."""
        with suppress(ShipError, httpx.HTTPError, OSError):  # a timeout is an OSError
            async with asyncio.timeout(_LAST_SHIPMENT_S):
                await self._shipper.flush()

    async def _models(self, request: Request) -> Response:
        snapshot, caller = self._door.enter(Headers(request.scope))
        return _json(ModelList(snapshot.cards(caller)))

    async def _model(self, request: Request) -> Response:
        snapshot, caller = self._door.enter(Headers(request.scope))
        return _json(snapshot.card(caller, request.path_params["name"]))

    async def _health(self, _: Request) -> Response:
        if self.draining.is_set():
            return _json({"status": "draining"}, status=503)
        if self._snapshot.catalog.number == 0:
            return _json({"status": "starting", "waiting_for": "catalog"}, status=503)
        away = [name for name, lost in (("redis", self.limiter.redis_away), ("fleet", self.replicas.away)) if lost]
        return _json({"status": "ok", "catalog": self._snapshot.catalog.number, "away": away})

    async def _metrics(self, request: Request) -> Response:
        """Tenants' figures are not for tenants: scrapers show the secret of internal calls."""
        if not is_internal(request.headers.get("authorization"), self.settings.internal_secret):
            raise ApiError(Code.INVALID_API_KEY, "Metrics are read with the secret of internal calls as bearer token.")
        return Response(self.metrics.render(), media_type=metrics.CONTENT_TYPE)


@asynccontextmanager
async def _kept_running(name: str, run: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Run a task beside the block; one that breaks is logged and started again, and takes nothing else with it."""

    async def keep() -> None:
        while True:
            try:
                await run()
            except Exception:  # noqa: BLE001 - the gateway goes on with what it knows
                _log.exception("task_broke", task=name)
            await asyncio.sleep(_RESTART_S)

    task = asyncio.create_task(keep(), name=name)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def _json(value: msgspec.Struct | dict[str, object], status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, {PUBLIC_REQUEST_ID: _new_request_id()}, "application/json")


def _new_request_id() -> str:
    return ids.new_id(ids.Kind.REQUEST)


def _error_response(error: ApiError) -> Response:
    request_id = _new_request_id()
    response = Response(envelope(error, request_id), error.code.status, media_type="application/json")
    response.headers[PUBLIC_REQUEST_ID] = request_id
    for name, value in reply.error_headers(error):
        response.headers[name.decode()] = value.decode()
    return response


async def _api_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)  # noqa: S101 - registered for this class alone
    return _error_response(error)


async def _http_error(request: Request, error: Exception) -> Response:
    """Answer what Starlette itself refuses: no such route, or no such method on it."""
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for this class alone
    if error.status_code == Code.METHOD_NOT_ALLOWED.status:
        refusal = ApiError(Code.METHOD_NOT_ALLOWED, f"{request.method} is not a method of this path.")
    else:
        paths = ", ".join(_PATHS)
        refusal = ApiError(Code.NOT_FOUND, f"There is nothing at this path. The API has {paths}.")
    response = _error_response(refusal)
    if error.headers and "Allow" in error.headers:
        response.headers["allow"] = error.headers["Allow"]
    return response


async def _client_gone(_: Request, error: Exception) -> Response:
    """Nobody is there to read it."""
    return Response(status_code=Code.INVALID_REQUEST.status)


async def _broke(_: Request, error: Exception) -> Response:
    _log.error("request_broke", exc_info=error)
    return _error_response(ApiError(Code.INTERNAL, "Something went wrong on our side. Try again."))
