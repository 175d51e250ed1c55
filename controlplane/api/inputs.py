"""What comes in: JSON of bounded size, and closed sets of fields."""

from collections.abc import Mapping
from typing import IO, Any

from drf_spectacular.utils import OpenApiExample, extend_schema_serializer
from rest_framework import serializers
from rest_framework.exceptions import APIException, ParseError
from rest_framework.parsers import BaseParser

from dataplane.contracts import strict_json
from dataplane.contracts.catalog import Limits

MAX_BODY_BYTES = 1024 * 1024
_JSON_TYPES: tuple[tuple[type[serializers.Field[Any, Any, Any, Any]], tuple[type, ...], str], ...] = (
    (serializers.BooleanField, (bool,), "true or false"),
    (serializers.IntegerField, (int,), "a whole number"),
    (serializers.FloatField, (int, float), "a number"),
    (serializers.CharField, (str,), "text"),
)
"""What a field takes of JSON. The framework takes "1" and 1.0 for 1, "no" for false and 7 for "7"; we do not."""


class BodyTooLarge(APIException):
    """More bytes than any call needs."""

    status_code = 413
    default_code = "body_too_large"
    default_detail = f"A body has at most {MAX_BODY_BYTES} bytes."


class JsonParser(BaseParser):
    """Reads JSON by the letter: no NaN, no lone surrogates, no key twice, no more than :data:`MAX_BODY_BYTES`."""

    media_type = "application/json"

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:  # noqa: ANN401 - JSON is anything
        """Return the body's value.

        Raises:
            BodyTooLarge: too many bytes.
            ParseError: not JSON of one reading.
        """
        raw = stream.read(MAX_BODY_BYTES + 1)
        if len(raw) > MAX_BODY_BYTES:
            raise BodyTooLarge
        try:
            return strict_json.loads(raw, MAX_BODY_BYTES)
        except strict_json.StrictJsonError as error:
            raise ParseError(f"The body cannot be read: {error}.") from error


class ClosedSerializer(serializers.Serializer[Any]):
    """A JSON object of known fields; one that is not known, or of another type, is refused by name."""

    def to_internal_value(self, data: Any) -> dict[str, Any]:  # noqa: ANN401 - as the framework has it
        """Check the names, then the types, then the values."""
        if isinstance(data, Mapping):
            unknown = sorted(set(data) - set(self.fields))
            if unknown:
                known = ", ".join(self.fields) or "none"
                raise serializers.ValidationError(dict.fromkeys(unknown, f"There is no such field. Known: {known}."))
            faults = {name: fault for name, value in data.items() if (fault := _mistyped(self.fields[name], value))}
            if faults:
                raise serializers.ValidationError(faults)
        values: dict[str, Any] = super().to_internal_value(data)
        return values


def example(value: dict[str, Any]) -> Any:  # noqa: ANN401 - a decorator as the framework has it
    """Return a decorator that gives an input its example in the OpenAPI document."""
    return extend_schema_serializer(examples=[OpenApiExample("one", value=value, request_only=True)])


@example(
    {"requests_per_minute": 600, "tokens_per_minute": 200_000, "concurrent_requests": 32, "max_request_tokens": None}
)
class LimitsSerializer(ClosedSerializer):
    """Limits of a tenant or a key; null is no limit of its own."""

    requests_per_minute = serializers.IntegerField(allow_null=True)
    tokens_per_minute = serializers.IntegerField(allow_null=True)
    concurrent_requests = serializers.IntegerField(allow_null=True)
    max_request_tokens = serializers.IntegerField(allow_null=True)


def _mistyped(field: serializers.Field[Any, Any, Any, Any], value: Any) -> Any:  # noqa: ANN401 - JSON is anything
    """Return what is wrong with the JSON types of ``value``, nested as it is; nothing where they fit."""
    if isinstance(field, serializers.ListField) and isinstance(value, list):
        return {index: fault for index, each in enumerate(value) if (fault := _mistyped(field.child, each))}
    if isinstance(field, serializers.DictField) and isinstance(value, dict):
        return {name: fault for name, each in value.items() if (fault := _mistyped(field.child, each))}
    for kind, types, words in _JSON_TYPES:
        if isinstance(field, kind) and value is not None and type(value) not in types:
            return f"This is {words}."
    return None


def read(serializer: type[serializers.Serializer[Any]], data: Any) -> dict[str, Any]:  # noqa: ANN401 - unchecked input
    """Return the checked values of ``data``.

    Raises:
        ValidationError: a value is refused; each is named.
    """
    checked = serializer(data=data)
    checked.is_valid(raise_exception=True)
    values: dict[str, Any] = checked.validated_data
    return values


def limits(data: Any) -> Limits:  # noqa: ANN401 - unchecked input
    """Return limits as the services take them. Raises as :func:`read` does."""
    return Limits(**read(LimitsSerializer, data))
