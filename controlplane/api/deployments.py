"""Deployments, their replicas and shares."""

from typing import Any

import msgspec
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.access import TenantView
from controlplane.api.inputs import ClosedSerializer, read
from controlplane.api.listing import list_of, listed
from controlplane.deployments import selectors, services
from controlplane.deployments.selectors import DeploymentSummary, Pool
from dataplane.contracts.catalog import EngineSettings, Share
from tenants.roles import Permission

_DEFAULTS = EngineSettings()


class EngineSerializer(ClosedSerializer):
    """How replicas run. A null leaves the choice to the product."""

    dtype = serializers.CharField(default=_DEFAULTS.dtype, help_text="fp32, fp16 or bf16")
    device = serializers.CharField(default=_DEFAULTS.device, help_text="auto, cpu or cuda")
    max_model_len = serializers.IntegerField(default=None, allow_null=True)
    max_num_seqs = serializers.IntegerField(default=_DEFAULTS.max_num_seqs)
    kv_memory_mb = serializers.IntegerField(default=None, allow_null=True, help_text="MiB of one replica's KV pool")
    block_size = serializers.IntegerField(default=_DEFAULTS.block_size, help_text="tokens of a KV block")
    prefix_cache = serializers.BooleanField(default=_DEFAULTS.prefix_cache)


class ArmSerializer(serializers.Serializer[Any]):
    """A version with its part of the traffic in per cent."""

    name = serializers.CharField()
    weight = serializers.IntegerField()
    version_id = serializers.CharField()
    model = serializers.CharField(source="version.model.name")
    number = serializers.IntegerField(source="version.number")


class DeploymentSerializer(serializers.Serializer[Any]):
    """A deployment. ``arms`` and replicas are told to its owner only."""

    id = serializers.CharField(source="deployment.id")
    name = serializers.CharField(help_text="What to call as `model`; `owner/name` for another tenant's.")
    is_own = serializers.BooleanField()
    state = serializers.CharField(source="deployment.state")
    arms = ArmSerializer(many=True)
    engine = EngineSerializer(source="deployment.engine")
    min_replicas = serializers.IntegerField(source="deployment.min_replicas")
    max_replicas = serializers.IntegerField(source="deployment.max_replicas")
    ready_replicas = serializers.IntegerField()
    num_replicas = serializers.IntegerField()
    created_at = serializers.DateTimeField(source="deployment.created_at")


class NewDeploymentSerializer(ClosedSerializer):
    """A deployment to make."""

    name = serializers.CharField(max_length=64)
    version_id = serializers.CharField(max_length=32)
    engine = EngineSerializer(default=msgspec.structs.asdict(_DEFAULTS))
    min_replicas = serializers.IntegerField(default=1)
    max_replicas = serializers.IntegerField(default=1)


class ReplicaLoadSerializer(serializers.Serializer[Any]):
    """What a replica is doing. Blocks of ``block_size`` tokens."""

    num_running = serializers.IntegerField()
    num_waiting = serializers.IntegerField()
    total_blocks = serializers.IntegerField()
    free_blocks = serializers.IntegerField()
    cached_blocks = serializers.IntegerField()
    owned_blocks = serializers.IntegerField()
    block_size = serializers.IntegerField()
    num_preemptions = serializers.IntegerField()


class ReplicaSerializer(serializers.Serializer[Any]):
    """A replica as its fleet reported it last."""

    id = serializers.CharField(source="row.replica_id")
    state = serializers.CharField(source="row.state")
    cause = serializers.CharField(source="row.cause")
    since = serializers.DateTimeField(source="row.since")
    version_id = serializers.CharField(source="row.version_id")
    restarts = serializers.IntegerField(source="report.restarts")
    kernels = serializers.CharField(source="report.kernels")
    context_tokens = serializers.IntegerField(source="report.context_tokens")
    load = ReplicaLoadSerializer(source="report.load", allow_null=True)


class ReplicaEventSerializer(serializers.Serializer[Any]):
    """A replica's change of state."""

    replica_id = serializers.CharField()
    at = serializers.DateTimeField()
    old = serializers.CharField()
    new = serializers.CharField()
    cause = serializers.CharField()
    version_id = serializers.CharField()


class ShareSerializer(ClosedSerializer):
    """A tenant's KV budget and weight on a deployment. Tokens; a null cap is the whole pool."""

    guarantee_tokens = serializers.IntegerField()
    cap_tokens = serializers.IntegerField(allow_null=True)
    weight = serializers.IntegerField()


class GrantSerializer(serializers.Serializer[Any]):
    """Leave for a tenant to call a deployment, with its share."""

    id = serializers.CharField()
    tenant = serializers.CharField(source="grantee_slug")
    guarantee_tokens = serializers.IntegerField()
    cap_tokens = serializers.IntegerField(allow_null=True)
    weight = serializers.IntegerField()


