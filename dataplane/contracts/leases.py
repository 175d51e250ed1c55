"""What one replica holds of a tenant's share, when several replicas of a version divide it.

A share is a promise of the deployment as a whole. The fleet leases parts of it to the replicas, and moves them to where
the tenant's requests are: it lowers one, hears from the engine what is in force there, and only then raises another.
"""

from collections.abc import Mapping
from types import MappingProxyType

import msgspec


class Lease(msgspec.Struct, frozen=True):
    """A part of a tenant's guarantee and cap, in blocks of the replica's pool.

    A part that moves does not cost a running request its blocks: of what was in force before, up to
    ``kept_guarantee_blocks`` and ``kept_cap_blocks`` stay so while they are in use. That never raises anything. 0 keeps
    nothing: the promise itself was lowered. ``cap_blocks`` None: the share has no cap, the pool is the limit.
    """

    guarantee_blocks: int
    cap_blocks: int | None
    kept_guarantee_blocks: int = 0
    kept_cap_blocks: int = 0

    @property
    def most_guarantee_blocks(self) -> int:
        """The most that may be in force as the guarantee once this lease is."""
        return max(self.guarantee_blocks, self.kept_guarantee_blocks)


NO_LEASES: Mapping[str, Lease] = MappingProxyType({})
"""A replica that nobody leases to holds every share whole."""


def blocks_for(tokens: int, block_size: int) -> int:
    """Return the blocks that hold ``tokens`` tokens."""
    return -(-tokens // block_size)
