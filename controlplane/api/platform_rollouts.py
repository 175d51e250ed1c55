"""What only the platform does with rollouts: see and decide those of every tenant, and stop all of them."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api import rollouts
from controlplane.api.access import PlatformView
from controlplane.api.inputs import ClosedSerializer, example, read
from controlplane.api.listing import list_of, listed
from controlplane.api.rollouts import (
    ApprovalSerializer,
    RollbackAnswerSerializer,
    RollbackSerializer,
    RolloutSerializer,
    RolloutWithEventsSerializer,
)
from controlplane.rollouts import selectors, services


@example({"reason": "The yearly sale is on until Monday."})
class FreezeSerializer(ClosedSerializer):
    """Why no rollout is to move forward."""

    reason = serializers.CharField(max_length=services.REASON_MAX_CHARS)


class FreezeAnswerSerializer(serializers.Serializer[Any]):
    """Whether rollouts are frozen, and why."""

    frozen = serializers.BooleanField()
    reason = serializers.CharField()
    by = serializers.CharField()
    since = serializers.DateTimeField(allow_null=True)


class AllRolloutsView(PlatformView):
    """Every tenant's rollouts."""

    @extend_schema(operation_id="list_all_rollouts", responses=list_of(RolloutSerializer))
    def get(self, request: Request) -> Response:
        """List the newest rollouts of all tenants, at most 100."""
        return listed(RolloutSerializer, selectors.list_rollouts(actor=self.actor))


class AnyRolloutView(PlatformView):
    """One rollout of any tenant."""

    @extend_schema(operation_id="get_any_rollout", responses=RolloutWithEventsSerializer)
    def get(self, request: Request, rollout_id: str) -> Response:
        """Return the rollout with its journal."""
        return rollouts.told(self.actor, rollout_id)


class PlatformApprovalView(PlatformView):
    """An approval by who runs the platform."""

    @extend_schema(
        operation_id="approve_any_rollout", request=ApprovalSerializer, responses=RolloutWithEventsSerializer
    )
    def post(self, request: Request, rollout_id: str) -> Response:
        """Approve the candidate after a step. Never by its author."""
        return rollouts.approve(self.actor, rollout_id, request)


class PlatformRollBackView(PlatformView):
    """A rollback by who runs the platform."""

    @extend_schema(operation_id="roll_back_any", request=RollbackSerializer, responses=RollbackAnswerSerializer)
    def post(self, request: Request, rollout_id: str) -> Response:
        """Take the candidate's traffic away, whatever state the rollout is in."""
        return rollouts.roll_back(self.actor, rollout_id, request)


class FreezeView(PlatformView):
    """The switch that stops every rollout from moving forward. Rollbacks go on."""

    @extend_schema(operation_id="get_freeze", responses=FreezeAnswerSerializer)
    def get(self, request: Request) -> Response:
        """Say whether rollouts are frozen."""
        return self._told()

    @extend_schema(operation_id="freeze_rollouts", request=FreezeSerializer, responses=FreezeAnswerSerializer)
    def put(self, request: Request) -> Response:
        """Freeze them."""
        services.freeze_rollouts(actor=self.actor, **read(FreezeSerializer, request.data))
        return self._told()

    @extend_schema(operation_id="unfreeze_rollouts", responses={204: None})
    def delete(self, request: Request) -> Response:
        """Let them go on."""
        services.unfreeze_rollouts(actor=self.actor)
        return Response(status=204)

    def _told(self) -> Response:
        freeze = selectors.get_freeze(actor=self.actor)
        known = {"reason": freeze.reason, "by": freeze.by, "since": freeze.since} if freeze else {}
        blank = {"frozen": freeze is not None, "reason": "", "by": "", "since": None}
        return Response(FreezeAnswerSerializer(blank | known).data)