class PoolSerializer(serializers.Serializer[Any]):
    """The KV pool of one replica, and who has which share in it."""

    pool_tokens = serializers.IntegerField()
    grants = GrantSerializer(many=True)


class DeploymentsView(TenantView):
    """What the tenant may call."""

    writes = Permission.DEPLOYMENTS_WRITE

    @extend_schema(operation_id="list_deployments", responses=list_of(DeploymentSerializer))
    def get(self, request: Request) -> Response:
        """List the tenant's deployments, then those it was granted."""
        return listed(DeploymentSerializer, selectors.list_deployments(actor=self.actor))

    @extend_schema(
        operation_id="deploy_version", request=NewDeploymentSerializer, responses={201: DeploymentSerializer}
    )
    def post(self, request: Request) -> Response:
        """Make a deployment that serves a version."""
        values = read(NewDeploymentSerializer, request.data)
        deployment = services.deploy_version(
            actor=self.actor, **(values | {"engine": EngineSettings(**values["engine"])})
        )
        return Response(DeploymentSerializer(self._summary(deployment.id)).data, status=201)

    def _summary(self, deployment_id: str) -> DeploymentSummary:
        return selectors.get_deployment(actor=self.actor, deployment_id=deployment_id)


class DeploymentView(TenantView):
    """One deployment."""

    writes = Permission.DEPLOYMENTS_WRITE

    @extend_schema(operation_id="get_deployment", responses=DeploymentSerializer)
    def get(self, request: Request, deployment_id: str) -> Response:
        """Return the deployment."""
        summary = selectors.get_deployment(actor=self.actor, deployment_id=deployment_id)
        return Response(DeploymentSerializer(summary).data)

    @extend_schema(operation_id="delete_deployment", responses={204: None})
    def delete(self, request: Request, deployment_id: str) -> Response:
        """End the deployment for good. Its usage stays."""
        services.delete_deployment(actor=self.actor, deployment_id=deployment_id)
        return Response(status=204)


class PauseDeploymentView(TenantView):
    """A pause."""

    writes = Permission.DEPLOYMENTS_WRITE

    @extend_schema(operation_id="pause_deployment", request=None, responses=DeploymentSerializer)
    def post(self, request: Request, deployment_id: str) -> Response:
        """Stop serving; calls get a 503 that says so."""
        services.pause_deployment(actor=self.actor, deployment_id=deployment_id)
        summary = selectors.get_deployment(actor=self.actor, deployment_id=deployment_id)
        return Response(DeploymentSerializer(summary).data)


class ResumeDeploymentView(TenantView):
    """The end of a pause."""

    writes = Permission.DEPLOYMENTS_WRITE

    @extend_schema(operation_id="resume_deployment", request=None, responses=DeploymentSerializer)
    def post(self, request: Request, deployment_id: str) -> Response:
        """Serve again."""
        services.resume_deployment(actor=self.actor, deployment_id=deployment_id)
        summary = selectors.get_deployment(actor=self.actor, deployment_id=deployment_id)
        return Response(DeploymentSerializer(summary).data)


class ReplicasView(TenantView):
    """The replicas of a deployment."""

    @extend_schema(operation_id="list_replicas", responses=list_of(ReplicaSerializer))
    def get(self, request: Request, deployment_id: str) -> Response:
        """List the replicas with their load."""
        replicas = selectors.list_replicas(actor=self.actor, deployment_id=deployment_id)
        return listed(ReplicaSerializer, replicas)


class ReplicaEventsView(TenantView):
    """What happened to the replicas of a deployment."""

    @extend_schema(operation_id="list_replica_events", responses=list_of(ReplicaEventSerializer))
    def get(self, request: Request, deployment_id: str) -> Response:
        """List the last changes of state with their causes, newest first."""
        events = selectors.list_replica_events(actor=self.actor, deployment_id=deployment_id)
        return listed(ReplicaEventSerializer, events)


class SharesView(TenantView):
    """The shares of a deployment's KV pool."""

    writes = Permission.DEPLOYMENTS_WRITE

    @extend_schema(operation_id="get_shares", responses=PoolSerializer)
    def get(self, request: Request, deployment_id: str) -> Response:
        """Return the pool and every tenant's share in it."""
        pool: Pool = selectors.get_pool(actor=self.actor, deployment_id=deployment_id)
        return Response(PoolSerializer(pool).data)

    @extend_schema(operation_id="set_own_share", request=ShareSerializer, responses=GrantSerializer)
    def put(self, request: Request, deployment_id: str) -> Response:
        """Set the owner's own share. Other tenants are let in by the platform."""
        grant = services.set_grant(
            actor=self.actor,
            deployment_id=deployment_id,
            grantee_slug=self.actor.tenant.slug,
            share=Share(**read(ShareSerializer, request.data)),
        )
        return Response(GrantSerializer(grant).data)
