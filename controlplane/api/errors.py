"""Errors of the API as JSON: the one place beside the pages' middleware that maps a domain error to HTTP.

``{"error": {"code", "message", "fields", "request_id"}}``; ``fields`` is empty unless single inputs are at fault.
"""

from collections.abc import Mapping
from typing import Any

import structlog
from django.core.exceptions import PermissionDenied
from django.http import Http404, JsonResponse
from rest_framework import exceptions
from rest_framework.response import Response

from tenants.errors import Conflict, DomainError, Forbidden, Invalid, NotFound, Unauthenticated, Unavailable

AUTHENTICATE = 'Bearer realm="pagoda"'
_STATUS: Mapping[type[DomainError], int] = {
    Unauthenticated: 401, Forbidden: 403, NotFound: 404, Conflict: 409, Invalid: 422, Unavailable: 503,
}  # fmt: skip


def handle(error: Exception, _context: Mapping[str, Any]) -> Response | None:
    """Return the answer to ``error``; None for what nobody foresaw, which Django logs and answers with a plain 500."""
    if isinstance(error, DomainError):
        status = next(code for kind, code in _STATUS.items() if isinstance(error, kind))
        fields = dict(error.fields) if isinstance(error, Invalid) else {}
        return _answer(status, error.code, error.message, fields)
    if isinstance(error, exceptions.ValidationError):
        fields = _flat(error.detail)
        message = " ".join(f"{field}: {reason}" if field else reason for field, reason in fields.items())
        return _answer(422, "invalid", message, fields)
    if isinstance(error, Http404):
        return _answer(404, "not_found", "There is nothing here.", {})
    if isinstance(error, PermissionDenied):
        return _answer(403, "forbidden", "This is not allowed.", {})
    if isinstance(error, exceptions.APIException):
        codes = error.get_codes()
        return _answer(error.status_code, codes if isinstance(codes, str) else "error", str(error.detail), {})
    return None


def envelope(code: str, message: str, fields: dict[str, str], request_id: str) -> dict[str, Any]:
    """Return the body of an answer that refuses."""
    return {"error": {"code": code, "message": message, "fields": fields, "request_id": request_id}}


def is_api(path: str) -> bool:
    """Say whether an address is a program's, which reads errors as JSON wherever they come from."""
    return path.startswith("/api/")


def refusal(status: int, code: str, message: str) -> JsonResponse:
    """Return an answer that refuses, made where the framework of the API is not at hand."""
    return JsonResponse(envelope(code, message, {}, _request_id()), status=status)


def _request_id() -> str:
    request_id: str = structlog.contextvars.get_contextvars().get("request_id", "")
    return request_id


def _answer(status: int, code: str, message: str, fields: dict[str, str]) -> Response:
    body = envelope(code, message, fields, _request_id())
    headers = {"WWW-Authenticate": AUTHENTICATE} if status == 401 else {}
    return Response(body, status=status, headers=headers)


def _flat(detail: Any, path: str = "") -> dict[str, str]:  # noqa: ANN401 - REST framework nests lists and dicts at will
    """Flatten nested details to dotted field names; "" is the input as a whole."""
    if isinstance(detail, dict):
        flat: dict[str, str] = {}
        for field, inner in detail.items():
            name = "" if field == "non_field_errors" else str(field)
            flat |= _flat(inner, ".".join(filter(None, (path, name))))
        return flat
    if isinstance(detail, list):
        if all(isinstance(item, str) for item in detail):
            return {path: " ".join(detail)}
        return {key: reason for item in detail for key, reason in _flat(item, path).items()}
    return {path: str(detail)}
