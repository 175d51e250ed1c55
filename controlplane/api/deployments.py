"""Deployments, their replicas and shares."""

from typing import Any

import msgspec
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.access import TenantView
from controlplane.api.inputs import ClosedSerializer, example, read
from controlplane.api.listing import list_of, listed
from controlplane.deployments import selectors, services
from controlplane.deployments.selectors import DeploymentSummary, Pool
from controlplane.deployments.services import Changes
from dataplane.contracts.catalog import EngineSettings, IdlePolicy, KeepWarm, Share
from tenants.roles import Permission

_DEFAULTS = EngineSettings()
_PACE_HELP = "between two pieces of an answer, whatever the batch does; 0 sends them as they come"
_DTYPE_HELP = "of the weights: fp32, fp16, bf16, int8 or int4; a version that is int8 or int4 itself stays so"
_KV_DTYPE_HELP = "of keys and values: fp32, fp16, bf16, int8, or auto: as the weights, fp16 beside int8 and int4"


class EngineSerializer(ClosedSerializer):
    """How replicas run. A null leaves the choice to the product."""

    dtype = serializers.CharField(default=_DEFAULTS.dtype, help_text=_DTYPE_HELP)
    kv_dtype = serializers.CharField(default=_DEFAULTS.kv_dtype, help_text=_KV_DTYPE_HELP)
    device = serializers.CharField(default=_DEFAULTS.device, help_text="auto, cpu or cuda")
    max_model_len = serializers.IntegerField(default=None, allow_null=True)
    max_num_seqs = serializers.IntegerField(default=_DEFAULTS.max_num_seqs)
    kv_memory_mb = serializers.IntegerField(default=None, allow_null=True, help_text="MiB of one replica's KV pool")
    block_size = serializers.IntegerField(default=_DEFAULTS.block_size, help_text="tokens of a KV block")
    prefix_cache = serializers.BooleanField(default=_DEFAULTS.prefix_cache)


class EngineChangesSerializer(ClosedSerializer):
    """What is to be different about how replicas run."""

    dtype = serializers.CharField(required=False, help_text=_DTYPE_HELP)
    kv_dtype = serializers.CharField(required=False, help_text=_KV_DTYPE_HELP)
    device = serializers.CharField(required=False)
    max_model_len = serializers.IntegerField(required=False, allow_null=True)
    max_num_seqs = serializers.IntegerField(required=False)
    kv_memory_mb = serializers.IntegerField(required=False)
    block_size = serializers.IntegerField(required=False)
    prefix_cache = serializers.BooleanField(required=False)


class IdleSerializer(ClosedSerializer):
    """How warm an idle deployment is kept. Seconds since its last use; a null never steps down that far."""

    asleep_after_s = serializers.IntegerField(
        required=False, allow_null=True, help_text="until its KV memory is given back; the weights stay in memory"
    )
    warm_after_s = serializers.IntegerField(
        required=False, allow_null=True, help_text="until its process ends; one without weights waits for it"
    )
    disk_after_s = serializers.IntegerField(
        required=False, allow_null=True, help_text="until no process waits for it either"
    )
    cold_wait_s = serializers.IntegerField(required=False, help_text="how long a call may wait for a start")


class ScheduleSerializer(ClosedSerializer):
    """A time of the week, in UTC, during which replicas are kept ready. What goes over midnight takes two."""

    days = serializers.ListField(child=serializers.IntegerField(), help_text="0 is Monday")
    from_minute = serializers.IntegerField(help_text="minute of the day, 0 to 1439")
    to_minute = serializers.IntegerField(help_text="the first minute that is no longer part of it, up to 1440")
    min_replicas = serializers.IntegerField()


class ArmSerializer(serializers.Serializer[Any]):
    """A version with its part of the traffic in per cent."""

    name = serializers.CharField()
    weight = serializers.IntegerField()
    version_id = serializers.CharField()
    model = serializers.CharField(source="version.model.name")
    number = serializers.IntegerField(source="version.number")


