"""For those who run the platform: tenants and their limits, grants, and the fleet."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.access import PlatformView
from controlplane.api.deployments import GrantSerializer, ReplicaSerializer, ShareSerializer
from controlplane.api.inputs import ClosedSerializer, LimitsSerializer, example, limits, read
from controlplane.api.listing import list_of, listed
from controlplane.api.me import TenantSerializer
from controlplane.deployments import selectors as deployments
from controlplane.deployments import services
from dataplane.contracts.catalog import Share
from tenants.selectors import get_tenant, list_tenants
from tenants.services import set_tenant_quota
from tenants.services.quotas import set_tenant_serving
from tenants.serving import ServingLimits


class TenantWithLimitsSerializer(TenantSerializer):
    """A tenant and its limits."""

    limits = LimitsSerializer()


@example({"deployments": 20, "kept_replicas": 4})
class ServingLimitsSerializer(ClosedSerializer):
    """What a tenant may have served; null is no limit of its own, the platform's holds."""

    deployments = serializers.IntegerField(allow_null=True, help_text="paused ones included")
    kept_replicas = serializers.IntegerField(
        allow_null=True, help_text="kept ready without any demand by all of them, when their schedules ask for most"
    )


class FleetReplicaSerializer(ReplicaSerializer):
    """A replica of any tenant, or of none."""

    deployment_id = serializers.CharField(source="row.deployment_id")
    owner_tenant_id = serializers.CharField(source="row.tenant_id", allow_null=True)
    detail = serializers.CharField(source="report.detail")


class NodeSerializer(serializers.Serializer[Any]):
    """A node of the fleet."""

    node = serializers.CharField(source="node.node")
    at = serializers.DateTimeField(source="node.at", help_text="When the node made its last report, by its clock.")
    seen_at = serializers.DateTimeField(source="node.seen_at", help_text="When it arrived here.")
    replicas = FleetReplicaSerializer(many=True)


class TenantsView(PlatformView):
    """All tenants."""

    @extend_schema(operation_id="list_tenants", responses=list_of(TenantWithLimitsSerializer))
    def get(self, request: Request) -> Response:
        """List every tenant with its limits."""
        rows = [
            {"id": row.id, "slug": row.slug, "name": row.name, "active": row.active, "limits": of_row}
            for row, of_row in list_tenants(actor=self.actor)
        ]
        return listed(TenantWithLimitsSerializer, rows)


class TenantLimitsView(PlatformView):
    """A tenant's limits."""

    @extend_schema(operation_id="set_tenant_limits", request=LimitsSerializer, responses=LimitsSerializer)
    def put(self, request: Request, slug: str) -> Response:
        """Replace the tenant's limits. The next admission goes by them."""
        tenant = get_tenant(actor=self.actor, slug=slug)
        quota = set_tenant_quota(actor=self.actor, tenant_id=tenant.id, limits=limits(request.data))
        return Response(LimitsSerializer(quota.limits).data)


class TenantServingView(PlatformView):
    """What a tenant may have served."""

    @extend_schema(
        operation_id="set_tenant_serving", request=ServingLimitsSerializer, responses=ServingLimitsSerializer
    )
    def put(self, request: Request, slug: str) -> Response:
        """Replace the tenant's limits of serving. What is served already stays."""
        tenant = get_tenant(actor=self.actor, slug=slug)
        own = ServingLimits(**read(ServingLimitsSerializer, request.data))
        quota = set_tenant_serving(actor=self.actor, tenant_id=tenant.id, limits=own)
        return Response(ServingLimitsSerializer(quota.serving).data)


class FleetView(PlatformView):
    """The fleet."""

    @extend_schema(operation_id="list_fleet", responses=list_of(NodeSerializer))
    def get(self, request: Request) -> Response:
        """List every node with its replicas."""
        return listed(NodeSerializer, deployments.list_fleet(actor=self.actor))


class GrantView(PlatformView):
    """A tenant's leave to call a deployment."""

    @extend_schema(operation_id="set_grant", request=ShareSerializer, responses=GrantSerializer)
    def put(self, request: Request, deployment_id: str, slug: str) -> Response:
        """Let the tenant call the deployment with this share of its KV pool."""
        grant = services.set_grant(
            actor=self.actor,
            deployment_id=deployment_id,
            grantee_slug=slug,
            share=Share(**read(ShareSerializer, request.data)),
        )
        return Response(GrantSerializer(grant).data)

    @extend_schema(operation_id="remove_grant", responses={204: None})
    def delete(self, request: Request, deployment_id: str, slug: str) -> Response:
        """Take the leave back."""
        services.remove_grant(actor=self.actor, deployment_id=deployment_id, grantee_slug=slug)
        return Response(status=204)


class GrantCacheView(PlatformView):
    """The end of what a tenant has in a deployment's prefix cache."""

    @extend_schema(operation_id="rotate_any_cache", request=None, responses=GrantSerializer)
    def post(self, request: Request, deployment_id: str, slug: str) -> Response:
        """Forget what the tenant has cached of its prompts. What runs goes on."""
        grant = services.rotate_cache(actor=self.actor, deployment_id=deployment_id, grantee_slug=slug)
        return Response(GrantSerializer(grant).data)
