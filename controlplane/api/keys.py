"""API keys. The text of a key is in one answer, once."""

from datetime import timedelta
from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.access import TenantView
from controlplane.api.inputs import ClosedSerializer, LimitsSerializer, example, limits, read
from controlplane.api.listing import list_of, listed
from controlplane.deployments import selectors as deployments
from dataplane.contracts.catalog import Limits
from tenants import selectors, services
from tenants.roles import Permission, Scope
from tenants.services.keys import DEFAULT_LIFETIME_DAYS, DEFAULT_OVERLAP


class KeySerializer(serializers.Serializer[Any]):
    """A key, without its secret."""

    id = serializers.CharField()
    name = serializers.CharField()
    prefix = serializers.CharField(help_text="The beginning of the key, to recognise it by.")
    scopes = serializers.ListField(child=serializers.ChoiceField(choices=list(Scope)))
    deployment_ids = serializers.ListField(
        child=serializers.CharField(), allow_null=True, help_text="Null is every deployment that the tenant may call."
    )
    limits = serializers.SerializerMethodField()
    created_at = serializers.DateTimeField()
    expires_at = serializers.DateTimeField(allow_null=True)
    revoked_at = serializers.DateTimeField(allow_null=True)
    last_used_at = serializers.DateTimeField(allow_null=True)

    @extend_schema(responses=LimitsSerializer)
    def get_limits(self, key: Any) -> dict[str, int | None]:  # noqa: ANN401 - a row; the API knows no models
        """Return the key's own limits."""
        quota = getattr(key, "quota", None)
        return dict(LimitsSerializer(quota.limits if quota else Limits()).data)


class IssuedKeySerializer(serializers.Serializer[Any]):
    """A new secret. ``text`` is never shown again."""

    key = KeySerializer()
    text = serializers.CharField()


@example({"name": "checkout", "scopes": ["inference"], "deployment_ids": ["dep_01jde3j1cp0000000000000000"]})
class NewKeySerializer(ClosedSerializer):
    """A key to make."""

    name = serializers.CharField(max_length=100)
    scopes = serializers.ListField(
        child=serializers.ChoiceField(choices=list(Scope)), default=[Scope.INFERENCE.value], max_length=len(Scope)
    )
    deployment_ids = serializers.ListField(
        child=serializers.CharField(max_length=32), allow_null=True, default=None, max_length=1000
    )
    lifetime_days = serializers.IntegerField(allow_null=True, default=DEFAULT_LIFETIME_DAYS)


class RollSerializer(ClosedSerializer):
    """How long the older secret still counts."""

    overlap_s = serializers.IntegerField(
        default=int(DEFAULT_OVERLAP.total_seconds()), min_value=0, max_value=30 * 24 * 3600
    )


class KeysView(TenantView):
    """The tenant's keys."""

    writes = Permission.KEYS_WRITE

    @extend_schema(operation_id="list_keys", responses=list_of(KeySerializer))
    def get(self, request: Request) -> Response:
        """List the keys, revoked ones included, newest first."""
        return listed(KeySerializer, selectors.list_keys(actor=self.actor))

    @extend_schema(operation_id="issue_key", request=NewKeySerializer, responses={201: IssuedKeySerializer})
    def post(self, request: Request) -> Response:
        """Make a key. Its text is in this answer and nowhere else."""
        values = read(NewKeySerializer, request.data)
        deployments.check_callable(actor=self.actor, deployment_ids=values["deployment_ids"] or ())
        issued = services.issue_key(
            actor=self.actor,
            name=values["name"],
            scopes=[Scope(scope) for scope in values["scopes"]],
            deployment_ids=values["deployment_ids"],
            lifetime_days=values["lifetime_days"],
        )
        return _once(issued, 201)


class KeyView(TenantView):
    """One key."""

    @extend_schema(operation_id="get_key", responses=KeySerializer)
    def get(self, request: Request, key_id: str) -> Response:
        """Return the key."""
        return Response(KeySerializer(selectors.get_key(actor=self.actor, key_id=key_id)).data)


class RevokeKeyView(TenantView):
    """The end of a key."""

    writes = Permission.KEYS_WRITE

    @extend_schema(operation_id="revoke_key", request=None, responses=KeySerializer)
    def post(self, request: Request, key_id: str) -> Response:
        """Revoke the key. Gateways hear of it within a second; its running streams are cut."""
        return Response(KeySerializer(services.revoke_key(actor=self.actor, key_id=key_id)).data)


class RollKeyView(TenantView):
    """A new secret for a key."""

    writes = Permission.KEYS_WRITE

    @extend_schema(operation_id="roll_key", request=RollSerializer, responses=IssuedKeySerializer)
    def post(self, request: Request, key_id: str) -> Response:
        """Give the key a new secret; the older one counts for the overlap. Id, limits and history stay."""
        overlap = timedelta(seconds=read(RollSerializer, request.data)["overlap_s"])
        return _once(services.roll_key(actor=self.actor, key_id=key_id, overlap=overlap), 200)


class KeyLimitsView(TenantView):
    """A key's own limits."""

    writes = Permission.KEY_QUOTA_WRITE

    @extend_schema(operation_id="set_key_limits", request=LimitsSerializer, responses=LimitsSerializer)
    def put(self, request: Request, key_id: str) -> Response:
        """Replace the key's limits. The tenant's hold besides."""
        quota = services.set_key_quota(actor=self.actor, key_id=key_id, limits=limits(request.data))
        return Response(LimitsSerializer(quota.limits).data)


def _once(issued: services.IssuedKey, status: int) -> Response:
    body = IssuedKeySerializer({"key": issued.key, "text": issued.text}).data
    return Response(body, status=status, headers={"Cache-Control": "no-store"})
