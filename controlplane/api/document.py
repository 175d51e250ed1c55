"""The OpenAPI document: ``python manage.py spectacular --file controlplane/api/openapi.yaml`` writes it."""

from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension

_ERRORS = {
    "401": "Nobody in particular is asking: the key or the session is missing or not valid.",
    "403": "The caller's role or scopes do not allow this.",
    "404": "It does not exist, or not for this caller.",
    "409": "Somebody else was first, or its state does not allow this.",
    "422": "An input is refused; fields says which, and why.",
    "503": "Something that this needs is away or full. Ask again later.",
}
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


def describe_errors(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """Add the error answers, which are the same for every operation."""
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
        for operation in operations.values():
            for status in _ERRORS:
                operation["responses"][status] = {"$ref": f"#/components/responses/Error{status}"}
    return result
