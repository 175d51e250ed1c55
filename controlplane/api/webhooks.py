"""Webhooks: where the tenant's events are sent, signed. A secret is in one answer, once."""

from datetime import timedelta
from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.access import TenantView
from controlplane.api.inputs import ClosedSerializer, example, read
from controlplane.api.listing import list_of, listed
from controlplane.notifications import selectors, services
from controlplane.notifications.events import MEANINGS
from controlplane.notifications.services.webhooks import DEFAULT_OVERLAP, MAX_OVERLAP
from tenants.roles import Permission

_URL_MAX_CHARS = 1_000


def _events(**options: Any) -> serializers.ListField:
    choices = [event.value for event in MEANINGS]
    return serializers.ListField(
        child=serializers.ChoiceField(choices=choices), min_length=1, max_length=len(choices), **options
    )


class WebhookSerializer(serializers.Serializer[Any]):
    """A webhook, without its secret."""

    id = serializers.CharField()
    url = serializers.CharField()
    events = _events()
    enabled = serializers.BooleanField()
    disabled_at = serializers.DateTimeField(allow_null=True)
    disabled_reason = serializers.CharField(help_text="Why nothing is sent to it; empty while it is enabled.")
    old_secret_until = serializers.DateTimeField(
        source="old_salt_until", allow_null=True, help_text="Until then messages are signed with the old secret too."
    )
    delivered_at = serializers.DateTimeField(allow_null=True, help_text="When it last took a message.")
    failing_since = serializers.DateTimeField(
        allow_null=True,
        help_text="The first attempt that failed since then. After a day of it the webhook is disabled.",
    )
    created_at = serializers.DateTimeField()


class IssuedWebhookSerializer(serializers.Serializer[Any]):
    """A webhook and its secret, with which a receiver checks signatures. The secret is never shown again."""

    webhook = WebhookSerializer()
    secret = serializers.CharField(help_text="whsec_ and base64, as libraries of Standard Webhooks take it")


@example({"url": "https://hooks.example.com/pagoda", "events": ["version.ready", "rollout.promoted"]})
class NewWebhookSerializer(ClosedSerializer):
    """A webhook to make."""

    url = serializers.CharField(max_length=_URL_MAX_CHARS, help_text="https, on the public internet")
    events = _events()


class WebhookChangesSerializer(ClosedSerializer):
    """What to change; what is left out stays."""

    url = serializers.CharField(max_length=_URL_MAX_CHARS, required=False)
    events = _events(required=False)
    enabled = serializers.BooleanField(required=False)


class RotateSerializer(ClosedSerializer):
    """How long messages are signed with the older secret too."""

    overlap_s = serializers.IntegerField(
        default=int(DEFAULT_OVERLAP.total_seconds()), min_value=0, max_value=int(MAX_OVERLAP.total_seconds())
    )


class DeliverySerializer(serializers.Serializer[Any]):
    """One message to a webhook, and what became of it."""

    message_id = serializers.CharField(source="announcement_id", help_text="The same with every attempt: webhook-id.")
    event = serializers.CharField(source="announcement.event")
    subject_id = serializers.CharField(source="announcement.subject_id")
    summary = serializers.CharField(source="announcement.headline")
    at = serializers.DateTimeField(source="announcement.at")
    state = serializers.CharField(help_text="waiting, delivered or failed")
    attempts = serializers.IntegerField()
    status = serializers.IntegerField(allow_null=True, help_text="What the receiver answered last; null: nothing.")
    error = serializers.CharField(help_text="Why the last attempt failed.")
    attempted_at = serializers.DateTimeField(allow_null=True)
    next_at = serializers.DateTimeField(allow_null=True)
    delivered_at = serializers.DateTimeField(allow_null=True)


class MessageSerializer(serializers.Serializer[Any]):
    """A message that was queued."""

    message_id = serializers.CharField()


