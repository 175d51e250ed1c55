"""The fleet's internal HTTP: its replica table, the demand of gateways, trials, probes, drains, health, figures."""

import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from dataplane.contracts.errors import ApiError, Code, envelope
from dataplane.contracts.internal_calls import is_internal
from dataplane.contracts.probes import ProbeOrder, ProbeProgress
from dataplane.contracts.replica import Demand, ReplicaState, TrialRequest
from dataplane.fleet.fleet import Fleet
from dataplane.http_server.asgi import read_body

_MAX_WAIT_S = 30.0
_STALE_S = 10.0
_MAX_BODY_BYTES = 4 * 1024 * 1024
_MAX_SAMPLES = 20_000
_Body = TypeVar("_Body")
_Handler = Callable[[Request], Awaitable[Response]]


def make_app(fleet: Fleet, internal_secret: str) -> Starlette:
    """Return the application. Everything but ``/health`` wants the internal bearer."""

    def guarded(handler: _Handler) -> _Handler:
        async def checked(request: Request) -> Response:
            if not is_internal(request.headers.get("authorization"), internal_secret):
                return _error(ApiError(Code.INVALID_API_KEY, "this door is for internal calls, which carry a bearer"))
            try:
                return await handler(request)
            except ApiError as error:
                return _error(error)

        return checked

    async def replicas(request: Request) -> Response:
        """The table; with ``after`` and ``wait_s``, once its number differs from ``after``."""
        after = _number(request, "after", -1)
        wait_s = min(_number(request, "wait_s", 0), _MAX_WAIT_S)
        table = await fleet.table.newer_than(int(after), wait_s)
        return Response(msgspec.json.encode(table), media_type="application/json")

    async def drain(request: Request) -> Response:
        replica_id = request.path_params["replica_id"]
        if not fleet.drain(replica_id, "drained by order"):
            raise ApiError(Code.NOT_FOUND, f"no replica {replica_id} is ready; see GET /replicas")
        return Response(status_code=202)

    async def demand(request: Request) -> Response:
        fleet.take_demand(await _body(request, Demand))
        return Response(status_code=204)

    async def begin_trial(request: Request) -> Response:
        fleet.try_out(await _body(request, TrialRequest))
        return Response(status_code=202)

    async def trial(request: Request) -> Response:
        """How a trial stands; with ``wait_s``, once it has ended."""
        wait_s = min(_number(request, "wait_s", 0), _MAX_WAIT_S)
        report = await fleet.trials.report(request.path_params["version_id"], wait_s)
        if report is None:
            raise ApiError(Code.NOT_FOUND, "this version was not tried lately; begin with POST /trials")
        return Response(msgspec.json.encode(report), media_type="application/json")

    async def order_probes(request: Request) -> Response:
        order = await _body(request, ProbeOrder)
        if not 1 <= order.samples <= _MAX_SAMPLES:
            raise ApiError(Code.INVALID_PARAMETER, f"samples are from 1 to {_MAX_SAMPLES}", param="samples")
        if not fleet.prober.order(order.samples):
            raise ApiError(Code.NOT_FOUND, "no replica of a deployment that several tenants may call is ready here")
        return Response(status_code=202)

    async def probes(_: Request) -> Response:
        """What probes found, and how many trials of the latest order are left."""
        progress = ProbeProgress(fleet.prober.trials_left, fleet.prober.reports())
        return Response(msgspec.json.encode(progress), media_type="application/json")

    async def health(_: Request) -> Response:
        """Well means that deciding goes on; what runs is told beside it."""
        idle_s = time.monotonic() - fleet.reconciled_at_s
        age_s = fleet.follower.age_s
        rows = fleet.table.latest.replicas
        body = {
            "status": "ok" if idle_s < _STALE_S else "stalled",
            "node": fleet.journal.node,
            "ready": sum(row.state is ReplicaState.READY for row in rows),
            "missing": sum(row.state is ReplicaState.COLD and not row.idle for row in rows),
            "asleep": sum(row.state is ReplicaState.ASLEEP for row in rows),
            "catalog": {"number": fleet.follower.catalog.number, "age_s": None if age_s is None else round(age_s, 1)},
        }
        return JSONResponse(body, status_code=200 if idle_s < _STALE_S else 503)

    async def metrics(_: Request) -> Response:
        return Response(fleet.metrics.render(), media_type=CONTENT_TYPE_LATEST)

    return Starlette(
        routes=[
            Route("/replicas", guarded(replicas)),
            Route("/replicas/{replica_id}/drain", guarded(drain), methods=["POST"]),
            Route("/demand", guarded(demand), methods=["POST"]),
            Route("/trials", guarded(begin_trial), methods=["POST"]),
            Route("/trials/{version_id}", guarded(trial)),
            Route("/probes", guarded(order_probes), methods=["POST"]),
            Route("/probes", guarded(probes)),
            Route("/health", health),
            Route("/metrics", guarded(metrics)),
        ]
    )


async def _body(request: Request, kind: type[_Body]) -> _Body:
    raw = await read_body(request.scope, request.receive, _MAX_BODY_BYTES)
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.DecodeError as error:
        raise ApiError(Code.INVALID_REQUEST, f"the body is not a {kind.__name__}: {error}") from error


def _number(request: Request, name: str, default: float) -> float:
    text = request.query_params.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError as error:
        raise ApiError(Code.INVALID_PARAMETER, f"{name} must be a number, not {text[:50]!r}", param=name) from error
    if not 0 <= value < float("inf"):
        raise ApiError(Code.INVALID_PARAMETER, f"{name} must be a number of 0 or more", param=name)
    return value


def _error(error: ApiError) -> Response:
    return Response(envelope(error, None), status_code=error.code.status, media_type="application/json")
