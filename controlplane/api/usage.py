"""Usage: sums by what was used, and single requests."""

from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.access import TenantView
from controlplane.api.inputs import read
from controlplane.api.listing import list_of, listed
from controlplane.metering import selectors
from controlplane.metering.selectors import MAX_PAGE_ROWS, Dimension

_DEFAULT_SPAN = timedelta(days=30)
_FIRST_YEAR = 2000


class UsageQuerySerializer(serializers.Serializer[Any]):
    """Which usage: the hours from ``since`` to before ``until``, by default the last 30 days by day."""

    by = serializers.ChoiceField(choices=list(Dimension), default=Dimension.DAY.value)
    since = serializers.DateTimeField(required=False)
    until = serializers.DateTimeField(required=False)

    def validate_until(self, until: datetime) -> datetime:
        """Refuse a time whose span of 30 days would begin before the calendar does."""
        if until.year < _FIRST_YEAR:
            raise serializers.ValidationError(f"Choose a time in {_FIRST_YEAR} or later.")
        return until


class UsageLineSerializer(serializers.Serializer[Any]):
    """One line. ``label`` is an id, or a time (UTC). Money in millionths of a US dollar."""

    label = serializers.CharField()  # type: ignore[assignment]  # the framework has an attribute of that name
    requests = serializers.IntegerField()
    failed_requests = serializers.IntegerField()
    refused_requests = serializers.IntegerField()
    prompt_tokens = serializers.IntegerField()
    cached_tokens = serializers.IntegerField()
    completion_tokens = serializers.IntegerField()
    charge_microusd = serializers.IntegerField()


class RequestsQuerySerializer(serializers.Serializer[Any]):
    """Which requests, and which page of them."""

    limit = serializers.IntegerField(default=50, min_value=1, max_value=MAX_PAGE_ROWS)
    before = serializers.CharField(required=False, max_length=32, help_text="The id of the last row you have.")
    key_id = serializers.CharField(required=False, max_length=32)
    deployment_id = serializers.CharField(required=False, max_length=32)
    failed = serializers.BooleanField(required=False, allow_null=True, default=None)


class RequestSerializer(serializers.Serializer[Any]):
    """One request and what it used. Counts of an open one are provisional."""

    id = serializers.CharField(source="request_id")
    state = serializers.CharField()
    outcome = serializers.CharField(allow_null=True)
    error_code = serializers.CharField()
    deployment_id = serializers.CharField()
    version_id = serializers.CharField()
    key_id = serializers.CharField()
    replica_id = serializers.CharField()
    endpoint = serializers.CharField()
    stream = serializers.BooleanField()
    attempts = serializers.IntegerField()
    prompt_tokens = serializers.IntegerField()
    cached_tokens = serializers.IntegerField()
    completion_tokens = serializers.IntegerField()
    delivered_tokens = serializers.IntegerField()
    charge_microusd = serializers.IntegerField()
    started_at = serializers.DateTimeField()
    ended_at = serializers.DateTimeField(allow_null=True)
    queue_ms = serializers.IntegerField(allow_null=True)
    ttft_ms = serializers.IntegerField(allow_null=True)
    duration_ms = serializers.IntegerField(allow_null=True)


class UsageView(TenantView):
    """The tenant's usage."""

    takes = frozenset(UsageQuerySerializer().fields)

    @extend_schema(operation_id="get_usage", parameters=[UsageQuerySerializer], responses=list_of(UsageLineSerializer))
    def get(self, request: Request) -> Response:
        """Break usage down by deployment, version, key, hour or day. The sums are seconds behind."""
        query = read(UsageQuerySerializer, request.query_params.dict())
        until = query.get("until") or timezone.now()
        since = query.get("since") or until - _DEFAULT_SPAN
        lines = selectors.usage(actor=self.actor, since=since, until=until, by=Dimension(query["by"]))
        return listed(UsageLineSerializer, lines)


class MonthUsageView(TenantView):
    """This month."""

    @extend_schema(operation_id="get_month_usage", responses=UsageLineSerializer)
    def get(self, request: Request) -> Response:
        """Return the sum of this month (UTC)."""
        return Response(UsageLineSerializer(selectors.month_usage(actor=self.actor)).data)


class RequestsView(TenantView):
    """The tenant's requests."""

    takes = frozenset(RequestsQuerySerializer().fields)

    @extend_schema(
        operation_id="list_requests", parameters=[RequestsQuerySerializer], responses=list_of(RequestSerializer)
    )
    def get(self, request: Request) -> Response:
        """List requests, newest first, a page at a time."""
        query = read(RequestsQuerySerializer, request.query_params.dict())
        return listed(RequestSerializer, selectors.list_requests(actor=self.actor, **query))


class RequestView(TenantView):
    """One request."""

    @extend_schema(operation_id="get_request", responses=RequestSerializer)
    def get(self, request: Request, request_id: str) -> Response:
        """Return the request."""
        detail = selectors.get_request(actor=self.actor, request_id=request_id)
        return Response(RequestSerializer(detail.row).data)
