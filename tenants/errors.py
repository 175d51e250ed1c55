"""The one tree of errors that a caller may read. Codes are stable; the sentence may be reworded.

They are mapped to HTTP in two places only: ``controlplane.middleware`` for pages, the API's exception handler for JSON.
"""

from collections.abc import Mapping


class DomainError(Exception):
    """What was asked cannot be done.

    Args:
        message: one plain sentence: what is wrong, and what to do.
        code: a stable code, where the class's own says too little.
    """

    code = "error"

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        if code is not None:
            self.code = code


class Unauthenticated(DomainError):
    """Nobody in particular is asking."""

    code = "unauthenticated"


class NotFound(DomainError):
    """It does not exist, or not for this actor: a stranger cannot tell the two apart."""

    code = "not_found"


class Forbidden(DomainError):
    """The actor belongs here, but its role or scopes do not allow this."""

    code = "forbidden"


class Conflict(DomainError):
    """Somebody else was first, or the thing is not in the state that this needs."""

    code = "conflict"


class Invalid(DomainError):
    """The input is refused; ``fields`` says which field and why."""

    code = "invalid"

    def __init__(self, message: str, *, fields: Mapping[str, str] | None = None, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.fields = dict(fields or {})


class Unavailable(DomainError):
    """It could be done, but not now: something that it needs is away or full. Asking again later may do."""

    code = "unavailable"