class WebhooksView(TenantView):
    """The tenant's webhooks."""

    writes = Permission.WEBHOOKS_WRITE

    @extend_schema(operation_id="list_webhooks", responses=list_of(WebhookSerializer))
    def get(self, request: Request) -> Response:
        """List the webhooks, newest first."""
        return listed(WebhookSerializer, selectors.list_webhooks(actor=self.actor))

    @extend_schema(
        operation_id="create_webhook", request=NewWebhookSerializer, responses={201: IssuedWebhookSerializer}
    )
    def post(self, request: Request) -> Response:
        """Make a webhook. Its secret is in this answer and nowhere else."""
        values = read(NewWebhookSerializer, request.data)
        return _once(services.create_webhook(actor=self.actor, **values), 201)


class WebhookView(TenantView):
    """One webhook."""

    writes = Permission.WEBHOOKS_WRITE

    @extend_schema(operation_id="get_webhook", responses=WebhookSerializer)
    def get(self, request: Request, webhook_id: str) -> Response:
        """Return the webhook."""
        return Response(WebhookSerializer(selectors.get_webhook(actor=self.actor, webhook_id=webhook_id)).data)

    @extend_schema(operation_id="update_webhook", request=WebhookChangesSerializer, responses=WebhookSerializer)
    def patch(self, request: Request, webhook_id: str) -> Response:
        """Change where it leads, what it is sent, or whether it is sent anything."""
        values = read(WebhookChangesSerializer, request.data)
        webhook = services.update_webhook(actor=self.actor, webhook_id=webhook_id, **values)
        return Response(WebhookSerializer(webhook).data)

    @extend_schema(operation_id="delete_webhook", responses={204: None})
    def delete(self, request: Request, webhook_id: str) -> Response:
        """End the webhook for good. What waits for it is not sent any more."""
        services.delete_webhook(actor=self.actor, webhook_id=webhook_id)
        return Response(status=204)


class RotateWebhookView(TenantView):
    """A new secret for a webhook."""

    writes = Permission.WEBHOOKS_WRITE

    @extend_schema(operation_id="rotate_webhook", request=RotateSerializer, responses=IssuedWebhookSerializer)
    def post(self, request: Request, webhook_id: str) -> Response:
        """Give the webhook a new secret; for the overlap messages have a signature of the older one, too."""
        overlap = timedelta(seconds=read(RotateSerializer, request.data)["overlap_s"])
        return _once(services.rotate_secret(actor=self.actor, webhook_id=webhook_id, overlap=overlap), 200)


class TestWebhookView(TenantView):
    """A message to try a receiver with."""

    writes = Permission.WEBHOOKS_WRITE

    @extend_schema(operation_id="test_webhook", request=None, responses={202: MessageSerializer})
    def post(self, request: Request, webhook_id: str) -> Response:
        """Send a webhook.test to this webhook alone, within seconds. Its deliveries show what came of it."""
        told = services.send_test(actor=self.actor, webhook_id=webhook_id)
        return Response(MessageSerializer({"message_id": told.pk}).data, status=202)


class DeliveriesView(TenantView):
    """What a webhook was sent."""

    @extend_schema(operation_id="list_deliveries", responses=list_of(DeliverySerializer))
    def get(self, request: Request, webhook_id: str) -> Response:
        """List the last messages with what became of them, newest first."""
        selectors.get_webhook(actor=self.actor, webhook_id=webhook_id)
        return listed(DeliverySerializer, selectors.list_deliveries(actor=self.actor, webhook_id=webhook_id))


class ResendDeliveryView(TenantView):
    """One message, again."""

    writes = Permission.WEBHOOKS_WRITE

    @extend_schema(operation_id="resend_delivery", request=None, responses={202: MessageSerializer})
    def post(self, request: Request, webhook_id: str, message_id: str) -> Response:
        """Send a message once more, with the same id, within seconds."""
        services.resend_delivery(actor=self.actor, webhook_id=webhook_id, message_id=message_id)
        return Response(MessageSerializer({"message_id": message_id}).data, status=202)


def _once(issued: services.IssuedWebhook, status: int) -> Response:
    body = IssuedWebhookSerializer({"webhook": issued.webhook, "secret": issued.secret}).data
    return Response(body, status=status, headers={"Cache-Control": "no-store"})
