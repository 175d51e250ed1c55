"""Lists as the API answers them: ``{"data": [...]}``, so that more can be said beside them one day."""

from collections.abc import Iterable
from functools import cache
from typing import Any

from drf_spectacular.utils import inline_serializer
from rest_framework import serializers
from rest_framework.response import Response


@cache  # two operations that answer with one list have one schema of it
def list_of(item: type[serializers.Serializer[Any]]) -> serializers.Serializer[Any]:
    """Return the serializer of a list of ``item``, for the OpenAPI document."""
    name = item.__name__.removesuffix("Serializer")
    return inline_serializer(name=f"{name}List", fields={"data": item(many=True)})


def listed(item: type[serializers.Serializer[Any]], rows: Iterable[Any], **more: Any) -> Response:
    """Return the answer that lists ``rows``."""
    return Response({"data": item(list(rows), many=True).data, **more})
