"""Who am I, where, and what may I do."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.access import TenantView
from controlplane.api.inputs import LimitsSerializer
from tenants.selectors import tenant_limits


class TenantSerializer(serializers.Serializer[Any]):
    """A tenant."""

    id = serializers.CharField()
    slug = serializers.CharField()
    name = serializers.CharField()
    active = serializers.BooleanField()


class MeSerializer(serializers.Serializer[Any]):
    """The caller, its tenant and what it may do there. ``limits`` is null to those who may not read them."""

    kind = serializers.CharField()
    id = serializers.CharField()
    label = serializers.CharField()  # type: ignore[assignment]  # the framework has an attribute of that name
    role = serializers.CharField(allow_null=True)
    permissions = serializers.ListField(child=serializers.CharField())
    tenant = TenantSerializer()
    limits = LimitsSerializer()


class MeView(TenantView):
    """The caller."""

    @extend_schema(operation_id="get_me", responses=MeSerializer)
    def get(self, request: Request) -> Response:
        """Return the caller, its tenant and its limits."""
        actor = self.actor
        body = {
            "kind": actor.kind,
            "id": actor.id,
            "label": actor.label,
            "role": actor.role,
            "permissions": sorted(actor.permissions),
            "tenant": actor.tenant,
            "limits": tenant_limits(actor=actor),
        }
        return Response(MeSerializer(body).data)
