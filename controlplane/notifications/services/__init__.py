"""What is announced, and every change of webhooks: keyword-only, the actor first, one transaction, its audit row."""

from controlplane.notifications.services.announcements import announce
from controlplane.notifications.services.deliveries import claim_due, resend_delivery, settle
from controlplane.notifications.services.webhooks import (
    IssuedWebhook,
    create_webhook,
    delete_webhook,
    rotate_secret,
    send_test,
    update_webhook,
)

__all__ = [
    "IssuedWebhook",
    "announce",
    "claim_due",
    "create_webhook",
    "delete_webhook",
    "resend_delivery",
    "rotate_secret",
    "send_test",
    "settle",
    "update_webhook",
]
