"""Every fetch starts with whose it is."""

from typing import TYPE_CHECKING, TypeVar

from django.db import models

if TYPE_CHECKING:
    from tenants.models import Tenant

_Row = TypeVar("_Row", bound=models.Model)


class TenantManager(models.Manager[_Row]):
    """The manager of every table with a column ``tenant``: ``Model.objects.for_tenant(actor.tenant)``."""

    def for_tenant(self, tenant: "Tenant") -> models.QuerySet[_Row]:
        """Return the rows of ``tenant``."""
        return self.get_queryset().filter(tenant=tenant)
