"""The periodic work of isolation: it is safe twice, so the runner's own commit is enough."""

from controlplane.isolation import services
from controlplane.jobs.services import Lease


def prune(lease: Lease) -> None:
    """Keep the tables small."""
    services.prune(actor=lease.actor)
