"""What every endpoint of a worker does around its answer: who calls, and how a request that fails is told so."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import structlog

from dataplane.contracts import headers
from dataplane.contracts.errors import ApiError, Code, envelope
from dataplane.http_server.asgi import ClientGone, Receive, Scope, Send
from dataplane.worker import answers, doors
from dataplane.worker.doors import Caller
from dataplane.worker.exchange import Exchange

if TYPE_CHECKING:
    from dataplane.worker.app import Worker

_log = structlog.get_logger(__name__)


class JsonEndpoint(ABC):
    """An ASGI application that takes a JSON body."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, whatever happens."""
        exchange = Exchange(scope, receive, send)
        caller = Caller(request_id="")
        try:
            caller = doors.read_caller(scope, self._worker.trust_header)
            await self._answer(exchange, caller)
        except ClientGone:
            _log.info("client_gone", request_id=caller.request_id)
        except ApiError as error:
            await self._fail(exchange, caller, error)
        except Exception:  # noqa: BLE001 - the last line of defence: one request fails, with an answer
            _log.exception("request_crashed", request_id=caller.request_id)
            await self._fail(exchange, caller, ApiError(Code.INTERNAL, "something went wrong on our side; try again"))

    @abstractmethod
    async def _answer(self, exchange: Exchange, caller: Caller) -> None:
        """Answer one request.

        Raises:
            ApiError: for its caller to read.
            ClientGone: nobody is there to read anything.
        """

    async def _fail(self, exchange: Exchange, caller: Caller, error: ApiError) -> None:
        if not exchange.started and not caller.probe:
            self._worker.metrics.rejected(caller.tenant_id, error.code.code)
            _log.info("request_refused", request_id=caller.request_id, code=error.code.code, param=error.param)
        if exchange.started:
            await exchange.write(answers.error_event(error, caller.request_id), more=False)
        else:
            body = envelope(error, caller.request_id or None)
            await exchange.whole(error.code.status, body, _error_headers(error, caller.request_id))


def _error_headers(error: ApiError, request_id: str) -> dict[str, str]:
    fields = {headers.PUBLIC_REQUEST_ID: request_id} if request_id else {}
    if error.retry_after_s is not None:
        fields["retry-after"] = str(max(1, round(error.retry_after_s)))
    return fields
