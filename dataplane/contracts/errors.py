"""The catalogue of data-plane errors: a stable code, an HTTP status, OpenAI's error type.

Nothing but the code, a plain sentence and the request id leaves the system. ``429`` is the tenant's limit, ``503`` is
our lack of capacity; the one is never blamed for the other.
"""

from enum import Enum

import msgspec


class Code(Enum):
    """Stable codes: (code, HTTP status, error type of OpenAI's envelope)."""

    INVALID_REQUEST = ("invalid_request", 400, "invalid_request_error")
    INVALID_JSON = ("invalid_json", 400, "invalid_request_error")
    UNSUPPORTED_PARAMETER = ("unsupported_parameter", 400, "invalid_request_error")
    INVALID_PARAMETER = ("invalid_parameter", 400, "invalid_request_error")
    CONTEXT_LENGTH_EXCEEDED = ("context_length_exceeded", 400, "invalid_request_error")
    REQUEST_TOO_LARGE_FOR_BUDGET = ("request_too_large_for_budget", 400, "invalid_request_error")
    TOKENIZER_FAILED = ("tokenizer_failed", 400, "invalid_request_error")
    TEMPLATE_FAILED = ("template_failed", 400, "invalid_request_error")
    GRAMMAR_FAILED = ("grammar_failed", 400, "invalid_request_error")
    BODY_TOO_LARGE = ("body_too_large", 413, "invalid_request_error")
    INVALID_API_KEY = ("invalid_api_key", 401, "authentication_error")
    KEY_REVOKED = ("key_revoked", 401, "authentication_error")
    SCOPE_MISSING = ("scope_missing", 403, "permission_error")
    TENANT_SUSPENDED = ("tenant_suspended", 403, "permission_error")
    MODEL_NOT_FOUND = ("model_not_found", 404, "invalid_request_error")
    NOT_FOUND = ("not_found", 404, "invalid_request_error")
    METHOD_NOT_ALLOWED = ("method_not_allowed", 405, "invalid_request_error")
    REQUESTS_PER_MINUTE = ("requests_per_minute", 429, "rate_limit_error")
    TOKENS_PER_MINUTE = ("tokens_per_minute", 429, "rate_limit_error")
    CONCURRENT_REQUESTS = ("concurrent_requests", 429, "rate_limit_error")
    MAX_REQUEST_TOKENS = ("max_request_tokens", 400, "invalid_request_error")
    QUEUE_FULL = ("queue_full", 429, "rate_limit_error")
    OVERLOADED = ("overloaded", 503, "service_unavailable_error")
    MODEL_COLD = ("model_cold", 503, "service_unavailable_error")
    MODEL_PAUSED = ("model_paused", 503, "service_unavailable_error")
    REPLICA_LOST = ("replica_lost", 502, "server_error")
    QUEUE_TIMEOUT = ("queue_timeout", 504, "server_error")
    SPOOL_FULL = ("spool_full", 503, "service_unavailable_error")
    REQUEST_FAILED = ("request_failed", 500, "server_error")
    LOGITS_NOT_FINITE = ("logits_not_finite", 500, "server_error")
    SHUTTING_DOWN = ("shutting_down", 503, "service_unavailable_error")
    INTERNAL = ("internal", 500, "server_error")

    def __init__(self, code: str, status: int, type_: str) -> None:
        self.code = code
        self.status = status
        self.type = type_

    @classmethod
    def named(cls, code: str, default: "Code") -> "Code":
        """Return the entry whose stable code is ``code``; ``default`` where there is none."""
        return next((entry for entry in cls if entry.code == code), default)


class ApiError(Exception):
    """An error a caller may read.

    Args:
        code: an entry of the catalogue.
        message: one plain sentence: what is wrong, and what to do.
        param: the request field at fault, where there is one.
        retry_after_s: seconds after which a retry makes sense.
    """

    def __init__(
        self, code: Code, message: str, *, param: str | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s


class ErrorBody(msgspec.Struct, frozen=True):
    """OpenAI's error object, with our request id."""

    message: str
    type: str
    code: str
    param: str | None = None
    request_id: str | None = None


class ErrorEnvelope(msgspec.Struct, frozen=True):
    """OpenAI's error envelope: the body of a failed call, or the ``data:`` of a stream's error event."""

    error: ErrorBody


def envelope(error: ApiError, request_id: str | None) -> bytes:
    """Return the JSON of ``error`` in OpenAI's envelope."""
    body = ErrorBody(
        message=error.message, type=error.code.type, code=error.code.code, param=error.param, request_id=request_id
    )
    return msgspec.json.encode(ErrorEnvelope(error=body))
