"""Webhooks, announcements and their deliveries."""