class DeploymentSerializer(serializers.Serializer[Any]):
    """A deployment. ``arms`` and replicas are told to its owner only, and so are settings: null for a guest."""

    id = serializers.CharField(source="deployment.id")
    name = serializers.CharField(help_text="What to call as `model`; `owner/name` for another tenant's.")
    is_own = serializers.BooleanField()
    state = serializers.CharField(source="deployment.state")
    standing = serializers.CharField(
        source="state.standing",
        help_text="paused, live, starting, failing, draining; resting: asleep, warm, on disk, in store",
    )
    standing_cause = serializers.CharField(source="state.cause")
    start_eta_ms = serializers.IntegerField(
        source="state.eta_ms", allow_null=True, help_text="what a start from here took before; null if never measured"
    )
    arms = ArmSerializer(many=True)
    engine = EngineSerializer(source="settings.engine", allow_null=True)
    min_replicas = serializers.IntegerField(source="settings.min_replicas", allow_null=True)
    max_replicas = serializers.IntegerField(source="settings.max_replicas", allow_null=True)
    idle = IdleSerializer(source="settings.idle", allow_null=True)
    schedules = ScheduleSerializer(source="settings.keep_warm", many=True, allow_null=True)
    revision = serializers.IntegerField(
        source="settings.revision",
        allow_null=True,
        help_text="counts changes of the settings; say it when you change them",
    )
    ready_replicas = serializers.IntegerField()
    num_replicas = serializers.IntegerField()
    created_at = serializers.DateTimeField(source="deployment.created_at")


@example(
    {
        "name": "support", "version_id": "ver_01jde3j1cp0000000000000000", "engine": {"kv_memory_mb": 1024},
        "min_replicas": 0, "idle": {"asleep_after_s": 600, "warm_after_s": 3600},
        "schedules": [{"days": [0, 1, 2, 3, 4], "from_minute": 480, "to_minute": 1080, "min_replicas": 1}],
    }
)  # fmt: skip
class NewDeploymentSerializer(ClosedSerializer):
    """A deployment to make."""

    name = serializers.CharField(max_length=64)
    version_id = serializers.CharField(max_length=32)
    engine = EngineSerializer(default=msgspec.structs.asdict(_DEFAULTS))
    min_replicas = serializers.IntegerField(default=1)
    max_replicas = serializers.IntegerField(default=1)
    idle = IdleSerializer(default=dict)
    schedules = ScheduleSerializer(many=True, default=list)


@example({"revision": 1, "max_replicas": 2, "idle": {"asleep_after_s": 900}})
class DeploymentChangesSerializer(ClosedSerializer):
    """Changes of a deployment's settings. What is left out stays; ``schedules`` are replaced as a whole."""

    revision = serializers.IntegerField(help_text="the revision you have read; a newer one makes this a 409")
    engine = EngineChangesSerializer(required=False)
    min_replicas = serializers.IntegerField(required=False)
    max_replicas = serializers.IntegerField(required=False)
    idle = IdleSerializer(required=False)
    schedules = ScheduleSerializer(many=True, required=False)


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


class DeploymentEventSerializer(serializers.Serializer[Any]):
    """What a replica did or a person changed. Fields that an event does not have are empty."""

    at = serializers.DateTimeField()
    kind = serializers.CharField(help_text="replica, state, settings or share")
    cause = serializers.CharField(help_text="the fleet's reason, or the act, such as deployment.pause")
    actor = serializers.CharField(help_text="who did it, for those who may read the audit")
    replica_id = serializers.CharField()
    version_id = serializers.CharField()
    old = serializers.CharField()
    new = serializers.CharField()
    before = serializers.DictField()
    after = serializers.DictField()


class RestartCostSerializer(serializers.Serializer[Any]):
    """What starts from a tier took, from the need to the first answer's readiness."""

    tier = serializers.CharField(help_text="asleep, warm, disk or store")
    p50_ms = serializers.IntegerField()
    p95_ms = serializers.IntegerField()
    samples = serializers.IntegerField()


@example({"guarantee_tokens": 0, "cap_tokens": None, "weight": 2})
class ShareSerializer(ClosedSerializer):
    """A tenant's KV budget and weight on a deployment. Tokens; a null cap is the whole pool."""

    guarantee_tokens = serializers.IntegerField()
    cap_tokens = serializers.IntegerField(allow_null=True)
    weight = serializers.IntegerField()
    pace_ms = serializers.IntegerField(default=0, help_text=_PACE_HELP)


