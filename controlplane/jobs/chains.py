"""The periodic job that walks every audit chain from its first row, and keeps at each head how far it holds."""

from controlplane.jobs import services
from tenants import audit


class HeadLostError(Exception):
    """A chain has rows and no head, so nobody can say where it ends."""


def verify(lease: services.Lease) -> None:
    """Verify all chains, some rows a transaction.

    Raises:
        HeadLostError: the others are verified all the same; this one needs a person.
    """
    with services.advancing(lease):
        walks, lost = audit.walks(), audit.headless()
    for walk in walks:
        while not walk.is_over:
            with services.advancing(lease):
                audit.walk_on(walk)
    if lost:
        raise HeadLostError(f"these chains have lost their heads: {', '.join(each or 'platform' for each in lost)}")
