"""A tenant's isolation on a deployment: its own figures, and what probes found."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.access import TenantView
from controlplane.api.inputs import read
from controlplane.isolation import selectors
from controlplane.isolation.series import Span


class IsolationQuerySerializer(serializers.Serializer[Any]):
    """How far back."""

    range = serializers.ChoiceField(choices=list(Span), default=Span.DAY.value)


class ReadingSerializer(serializers.Serializer[Any]):
    """A tenant over some time. Tokens of KV memory; units are weighted tokens of service."""

    guarantee_tokens = serializers.IntegerField(help_text="in force at its end, all replicas together")
    cap_tokens = serializers.IntegerField(help_text="in force at its end, all replicas together")
    used_tokens = serializers.IntegerField(help_text="held by its requests at its end")
    borrowed_tokens = serializers.IntegerField(help_text="most that they held above the guarantee")
    peak_tokens = serializers.IntegerField(help_text="most that they held")
    waiting = serializers.IntegerField(help_text="most requests in line")
    gap_units = serializers.FloatField(
        help_text="how far another got ahead while both waited, where that came nearest to the bound"
    )
    bound_units = serializers.FloatField(help_text="how far another may get ahead there; 0: it never had to wait")
    service_units = serializers.FloatField(help_text="what it was served")
    preemptions = serializers.DictField(
        child=serializers.IntegerField(), help_text="requests that lost their memory, by cause"
    )
    pauses = serializers.IntegerField(
        help_text="requests that left their place in the step to another tenant's; they kept their memory"
    )
    breaches = serializers.IntegerField(
        help_text="preemptions for another tenant, while this one was within its guarantee: the promise is 0"
    )
    queries_tokens = serializers.IntegerField(help_text="prompt tokens that were looked up in its prefix cache")
    hits_tokens = serializers.IntegerField(help_text="those that were found there")


class SlotSerializer(serializers.Serializer[Any]):
    """The time from ``at`` to the next slot."""

    at = serializers.DateTimeField()
    reading = ReadingSerializer()


class SeparationSerializer(serializers.Serializer[Any]):
    """How well two samples of times can be told apart: the area under the ROC curve with its 99 % bounds."""

    auc = serializers.FloatField()
    low = serializers.FloatField()
    high = serializers.FloatField()


class FindingSerializer(serializers.Serializer[Any]):
    """What probes found, by what they looked at. Numbers and times are round: exact ones would tell of others' work."""

    kind = serializers.CharField(
        help_text="across: another tenant's prompt in the cache; within: the control, a tenant's own; "
        "batch: whether another runs; paced: the same with paced tokens"
    )
    trials = serializers.IntegerField()
    separation = SeparationSerializer(allow_null=True)
    prompt_tokens = serializers.IntegerField(help_text="of prompts that had been sent before")
    cached_tokens = serializers.IntegerField(help_text="those of them that came from the cache")
    pace_ms = serializers.IntegerField()
    at = serializers.DateTimeField()


class JudgementSerializer(serializers.Serializer[Any]):
    """How each promise stands: kept, unmeasured, stale, few, unproven, blind (it proves nothing) or broken."""

    memory = serializers.CharField()
    turns = serializers.CharField()
    cache = serializers.CharField()


class IsolationSerializer(serializers.Serializer[Any]):
    """A tenant's isolation on a deployment. ``now`` is null where no replica was heard of late."""

    judgement = JudgementSerializer()
    seen_at = serializers.DateTimeField(allow_null=True)
    now = ReadingSerializer(allow_null=True)
    whole = ReadingSerializer(help_text="the range as one")
    slots = SlotSerializer(many=True)
    findings = FindingSerializer(many=True)


class IsolationView(TenantView):
    """The isolation of whoever asks, on its own deployment or another's that it may call."""

    takes = frozenset(IsolationQuerySerializer().fields)

    @extend_schema(operation_id="get_isolation", parameters=[IsolationQuerySerializer], responses=IsolationSerializer)
    def get(self, request: Request, deployment_id: str) -> Response:
        """Return memory, preemptions, turns and cache of the tenant over a range, and what probes found."""
        query = read(IsolationQuerySerializer, request.query_params.dict())
        found = selectors.get_isolation(actor=self.actor, deployment_id=deployment_id, span=Span(query["range"]))
        return Response(IsolationSerializer(_told(found)).data)


def _told(found: selectors.Isolation) -> dict[str, Any]:
    """Return what the serializer reads: findings as a list."""
    told: dict[str, Any] = {name: getattr(found, name) for name in ("judgement", "seen_at", "now", "whole", "slots")}
    return told | {"findings": [found.findings[kind] for kind in sorted(found.findings)]}
