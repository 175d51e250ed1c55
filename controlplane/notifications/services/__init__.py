"""What is announced, and every change of webhooks: keyword-only, the actor first, one transaction, its audit row."""

from controlplane.notifications.services.announcements import announce

__all__ = ["announce"]
