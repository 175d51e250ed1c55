"""For the product's own processes: the catalog out, usage and replicas in; a bearer secret, bounded bodies."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import msgspec
from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseNotModified
from django.views.decorators.csrf import csrf_exempt

from controlplane.deployments import catalog, fleet
from controlplane.isolation import services as isolation
from controlplane.metering import services as metering
from dataplane.contracts.internal_calls import is_internal
from dataplane.contracts.replica import FleetReport
from dataplane.contracts.usage import UsageBatch
from tenants.actor import system_actor

MAX_BODY_BYTES = 8 * 1024 * 1024
_View = Callable[[HttpRequest], HttpResponse]
_Message = TypeVar("_Message")


class _RefusedError(Exception):
    """A call that is answered with ``status`` and a sentence."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def _internal(method: str) -> Callable[[_View], _View]:
    """Admit one method, and only who knows the internal secret."""

    def decorate(view: _View) -> _View:
        @csrf_exempt
        @wraps(view)
        def guarded(request: HttpRequest) -> HttpResponse:
            if not is_internal(request.META.get("HTTP_AUTHORIZATION"), settings.PAGODA_INTERNAL_SECRET):
                return HttpResponse("The internal secret is wrong or missing.", status=401, content_type="text/plain")
            if request.method != method:
                return HttpResponse(status=405, headers={"Allow": method})
            try:
                return view(request)
            except _RefusedError as error:
                return HttpResponse(str(error), status=error.status, content_type="text/plain")

        return guarded

    return decorate


@_internal("GET")
def get_catalog(request: HttpRequest) -> HttpResponse:
    """Answer the catalog, or 304 where the reader has its number (``?after=N``) already."""
    after = request.GET.get("after")
    if after is not None and not (after.isascii() and after.isdecimal() and len(after) < 20):
        raise _RefusedError(400, "after is the number of a catalog")
    unless_number = None if after is None else int(after)
    body = catalog.latest(actor=system_actor("internal"), unless_number=unless_number)
    if body is None:
        return HttpResponseNotModified()
    return HttpResponse(body, content_type="application/json")


@_internal("POST")
def post_usage(request: HttpRequest) -> HttpResponse:
    """Take in a batch of spool records; every one is durable when this answers."""
    batch = _decoded(request, UsageBatch)
    receipt = metering.ingest(actor=system_actor("internal"), records=batch.records)
    return HttpResponse(msgspec.json.encode(receipt), content_type="application/json")


@_internal("POST")
def post_replicas(request: HttpRequest) -> HttpResponse:
    """Take in what a fleet reports: all of it, or the fleet tells it again."""
    report = _decoded(request, FleetReport)
    fleet.report_replicas(actor=system_actor("internal"), report=report)
    isolation.ingest(actor=system_actor("internal"), report=report)
    return HttpResponse(status=204)


def _decoded(request: HttpRequest, kind: type[_Message]) -> _Message:
    body: Any = request.read(MAX_BODY_BYTES + 1)
    if len(body) > MAX_BODY_BYTES:
        raise _RefusedError(413, f"a body has at most {MAX_BODY_BYTES} bytes")
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _RefusedError(400, f"this is no {kind.__name__}: {error}") from error
