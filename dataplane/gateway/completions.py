"""``POST /v1/chat/completions`` and ``/v1/completions``: admission, the exchange, and the one line logged about it."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import structlog

from dataplane.contracts import headers, ids
from dataplane.contracts.errors import ApiError, Code
from dataplane.contracts.usage import Phases
from dataplane.gateway import arm_choice, intake, limits, patience, rate_headers
from dataplane.gateway.auth import Caller
from dataplane.gateway.door import Door, Headers
from dataplane.gateway.exchange import Exchange, Running, Spool
from dataplane.gateway.intake import Bodies, Hold, Intake
from dataplane.gateway.limits import Limiter, Reservation
from dataplane.gateway.metrics import Metrics
from dataplane.gateway.proxy import Proxy
from dataplane.gateway.reply import ClientStalled, Reply
from dataplane.gateway.settings import Settings
from dataplane.gateway.snapshot import Snapshot
from dataplane.http_server.asgi import ClientGone, Receive, Scope, Send, gone, read_body

_MAX_LABEL_CHARS = 128
_OVERLOAD_RETRY_S = 1.0
_log = structlog.get_logger("gateway")


class Told(msgspec.Struct):
    """What the log line of a request will say."""

    started_s: float
    label: str
    known_s: float = 0.0
    code: str = Code.SHUTTING_DOWN.code  # what remains where nothing else is said: the server cancelled the request
    tenant_id: str = ""
    key_id: str = ""
    exchange: Exchange | None = None


class Completions:
    """An ASGI endpoint."""

    def __init__(
        self,
        *,
        settings: Settings,
        door: Door,
        limiter: Limiter,
        running: Running,
        spool: Spool,
        proxy: Proxy,
        metrics: Metrics,
        bodies: Bodies,
    ) -> None:
        self._settings = settings
        self._door = door
        self._limiter = limiter
        self._running = running
        self._spool = spool
        self._proxy = proxy
        self._metrics = metrics
        self._bodies = bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, whatever happens."""
        reply = Reply(scope, send, ids.new_id(ids.Kind.REQUEST), self._settings.stalled_client_s)
        asked = Headers(scope)
        told = Told(started_s=time.monotonic(), label=_label(asked.get(headers.CLIENT_LABEL)))
        with self._telling(reply, told):
            try:
                await self._answer(scope, asked, receive, reply, told)
            except ApiError as error:
                told.code = error.code.code
                await reply.error(error)
            except (ClientGone, ClientStalled) as error:
                told.code = "client_gone" if isinstance(error, ClientGone) else "client_stalled"
                reply.abort()
            except Exception:  # noqa: BLE001 - the last stop: the caller gets an answer, the log gets the rest
                _log.exception("request_broke", request_id=reply.request_id)
                told.code = Code.INTERNAL.code
                await reply.error(ApiError(Code.INTERNAL, "Something went wrong on our side. Try again."))
        if reply.aborted:
            # Returning before the server has noticed would be reported as an answer that was forgotten.
            await gone(receive)

    async def _answer(self, scope: Scope, asked: Headers, receive: Receive, reply: Reply, told: Told) -> None:
        snapshot, caller = self._door.enter(asked)
        told.tenant_id, told.key_id, told.known_s = caller.tenant.id, caller.key.id, time.monotonic()
        with self._bodies.holding(caller.tenant.id) as hold:
            taken = intake.parse(await self._read_body(scope, receive, hold))
            exchange = told.exchange = await self._accept(
                snapshot, caller, taken, path=scope["path"], asked=asked, reply=reply, told=told
            )
            try:
                with self._running.enter(exchange), _watching(receive, exchange):
                    await exchange.run(lambda: self._proxy.serve(exchange, reply))
                told.code = exchange.attempts[-1].error_code or "ok"
            finally:
                await exchange.settle()

    async def _accept(
        self, snapshot: Snapshot, caller: Caller, taken: Intake, *, path: str, asked: Headers, reply: Reply, told: Told
    ) -> Exchange:
        """Find what a request means and hold its caller's limits. Raises as :meth:`_reserve`, and what is not found."""
        choice = arm_choice.of(asked, snapshot, caller, taken.model)
        deployment, version_id = choice.deployment, choice.arm.version_id
        wait = patience.of(
            asked,
            deployment.idle,
            stream=taken.stream,
            max_wait_s=self._settings.max_cold_wait_s,
            max_queue_wait_s=self._settings.max_queue_wait_s,
        )
        context_tokens = snapshot.context_tokens(deployment, version_id, caller.tenant.id)
        tokens = limits.request_tokens(
            caller.tenant, caller.key, taken.prompt_tokens, taken.max_tokens, context_tokens, n=taken.n
        )
        reservation = await self._reserve(caller, tokens, reply)
        return Exchange(
            request_id=reply.request_id,
            endpoint=path,
            caller=caller,
            choice=choice,
            intake=taken,
            patience=wait,
            reserved_tokens=tokens,
            phases=_phases(told),
            spool=self._spool,
            release=lambda used: self._limiter.settle(reservation, used),
        )

    async def _read_body(self, scope: Scope, receive: Receive, hold: Hold) -> bytes:
        if len(self._running) >= self._settings.max_running:
            raise ApiError(
                Code.OVERLOADED, "The service is at its capacity. Try again.", retry_after_s=_OVERLOAD_RETRY_S
            )
        bounds = self._settings
        return await read_body(scope, receive, bounds.max_body_bytes, timeout_s=bounds.body_timeout_s, hold=hold)

    async def _reserve(self, caller: Caller, tokens: int, reply: Reply) -> Reservation:
        """Hold the caller's limits for a request, if its usage can be recorded.

        Raises:
            ApiError: it is refused; nothing is reserved and no record is written.
        """
        if self._spool.full:
            raise ApiError(
                Code.SPOOL_FULL, "Usage cannot be recorded for now. Try again.", retry_after_s=_OVERLOAD_RETRY_S
            )
        scopes = limits.scopes_of(caller.tenant, caller.key)
        reservation = await self._limiter.reserve(reply.request_id, scopes, tokens)
        reply.headers += rate_headers.of(reservation.gauges)
        return reservation

    @contextmanager
    def _telling(self, reply: Reply, told: Told) -> Iterator[None]:
        """Log and count the request once it is over."""
        try:
            yield
        finally:
            seconds = time.monotonic() - told.started_s
            self._metrics.answered(told.tenant_id, told.code, seconds, told.exchange)
            _log.info("request", **_line(reply, told, seconds))


