"""Rollouts: drafted, moved by people, taken back; their journal; and what only the platform does with them."""

from typing import Any

import msgspec
from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.access import PlatformView, TenantView
from controlplane.api.inputs import ClosedSerializer, read
from controlplane.api.listing import list_of, listed
from controlplane.rollouts import plan as plans
from controlplane.rollouts import selectors, services
from controlplane.rollouts.gates import NEEDS_WAIVER
from controlplane.rollouts.plan import JudgeSettings
from controlplane.rollouts.states import Command, RolloutState
from tenants.actor import Actor
from tenants.roles import Permission

_COMMANDS = serializers.ListField(child=serializers.ChoiceField(choices=[each.value for each in Command]))
_PLAN = plans.DEFAULT_PLAN
_FIELDS: dict[type, type[serializers.Field[Any, Any, Any, Any]]] = {
    bool: serializers.BooleanField,
    int: serializers.IntegerField,
    float: serializers.FloatField,
}


class StepSerializer(ClosedSerializer):
    """A part of the traffic in per cent, for at least so long and so many of the candidate's requests."""

    weight = serializers.IntegerField()
    hold_s = serializers.IntegerField()
    min_samples = serializers.IntegerField()


class JudgeSerializer(ClosedSerializer):
    """What the candidate must keep to; what is left out has the product's own limit. See ``JudgeSettings``."""

    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        """Make a field of each setting, so that there is one list of them."""
        return {
            each.name: _FIELDS[type(each.default)](default=each.default)
            for each in msgspec.structs.fields(JudgeSettings)
        }


class PlanSerializer(ClosedSerializer):
    """How a rollout goes; what is left out is as the product has it."""

    steps = StepSerializer(many=True, default=[msgspec.structs.asdict(step) for step in _PLAN.steps])
    ramp_s = serializers.IntegerField(default=_PLAN.ramp_s, help_text="after each change of weight, uncounted")
    approval_at = serializers.IntegerField(
        default=_PLAN.approval_at, help_text="the weight of the step after which a person approves"
    )
    bake_100_s = serializers.IntegerField(default=_PLAN.bake_100_s, help_text="watched with all traffic")
    keep_previous_s = serializers.IntegerField(
        default=_PLAN.keep_previous_s, help_text="the version before stays asleep, so rolling back loads nothing"
    )
    judge = JudgeSerializer(default=msgspec.structs.asdict(_PLAN.judge))


class NewRolloutSerializer(ClosedSerializer):
    """A rollout to draft."""

    deployment_id = serializers.CharField(max_length=32)
    candidate_version_id = serializers.CharField(max_length=32)
    plan = PlanSerializer(required=False)
    supersede = serializers.BooleanField(default=False, help_text="end the one that is under way for this one")


class SeenSerializer(ClosedSerializer):
    """What the caller has seen: a newer revision makes this a 409."""

    revision = serializers.IntegerField()


class ReasonedSerializer(SeenSerializer):
    """What the caller has seen, and why."""

    reason = serializers.CharField(default="", allow_blank=True, max_length=services.REASON_MAX_CHARS)


class WaiversSerializer(ClosedSerializer):
    """For each gate that is not run yet, why the candidate may go on without it."""

    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        """Make a field of each gate, so that there is one list of them."""
        return {
            gate.value: serializers.CharField(required=False, max_length=services.REASON_MAX_CHARS)
            for gate in NEEDS_WAIVER
        }


class ApprovalSerializer(SeenSerializer):
    """What is approved: this content after this step. Each gate that was not run needs a waiver, which says why."""

    digest = serializers.CharField(max_length=128)
    step = serializers.IntegerField()
    waivers = WaiversSerializer(default=dict)


class RollbackSerializer(ClosedSerializer):
    """Why. No revision: a rollback is applied whatever state it meets."""

    reason = serializers.CharField(default="", allow_blank=True, max_length=services.REASON_MAX_CHARS)


class FreezeSerializer(ClosedSerializer):
    """Why no rollout is to move forward."""

    reason = serializers.CharField(max_length=services.REASON_MAX_CHARS)


class RolloutVersionSerializer(serializers.Serializer[Any]):
    """A version of a rollout."""

    id = serializers.CharField()
    model = serializers.CharField(source="model.name")
    number = serializers.IntegerField()
    digest = serializers.CharField()