class GrantSerializer(serializers.Serializer[Any]):
    """Leave for a tenant to call a deployment, with its share."""

    id = serializers.CharField()
    tenant = serializers.CharField(source="grantee_slug")
    guarantee_tokens = serializers.IntegerField()
    cap_tokens = serializers.IntegerField(allow_null=True)
    weight = serializers.IntegerField()
    cache_epoch = serializers.IntegerField(help_text="counts how often its prefix cache was emptied on demand")
    pace_ms = serializers.IntegerField(help_text=_PACE_HELP)


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
        made = {
            "engine": EngineSettings(**values["engine"]),
            "idle": IdlePolicy(**values["idle"]),
            "schedules": [_schedule(each) for each in values["schedules"]],
        }
        deployment = services.deploy_version(actor=self.actor, **(values | made))
        return Response(DeploymentSerializer(self._summary(deployment.id)).data, status=201)

    def _summary(self, deployment_id: str) -> DeploymentSummary:
        return selectors.get_deployment(actor=self.actor, deployment_id=deployment_id)


class DeploymentView(TenantView):
    """One deployment."""

    writes = Permission.DEPLOYMENTS_WRITE
    takes = frozenset({"confirm"})

    @extend_schema(operation_id="get_deployment", responses=DeploymentSerializer)
    def get(self, request: Request, deployment_id: str) -> Response:
        """Return the deployment."""
        summary = selectors.get_deployment(actor=self.actor, deployment_id=deployment_id)
        return Response(DeploymentSerializer(summary).data)

    @extend_schema(
        operation_id="configure_deployment", request=DeploymentChangesSerializer, responses=DeploymentSerializer
    )
    def patch(self, request: Request, deployment_id: str) -> Response:
        """Change the settings. Replicas that must run otherwise are replaced without a gap."""
        values = read(DeploymentChangesSerializer, request.data)
        revision, engine, idle = values.pop("revision"), values.pop("engine", {}), values.pop("idle", {})
        if "schedules" in values:
            values["schedules"] = [_schedule(each) for each in values["schedules"]]
        changes = Changes(**engine, **idle, **values)
        services.configure_deployment(actor=self.actor, deployment_id=deployment_id, revision=revision, changes=changes)
        summary = selectors.get_deployment(actor=self.actor, deployment_id=deployment_id)
        return Response(DeploymentSerializer(summary).data)

    @extend_schema(
        operation_id="delete_deployment",
        parameters=[OpenApiParameter("confirm", description="Its name: delete it although keys or tenants need it.")],
        responses={204: None},
    )
    def delete(self, request: Request, deployment_id: str) -> Response:
        """End the deployment for good. Its usage stays. A 409 names what depends on it."""
        services.delete_deployment(
            actor=self.actor, deployment_id=deployment_id, confirm=request.query_params.get("confirm")
        )
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


class EventsView(TenantView):
    """What happened to a deployment."""

    @extend_schema(operation_id="list_events", responses=list_of(DeploymentEventSerializer))
    def get(self, request: Request, deployment_id: str) -> Response:
        """List what its replicas did and what people changed, with the causes, newest first."""
        events = selectors.list_events(actor=self.actor, deployment_id=deployment_id)
        return listed(DeploymentEventSerializer, events)


class RestartCostsView(TenantView):
    """What starts of a deployment took."""

    @extend_schema(operation_id="list_restart_costs", responses=list_of(RestartCostSerializer))
    def get(self, request: Request, deployment_id: str) -> Response:
        """List the measured cost of a start from each tier, warmest first; only tiers that were measured."""
        costs = selectors.restart_costs(actor=self.actor, deployment_id=deployment_id)
        return listed(RestartCostSerializer, costs.tiers)


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


class CacheRotationView(TenantView):
    """The end of what a tenant has in the prefix cache."""

    writes = Permission.DEPLOYMENTS_WRITE

    @extend_schema(operation_id="rotate_cache", request=None, responses=GrantSerializer)
    def post(self, request: Request, deployment_id: str) -> Response:
        """Forget what the tenant has cached of its prompts, on another's deployment too. What runs goes on."""
        slug = self.actor.tenant.slug
        grant = services.rotate_cache(actor=self.actor, deployment_id=deployment_id, grantee_slug=slug)
        return Response(GrantSerializer(grant).data)


def _schedule(values: dict[str, Any]) -> KeepWarm:
    return KeepWarm(**(values | {"days": tuple(values["days"])}))
