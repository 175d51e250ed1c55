"""Rollouts: drafted, moved by people, taken back; their journal; and what only the platform does with them."""

from typing import Any

import msgspec
from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.access import TenantView
from controlplane.api.inputs import ClosedSerializer, example, read
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


@example({"deployment_id": "dep_01jde3j1cp0000000000000000", "candidate_version_id": "ver_01jde3j1cp0000000000000000"})
class NewRolloutSerializer(ClosedSerializer):
    """A rollout to draft."""

    deployment_id = serializers.CharField(max_length=32)
    candidate_version_id = serializers.CharField(max_length=32)
    plan = PlanSerializer(required=False)
    supersede = serializers.BooleanField(default=False, help_text="end the one that is under way for this one")


@example({"revision": 1})
class SeenSerializer(ClosedSerializer):
    """What the caller has seen: a newer revision makes this a 409."""

    revision = serializers.IntegerField()


@example({"revision": 1, "reason": "We wait for the morning's traffic."})
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


@example(
    {
        "revision": 17, "digest": "0123456789abcdef" * 4, "step": 3,
        "waivers": {"evals": "No suite covers this yet; 40 answers read by hand.", "shadow": "Not needed: same size."},
    }
)  # fmt: skip
class ApprovalSerializer(SeenSerializer):
    """What is approved: this content after this step. Each gate that was not run needs a waiver, which says why."""

    digest = serializers.CharField(max_length=128)
    step = serializers.IntegerField()
    waivers = WaiversSerializer(default=dict)


@example({"reason": "Customers report wrong totals."})
class RollbackSerializer(ClosedSerializer):
    """Why. No revision: a rollback is applied whatever state it meets."""

    reason = serializers.CharField(default="", allow_blank=True, max_length=services.REASON_MAX_CHARS)


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


def told(actor: Actor, rollout_id: str) -> Response:
    """Answer with the rollout as it is now."""
    story = selectors.get_rollout(actor=actor, rollout_id=rollout_id)
    shown = RolloutSerializer(story.summary).data
    return Response(shown | {"events": RolloutEventSerializer(story.events, many=True).data})


def approve(actor: Actor, rollout_id: str, request: Request) -> Response:
    """Let the actor approve, and answer with the rollout as it is then."""
    values = read(ApprovalSerializer, request.data)
    services.approve_rollout(
        actor=actor, rollout_id=rollout_id, expected_revision=values.pop("revision"), **values
    )  # fmt: skip
    return told(actor, rollout_id)


def roll_back(actor: Actor, rollout_id: str, request: Request) -> Response:
    """Let the actor roll back, and answer with what that met."""
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
        """List the newest rollouts, at most 100."""
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
        answer = told(self.actor, rollout.id)
        answer.status_code = 201
        return answer


class RolloutView(TenantView):
    """One rollout."""

    @extend_schema(operation_id="get_rollout", responses=RolloutWithEventsSerializer)
    def get(self, request: Request, rollout_id: str) -> Response:
        """Return the rollout with its journal."""
        return told(self.actor, rollout_id)


class StartRolloutView(TenantView):
    """A start."""

    writes = Permission.ROLLOUTS_WRITE

    @extend_schema(operation_id="start_rollout", request=SeenSerializer, responses=RolloutWithEventsSerializer)
    def post(self, request: Request, rollout_id: str) -> Response:
        """Start a draft."""
        seen = read(SeenSerializer, request.data)["revision"]
        services.start_rollout(actor=self.actor, rollout_id=rollout_id, expected_revision=seen)
        return told(self.actor, rollout_id)


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
        return told(self.actor, rollout_id)


class ResumeRolloutView(TenantView):
    """The end of a pause."""

    writes = Permission.ROLLOUTS_WRITE

    @extend_schema(operation_id="resume_rollout", request=SeenSerializer, responses=RolloutWithEventsSerializer)
    def post(self, request: Request, rollout_id: str) -> Response:
        """Let a paused rollout go on where it was."""
        seen = read(SeenSerializer, request.data)["revision"]
        services.resume_rollout(actor=self.actor, rollout_id=rollout_id, expected_revision=seen)
        return told(self.actor, rollout_id)


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
        return told(self.actor, rollout_id)


class ApproveRolloutView(TenantView):
    """An approval by an owner of the tenant."""

    writes = Permission.ROLLOUTS_APPROVE

    @extend_schema(operation_id="approve_rollout", request=ApprovalSerializer, responses=RolloutWithEventsSerializer)
    def post(self, request: Request, rollout_id: str) -> Response:
        """Approve the candidate after a step. Never by its author, nor by a key."""
        return approve(self.actor, rollout_id, request)


class RollBackView(TenantView):
    """A rollback."""

    writes = Permission.ROLLOUTS_WRITE

    @extend_schema(operation_id="roll_back", request=RollbackSerializer, responses=RollbackAnswerSerializer)
    def post(self, request: Request, rollout_id: str) -> Response:
        """Take the candidate's traffic away, whatever state the rollout is in."""
        return roll_back(self.actor, rollout_id, request)
