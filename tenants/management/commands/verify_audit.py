"""``manage.py verify_audit``: walk every chain, or one tenant's, and name each row that was changed or is missing."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from tenants import audit
from tenants.actor import acting_as, system_actor
from tenants.models import AuditHead


class Command(BaseCommand):
    """Exits 1 where a chain is broken."""

    help = "Verify the audit chains: every edit, gap and lost end is named."

    def add_arguments(self, parser: CommandParser) -> None:
        """Take the tenant's name."""
        parser.add_argument("--tenant", help="the slug of one tenant; without it every chain is walked")

    def handle(self, *args: Any, **options: Any) -> None:
        """Verify."""
        faults: list[str] = []
        with acting_as(system_actor("verify_audit")):
            heads = list(AuditHead.objects.select_related("tenant").order_by("tenant__slug"))
            if options["tenant"]:
                heads = [head for head in heads if head.tenant and head.tenant.slug == options["tenant"]]
                if not heads:
                    raise CommandError(f"There is no audit chain of a tenant called {options['tenant']}.")
            else:
                faults += [f"{tenant_id or 'platform'}: the chain has lost its head" for tenant_id in audit.headless()]
            for head in heads:
                name = head.tenant.slug if head.tenant else "platform"
                found = [f"{name}, row {fault.sequence}: {fault.reason}" for fault in audit.verify_chain(head)]
                self.stdout.write(f"{name}: {head.sequence} rows, {'intact' if not found else 'BROKEN'}")
                faults += found
        if faults:
            raise CommandError("\n".join(faults))
