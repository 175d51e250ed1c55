"""The block table: which blocks hold a sequence's positions, in order."""

from array import array

from dataplane.engine.block_list import Block
from dataplane.engine.block_pool import BlockPool
from dataplane.engine.tenant_budget import TenantBudget


class BlockTable:
    """Blocks of one sequence.

    Attributes:
        blocks: first position first.
        block_ids: their ids as 32-bit integers in one piece of memory, which a runner may read without a copy. Growth
            moves that memory and fails while somebody looks at it: a view is good for one step.
    """

    __slots__ = ("block_ids", "blocks")

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.block_ids = array("i")

    def __len__(self) -> int:
        return len(self.blocks)

    def allocate(self, pool: BlockPool, owner: TenantBudget, hits: list[Block], num_new: int) -> bool:
        """Take a prefix found in the cache and ``num_new`` blocks behind it: both, or nothing and False."""
        # Hits first: held blocks cannot be evicted to make room for the rest.
        for block in hits:
            pool.share(block)
        fresh = pool.allocate(owner, num_new)
        if fresh is None:
            pool.release(reversed(hits))
            return False
        self._extend(hits + fresh)
        return True

    def append(self, pool: BlockPool, owner: TenantBudget) -> bool:
        """Grow by one block, if there is one."""
        fresh = pool.allocate(owner, 1)
        if fresh is None:
            return False
        self._extend(fresh)
        return True

    def deallocate(self, pool: BlockPool) -> None:
        """Give everything back."""
        pool.release(reversed(self.blocks))
        self.blocks.clear()
        # The runner may still hold the old ids for the step in flight: start a new one.
        self.block_ids = array("i")

    def _extend(self, blocks: list[Block]) -> None:
        self.blocks += blocks
        self.block_ids.extend([block.id for block in blocks])
