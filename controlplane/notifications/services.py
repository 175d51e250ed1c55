"""Changes of webhooks, and what is announced."""
