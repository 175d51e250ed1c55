"""What every request passes: its id, its context for logs and audit rows, and the pages of our errors."""

import contextlib
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import structlog
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.defaults import page_not_found
from django.views.defaults import server_error as page_server_error
from whitenoise.middleware import WhiteNoiseMiddleware

from controlplane.api.errors import is_api, refusal
from dataplane.contracts.headers import PUBLIC_REQUEST_ID
from dataplane.contracts.ids import Kind, new_id
from tenants import audit
from tenants.errors import Conflict, DomainError, Forbidden, Invalid, NotFound, Unauthenticated, Unavailable

_Next = Callable[[HttpRequest], HttpResponse]

_STATUS: dict[type[DomainError], int] = {Forbidden: 403, NotFound: 404, Conflict: 409, Invalid: 422, Unavailable: 503}
_INTERNAL_ERROR = 500


class RequestContextMiddleware:
    """Mint the request's id; logs, audit rows and the answer carry it. A caller's own id is never trusted as ours."""

    def __init__(self, get_response: _Next) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """Answer the request within its context."""
        request_id = new_id(Kind.REQUEST)
        address = request.META.get("REMOTE_ADDR") or ""
        with (
            structlog.contextvars.bound_contextvars(request_id=request_id),
            audit.originating(audit.Origin(request_id=request_id, address=address)),
        ):
            response = self._get_response(request) if not _has_nul(request) else _no_nul(request)
        response[PUBLIC_REQUEST_ID] = request_id
        return response


def _has_nul(request: HttpRequest) -> bool:
    return "\0" in request.path or "%00" in request.META.get("QUERY_STRING", "")


def _no_nul(request: HttpRequest) -> HttpResponse:
    """Refuse what PostgreSQL has no text for, before an address is used to look something up."""
    message = "An address has no NUL character."
    if is_api(request.path):
        return refusal(400, "invalid_address", message)
    return HttpResponse(message, status=400, content_type="text/plain")


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Answer an address that is no route's: to programs in their own shape."""
    if is_api(request.path):
        return refusal(404, "not_found", "There is nothing here. See the OpenAPI document for what there is.")
    return page_not_found(request, exception)


def server_error(request: HttpRequest) -> HttpResponse:
    """Answer where something failed that nobody foresaw; the log has it under the request's id."""
    if is_api(request.path):
        return refusal(500, "internal", "Something failed on our side. Tell us the request id.")
    return page_server_error(request)


class StaticMiddleware(WhiteNoiseMiddleware):  # type: ignore[misc]  # WhiteNoise has no types
    """Static files as whole answers: they are small, and an ASGI server cannot stream what is read from a disk."""

    @staticmethod
    def serve(static_file: Any, request: HttpRequest) -> HttpResponse:  # noqa: ANN401
        """Answer with the file."""
        streamed = WhiteNoiseMiddleware.serve(static_file, request)
        with contextlib.closing(streamed):
            return HttpResponse(b"".join(streamed), status=streamed.status_code, headers=streamed.headers)


class DomainErrorMiddleware:
    """Turn an error of :mod:`tenants.errors` into its page. One of the two places that know HTTP statuses."""

    def __init__(self, get_response: _Next) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """Pass the request on."""
        return self._get_response(request)

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        """Return the page of a domain error; leave every other exception alone."""
        if isinstance(error, Unauthenticated):
            return redirect(f"{reverse('account_login')}?next={quote(request.get_full_path())}")
        if not isinstance(error, DomainError):
            return None
        status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), _INTERNAL_ERROR)
        context = {"status": status, "error": error, "request_id": audit.current_origin().request_id}
        return render(request, "error.html", context, status=status)
