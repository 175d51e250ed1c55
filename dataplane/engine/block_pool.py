"""The KV pool's blocks: who has which, and where the next one comes from.

The life of a block::

                 allocate                  release (not indexed)
       FREE ------------------> OWNED ------------------------------> FREE
        ^                       |   ^
        |        release        |   |  share: a prefix hit
        |      (indexed, nobody |   |
        |       else holds it)  v   |
        +---------------------- CACHED   one LRU per tenant
            evict, oldest first

FREE + CACHED + OWNED = all blocks, always; an owned block counts once, however many sequences share it.
"""

from collections.abc import Iterable

from dataplane.engine.block_list import Block, BlockList
from dataplane.engine.lazy_heap import LazyHeap
from dataplane.engine.tenant_budget import TenantBudget


class IntegrityError(RuntimeError):
    """The books do not balance: a bug in the engine, never a caller's fault."""


class BlockPool:
    """Hands out blocks, takes them back, and evicts cached ones when it must.

    Args:
        num_blocks: size of the pool.
    """

    def __init__(self, num_blocks: int) -> None:
        self.blocks = [Block(block_id) for block_id in range(num_blocks)]
        self.index: dict[bytes, Block] = {}
        self.cached_blocks = 0
        self._free = BlockList()
        self._caching = LazyHeap(_below_guarantee, _has_cached)  # who is most above its guarantee comes first
        for block in self.blocks:
            self._free.append(block)

    @property
    def free_blocks(self) -> int:
        """Blocks that hold nothing."""
        return len(self._free)

    @property
    def evictable_blocks(self) -> int:
        """Blocks that can be handed out without a preemption."""
        return len(self._free) + self.cached_blocks

    def allocate(self, owner: TenantBudget, count: int) -> list[Block] | None:
        """Give ``owner`` ``count`` blocks, or None and nothing changed if its cap or the pool does not allow it.

        They come from the free list, then from the owner's own cache, then from the cache of whoever is most above its
        guarantee. Caches of tenants below their guarantee are not spared: nobody could allocate when all of the pool
        was such a cache.
        """
        if owner.owned_blocks + count > owner.cap_blocks or count > self.evictable_blocks:
            return None
        self._evict(owner, owner.held_blocks + count - owner.cap_blocks)
        self._evict(owner, min(count - len(self._free), owner.cached_blocks))
        self._evict_others(count - len(self._free))
        blocks = [self._free.popleft() for _ in range(count)]
        for block in blocks:
            block.owner = owner
            block.ref_count = 1
        owner.own(count)
        if owner.cached:
            self._caching.add(owner)
        return blocks

    def share(self, block: Block) -> None:
        """Hold an indexed block once more: a prefix hit."""
        if block.ref_count == 0 and block.owner is not None:
            self._uncache(block, block.owner)
            block.owner.own(1)
        block.ref_count += 1

    def release(self, blocks: Iterable[Block]) -> None:
        """Let go of ``blocks`` once each. Give them last position first, so that a prefix outlives its tail."""
        for block in blocks:
            block.ref_count -= 1
            owner = block.owner
            if block.ref_count > 0 or owner is None:
                continue
            owner.owned_blocks -= 1
            if block.digest is None:
                self._free_block(block)
            else:
                owner.cached.append(block)
                self.cached_blocks += 1
                self._caching.add(owner)

    def register(self, block: Block, digest: bytes, token_ids: list[int]) -> None:
        """Index a full block, unless an equal one is indexed already: the older one keeps the place."""
        if digest not in self.index:
            block.digest, block.token_ids = digest, token_ids
            self.index[digest] = block

    def trim(self, owner: TenantBudget) -> None:
        """Evict what the owner's cache holds above its cap, after its share was changed."""
        self._evict(owner, min(owner.held_blocks - owner.cap_blocks, owner.cached_blocks))
        self._caching.add(owner)

    def clear_cache(self) -> None:
        """Evict everything that is cached: the memory behind the blocks is about to lose its content."""
        for owner in list(self._caching):
            self._evict(owner, owner.cached_blocks)
        self._caching.clear()

    def forget(self, owner: TenantBudget, held: Iterable[Block]) -> None:
        """Evict the cache of ``owner``, take its ``held`` blocks out of the index: they will be freed, not cached."""
        self._evict(owner, owner.cached_blocks)
        for block in held:
            self._unindex(block)

    def _evict_others(self, count: int) -> None:
        for _ in range(count):
            owner = self._caching.least()
            if owner is None:
                raise IntegrityError("a cached block belongs to no tenant")
            self._evict(owner, 1)

    def _evict(self, owner: TenantBudget, count: int) -> None:
        for _ in range(count):
            block = next(iter(owner.cached))
            self._uncache(block, owner)
            self._free_block(block)

    def _uncache(self, block: Block, owner: TenantBudget) -> None:
        owner.cached.remove(block)
        self.cached_blocks -= 1

    def _free_block(self, block: Block) -> None:
        self._unindex(block)
        block.owner = None
        self._free.append(block)

    def _unindex(self, block: Block) -> None:
        if block.digest is not None:
            del self.index[block.digest]
            block.digest, block.token_ids = None, []

    def check_integrity(self, budgets: Iterable[TenantBudget]) -> None:
        """Walk every list and compare it with every count.

        Raises:
            IntegrityError: says which figures differ.
        """
        owned: dict[str, int] = {}
        for block in self.blocks:
            if block.ref_count > 0 and block.owner is not None:
                owned[block.owner.id] = owned.get(block.owner.id, 0) + 1
        cached = 0
        for budget in budgets:
            in_list = list(budget.cached)
            cached += len(in_list)
            _expect(f"owned by {budget.id}", owned.pop(budget.id, 0), budget.owned_blocks)
            _expect(f"cached for {budget.id}", len(in_list), budget.cached_blocks)
            strangers = [b.id for b in in_list if b.ref_count or b.owner is not budget or b.digest not in self.index]
            _expect(f"strangers in the cache of {budget.id}", strangers, [])
        _expect("blocks of unknown tenants", owned, {})
        _expect("cached blocks", cached, self.cached_blocks)
        free = list(self._free)
        _expect("free blocks in use", [block.id for block in free if block.ref_count or block.owner], [])
        held = sum(block.ref_count > 0 for block in self.blocks)
        _expect("free + cached + owned", len(free) + cached + held, len(self.blocks))
        _expect("index entries", sum(b.digest is not None for b in self.blocks), len(self.index))


def _below_guarantee(budget: TenantBudget) -> int:
    return budget.guarantee_blocks - budget.held_blocks


def _has_cached(budget: TenantBudget) -> bool:
    return len(budget.cached) > 0


def _expect(what: str, counted: object, expected: object) -> None:
    if counted != expected:
        raise IntegrityError(f"{what}: counted {counted}, expected {expected}")
