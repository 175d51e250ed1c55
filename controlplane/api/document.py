"""The OpenAPI document: ``python manage.py spectacular --file controlplane/api/openapi.yaml`` writes it."""

from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension, OpenApiSerializerExtension
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import OpenApiParameter

from controlplane.api.access import TENANT, TenantView

_ERRORS = {
    "400": "The request cannot be read: the body is not JSON of one reading, or the address has a NUL.",
    "401": "Nobody in particular is asking: the key or the session is missing or not valid.",
    "403": "The caller's role or scopes do not allow this.",
    "404": "It does not exist, or not for this caller.",
    "406": "Answers are application/json, which the caller does not accept.",
    "408": "The body did not arrive in time.",
    "409": "Somebody else was first, or its state does not allow this.",
    "413": "The body is too large.",
    "415": "The body is not sent as application/json.",
    "422": "An input is refused; fields says which, and why.",
    "429": "Too many parts of this upload are on their way. Send this one again a little later.",
    "503": "Something that this needs is away or full. Ask again later.",
    "507": "The store of files has no room left.",
}
_OF_JSON, _OF_PARTS = {"408", "413", "415"}, {"408", "413", "429", "507"}
_OF_CHANGES, _OF_CALLERS = {"409"}, {"401"}
_DONE = {"200": "Done.", "201": "Made.", "202": "Queued."}
_SCHEMA = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message", "fields", "request_id"],
            "properties": {
                "code": {"type": "string", "description": "A stable code to act on."},
                "message": {"type": "string", "description": "A plain sentence for a person."},
                "fields": {"type": "object", "additionalProperties": {"type": "string"}},
                "request_id": {"type": "string"},
            },
        }
    },
}


class KeyScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """Describes keys in the OpenAPI document."""

    target_class = "controlplane.api.authentication.KeyAuthentication"
    name = "apiKey"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:  # noqa: ANN401 - as the framework has it
        """Return the scheme."""
        return {"type": "http", "scheme": "bearer", "bearerFormat": "pgd_<env>_<lookup>_<secret>_<crc>"}


class ClosedObject(OpenApiSerializerExtension):  # type: ignore[no-untyped-call]
    """Says of inputs that they have no other fields."""

    target_class = "controlplane.api.inputs.ClosedSerializer"
    match_subclasses = True

    def map_serializer(self, auto_schema: Any, direction: Any) -> dict[str, Any]:  # noqa: ANN401 - as the framework has it
        """Return the schema, closed."""
        schema: dict[str, Any] = auto_schema._map_serializer(self.target, direction, bypass_extensions=True)
        return schema | {"additionalProperties": False}


class Operation(AutoSchema):
    """Describes one operation."""

    def get_override_parameters(self) -> list[Any]:
        """Return what every operation in a tenant takes."""
        if not isinstance(self.view, TenantView):
            return []
        return [OpenApiParameter(TENANT, description="The tenant to act in, by its slug, for people in several.")]


def describe_answers(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """Add the error answers, of which most are the same for every operation, and say what success is."""
    components = result["components"]
    components["schemas"]["Error"] = _SCHEMA
    components["responses"] = {
        f"Error{status}": {
            "description": description,
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
        }
        for status, description in _ERRORS.items()
    }
    for operations in result["paths"].values():
        for method, operation in operations.items():
            answers = operation["responses"]
            for status in _errors_of(method, operation):
                answers.setdefault(status, {"$ref": f"#/components/responses/Error{status}"})
            for status, answer in answers.items():
                if answer.get("description") == "":
                    answer["description"] = _DONE[status]
    return result


def _errors_of(method: str, operation: dict[str, Any]) -> list[str]:
    body = operation.get("requestBody", {}).get("content", {})
    never = _OF_JSON | _OF_PARTS
    never -= _OF_JSON if "application/json" in body else _OF_PARTS if body else set()
    never |= (_OF_CHANGES if method == "get" else set()) | (_OF_CALLERS if "security" not in operation else set())
    return [status for status in _ERRORS if status not in never]