class RolloutSerializer(serializers.Serializer[Any]):
    """A rollout. ``step`` counts from 0, -1 before the first; ``commands`` are what the caller may ask of it now."""

    id = serializers.CharField(source="rollout.id")
    tenant = serializers.CharField(source="rollout.tenant.slug")
    deployment_id = serializers.CharField(source="rollout.deployment_id")
    deployment = serializers.CharField(source="rollout.deployment.name")
    stable = RolloutVersionSerializer(source="rollout.stable_version")
    candidate = RolloutVersionSerializer(source="rollout.candidate_version")
    state = serializers.ChoiceField(choices=[each.value for each in RolloutState])
    step = serializers.IntegerField(source="rollout.step")
    weight = serializers.IntegerField(help_text="the candidate's part of the traffic, in per cent")
    waits_for = serializers.CharField()
    reason = serializers.CharField(source="rollout.reason")
    revision = serializers.IntegerField(source="rollout.revision")
    commands = serializers.SerializerMethodField()
    plan = PlanSerializer(source="rollout.plan")
    author = serializers.CharField(source="rollout.author_label")
    created_at = serializers.DateTimeField(source="rollout.created_at")
    entered_at = serializers.DateTimeField(source="rollout.entered_at")
    ended_at = serializers.DateTimeField(source="rollout.ended_at", allow_null=True)

    @extend_schema_field(_COMMANDS)
    def get_commands(self, summary: selectors.RolloutSummary) -> list[str]:
        """Return them in the order of their declaration, which is the same each time."""
        return [command.value for command in Command if command in summary.commands]


class RolloutEventSerializer(serializers.Serializer[Any]):
    """A transition with its cause. ``evidence`` is what was judged by."""

    sequence = serializers.IntegerField()
    at = serializers.DateTimeField()
    old = serializers.CharField()
    new = serializers.CharField()
    step = serializers.IntegerField()
    weight = serializers.IntegerField()
    cause = serializers.CharField()
    actor = serializers.CharField(source="actor_label")
    evidence = serializers.DictField()


class RolloutWithEventsSerializer(RolloutSerializer):
    """A rollout with its journal, oldest first."""

    events = RolloutEventSerializer(many=True)


class RollbackAnswerSerializer(serializers.Serializer[Any]):
    """What a rollback met."""

    applied = serializers.BooleanField(help_text="false where there was nothing to take back")
    words = serializers.CharField()
    rollout = RolloutSerializer()


class FreezeAnswerSerializer(serializers.Serializer[Any]):
    """Whether rollouts are frozen, and why."""

    frozen = serializers.BooleanField()
    reason = serializers.CharField()
    by = serializers.CharField()
    since = serializers.DateTimeField(allow_null=True)


def _told(actor: Actor, rollout_id: str) -> Response:
    """Answer with the rollout as it is now."""
    story = selectors.get_rollout(actor=actor, rollout_id=rollout_id)
    shown = RolloutSerializer(story.summary).data
    return Response(shown | {"events": RolloutEventSerializer(story.events, many=True).data})


def _approve(actor: Actor, rollout_id: str, request: Request) -> Response:
    values = read(ApprovalSerializer, request.data)
    services.approve_rollout(
        actor=actor, rollout_id=rollout_id, expected_revision=values.pop("revision"), **values
    )  # fmt: skip
    return _told(actor, rollout_id)


def _roll_back(actor: Actor, rollout_id: str, request: Request) -> Response:
    found = services.roll_back(actor=actor, rollout_id=rollout_id, **read(RollbackSerializer, request.data))
    summary = selectors.get_rollout(actor=actor, rollout_id=rollout_id).summary
    return Response(
        RollbackAnswerSerializer({"applied": found.applied, "words": found.words, "rollout": summary}).data
    )  # fmt: skip


class RolloutsView(TenantView):
    """A tenant's rollouts."""

    writes = Permission.ROLLOUTS_WRITE
    takes = frozenset({"deployment_id"})

    @extend_schema(
        operation_id="list_rollouts",
        parameters=[OpenApiParameter("deployment_id", description="Of this deployment only.")],
        responses=list_of(RolloutSerializer),
    )
    def get(self, request: Request) -> Response:
        """List the newest rollouts."""
        deployment_id = request.query_params.get("deployment_id")
        return listed(RolloutSerializer, selectors.list_rollouts(actor=self.actor, deployment_id=deployment_id))

    @extend_schema(
        operation_id="create_rollout", request=NewRolloutSerializer, responses={201: RolloutWithEventsSerializer}
    )
    def post(self, request: Request) -> Response:
        """Draft a rollout. Nothing changes for callers until it is started."""
        values = read(NewRolloutSerializer, request.data)
        plan = plans.from_json(values.pop("plan")) if "plan" in values else plans.DEFAULT_PLAN
        rollout = services.create_rollout(actor=self.actor, plan=plan, **values)
        answer = _told(self.actor, rollout.id)
        answer.status_code = 201
        return answer


class RolloutView(TenantView):
    """One rollout."""

    @extend_schema(operation_id="get_rollout", responses=RolloutWithEventsSerializer)
    def get(self, request: Request, rollout_id: str) -> Response:
        """Return the rollout with its journal."""
        return _told(self.actor, rollout_id)