def _phases(told: Told) -> Phases:
    """Return the phases up to now, at which the limits are held. The caller's sending of the body is in the second."""
    return Phases(
        auth_ms=round((told.known_s - told.started_s) * 1000),
        admission_ms=round((time.monotonic() - told.known_s) * 1000),
    )


def _line(reply: Reply, told: Told, seconds: float) -> dict[str, Any]:
    """Return what is logged: ids, codes and figures; never a prompt, never a key."""
    line: dict[str, Any] = {
        "request_id": reply.request_id,
        "label": told.label,
        "tenant_id": told.tenant_id,
        "key_id": told.key_id,
        "status": reply.status,
        "code": told.code,
        "ms": round(seconds * 1000, 1),
    }
    exchange = told.exchange
    if exchange is None:
        return line
    line |= {
        "endpoint": exchange.endpoint,
        "deployment_id": exchange.deployment.id,
        "version_id": exchange.arm.version_id,
        "arm": exchange.arm.name,
        "forced": exchange.forced,
        "stream": exchange.intake.stream,
        "attempts": len(exchange.attempts),
    }
    if exchange.attempts:
        last = exchange.attempts[-1]
        line |= {
            "replica_id": last.replica.replica_id if last.replica else "",
            "outcome": last.outcome,
            "prompt_tokens": last.tally.prompt_tokens,
            "delivered_tokens": last.delivered_tokens,
        }
        if last.first_token_s is not None:
            line["ttft_ms"] = round((last.first_token_s - told.started_s) * 1000, 1)
    return line


def _label(text: str | None) -> str:
    """Return a caller's own id, cut short and in printable ASCII: it goes into the log as it is."""
    return "" if text is None else "".join(c for c in text[:_MAX_LABEL_CHARS] if " " <= c <= "~")


@contextmanager
def _watching(receive: Receive, exchange: Exchange) -> Iterator[None]:
    """Cut ``exchange`` when its caller goes away while the block runs."""

    async def watch() -> None:
        await gone(receive)
        exchange.cut(ClientGone())

    watcher = asyncio.ensure_future(watch())
    try:
        yield
    finally:
        watcher.cancel()
