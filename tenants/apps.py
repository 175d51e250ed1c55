"""The app's configuration."""

from django.apps import AppConfig
from django.db.models.signals import post_migrate

from tenants.database_role import grant_rows


class TenantsConfig(AppConfig):
    """Grants rows to the application's role whenever tables may have changed."""

    name = "tenants"

    def ready(self) -> None:
        """Listen for the end of a migration."""
        post_migrate.connect(grant_rows, sender=self, dispatch_uid="tenants.database_role")