class StartRolloutView(TenantView):
    """A start."""

    writes = Permission.ROLLOUTS_WRITE

    @extend_schema(operation_id="start_rollout", request=SeenSerializer, responses=RolloutWithEventsSerializer)
    def post(self, request: Request, rollout_id: str) -> Response:
        """Start a draft."""
        seen = read(SeenSerializer, request.data)["revision"]
        services.start_rollout(actor=self.actor, rollout_id=rollout_id, expected_revision=seen)
        return _told(self.actor, rollout_id)


class PauseRolloutView(TenantView):
    """A pause."""

    writes = Permission.ROLLOUTS_WRITE

    @extend_schema(operation_id="pause_rollout", request=ReasonedSerializer, responses=RolloutWithEventsSerializer)
    def post(self, request: Request, rollout_id: str) -> Response:
        """Leave the rollout and its weights where they are; the judge goes on watching."""
        values = read(ReasonedSerializer, request.data)
        services.pause_rollout(
            actor=self.actor, rollout_id=rollout_id, expected_revision=values["revision"], reason=values["reason"]
        )
        return _told(self.actor, rollout_id)


class ResumeRolloutView(TenantView):
    """The end of a pause."""

    writes = Permission.ROLLOUTS_WRITE

    @extend_schema(operation_id="resume_rollout", request=SeenSerializer, responses=RolloutWithEventsSerializer)
    def post(self, request: Request, rollout_id: str) -> Response:
        """Let a paused rollout go on where it was."""
        seen = read(SeenSerializer, request.data)["revision"]
        services.resume_rollout(actor=self.actor, rollout_id=rollout_id, expected_revision=seen)
        return _told(self.actor, rollout_id)


class AbortRolloutView(TenantView):
    """An end before the beginning."""

    writes = Permission.ROLLOUTS_WRITE

    @extend_schema(operation_id="abort_rollout", request=ReasonedSerializer, responses=RolloutWithEventsSerializer)
    def post(self, request: Request, rollout_id: str) -> Response:
        """Give up a rollout whose candidate never had traffic."""
        values = read(ReasonedSerializer, request.data)
        services.abort_rollout(
            actor=self.actor, rollout_id=rollout_id, expected_revision=values["revision"], reason=values["reason"]
        )
        return _told(self.actor, rollout_id)


class ApproveRolloutView(TenantView):
    """An approval by an owner of the tenant."""

    writes = Permission.ROLLOUTS_APPROVE

    @extend_schema(operation_id="approve_rollout", request=ApprovalSerializer, responses=RolloutWithEventsSerializer)
    def post(self, request: Request, rollout_id: str) -> Response:
        """Approve the candidate after a step. Never by its author, nor by a key."""
        return _approve(self.actor, rollout_id, request)


class RollBackView(TenantView):
    """A rollback."""

    writes = Permission.ROLLOUTS_WRITE

    @extend_schema(operation_id="roll_back", request=RollbackSerializer, responses=RollbackAnswerSerializer)
    def post(self, request: Request, rollout_id: str) -> Response:
        """Take the candidate's traffic away, whatever state the rollout is in."""
        return _roll_back(self.actor, rollout_id, request)


class AllRolloutsView(PlatformView):
    """Every tenant's rollouts."""

    @extend_schema(operation_id="list_all_rollouts", responses=list_of(RolloutSerializer))
    def get(self, request: Request) -> Response:
        """List the newest rollouts of all tenants."""
        return listed(RolloutSerializer, selectors.list_rollouts(actor=self.actor))


class AnyRolloutView(PlatformView):
    """One rollout of any tenant."""

    @extend_schema(operation_id="get_any_rollout", responses=RolloutWithEventsSerializer)
    def get(self, request: Request, rollout_id: str) -> Response:
        """Return the rollout with its journal."""
        return _told(self.actor, rollout_id)


class PlatformApprovalView(PlatformView):
    """An approval by who runs the platform."""

    @extend_schema(
        operation_id="approve_any_rollout", request=ApprovalSerializer, responses=RolloutWithEventsSerializer
    )
    def post(self, request: Request, rollout_id: str) -> Response:
        """Approve the candidate after a step. Never by its author."""
        return _approve(self.actor, rollout_id, request)


class PlatformRollBackView(PlatformView):
    """A rollback by who runs the platform."""

    @extend_schema(operation_id="roll_back_any", request=RollbackSerializer, responses=RollbackAnswerSerializer)
    def post(self, request: Request, rollout_id: str) -> Response:
        """Take the candidate's traffic away, whatever state the rollout is in."""
        return _roll_back(self.actor, rollout_id, request)


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
