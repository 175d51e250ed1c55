"""The periodic work of metering. Both are safe twice, so the runner's own commit is enough."""

from controlplane.jobs.services import Lease, heartbeat
from controlplane.metering import services


def settle_abandoned(lease: Lease) -> None:
    """Settle what nobody will say more about, page by page."""
    while services.settle_abandoned(actor=lease.actor) == services.SWEEP_ROWS:
        heartbeat(lease)


def roll_up(lease: Lease) -> None:
    """Add up the hours that changed, page by page."""
    while services.roll_up(actor=lease.actor) == services.ROLL_UP_HOURS:
        heartbeat(lease)
