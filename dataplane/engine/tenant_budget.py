"""A tenant's memory: its guarantee and cap in blocks, and exactly how many blocks it owns and has cached."""

from collections.abc import Mapping

from dataplane.contracts.catalog import Share
from dataplane.contracts.leases import NO_LEASES, Lease, blocks_for
from dataplane.engine.block_list import BlockList

DEFAULT_SHARE = Share()
"""What a tenant that is not listed gets: no guarantee, the whole pool as cap, weight 1."""


class TenantBudget:
    """Blocks of one tenant, in numbers.

    The cap counts blocks in use now, owned and cached, page by page; it does not count what running requests may still
    grow to. Counting commitments (prompt + max_tokens) would give the tighter service bound, but a caller who leaves
    max_tokens out commits the whole context, and one or two such requests would fill a tenant's cap. The price is the
    factor H_R (the R-th harmonic number, R = ``max_num_seqs``) on the part of the service bound that comes from the
    cap: sequences that end one after another hand their blocks to those that still grow.

    Attributes:
        id: the tenant.
        weight: its part of the compute.
        guarantee_blocks: blocks it can reclaim from borrowers when its turn has come.
        cap_blocks: most blocks it may have, owned and cached together.
        limit_blocks: the cap of its whole share. Where only a part of that is here, a larger request waits for more.
        owned_blocks: blocks that its running sequences hold, each counted once however many share it.
        peak_owned_blocks: the most that it ever owned.
        cached: its blocks that nobody holds, least recently used first.
        cache_epoch: a part of its salt, raised to forget what it has cached.
    """

    __slots__ = (
        "cache_epoch",
        "cached",
        "cap_blocks",
        "guarantee_blocks",
        "id",
        "limit_blocks",
        "owned_blocks",
        "peak_owned_blocks",
        "weight",
    )

    def __init__(
        self, tenant_id: str, share: Share, num_blocks: int, block_size: int, lease: Lease | None = None
    ) -> None:
        self.id = tenant_id
        self.owned_blocks = self.peak_owned_blocks = 0
        self.guarantee_blocks = self.cap_blocks = 0
        self.cached = BlockList()
        self.cache_epoch = share.cache_epoch
        self.set_share(share, num_blocks, block_size, lease)

    def set_share(
        self, share: Share, num_blocks: int, block_size: int, lease: Lease | None = None, num_running: int = 0
    ) -> None:
        """Take new numbers. Tokens round up to blocks; a cap above the pool is the pool. The epoch stays.

        With a ``lease`` only that part of the share is here. What it keeps while in use counts a block to come of each
        of ``num_running`` sequences, which would else be preempted as it grows.
        """
        guarantee_before, cap_before = self.guarantee_blocks, self.cap_blocks
        self.weight = share.weight
        self.guarantee_blocks = blocks_for(share.guarantee_tokens, block_size)
        self.cap_blocks = num_blocks
        if share.cap_tokens is not None:
            self.cap_blocks = min(num_blocks, blocks_for(share.cap_tokens, block_size))
        self.limit_blocks = self.cap_blocks
        if lease is not None:
            kept_blocks = min(lease.kept_guarantee_blocks, guarantee_before, self.owned_blocks)
            self.guarantee_blocks = max(lease.guarantee_blocks, kept_blocks)
            if lease.cap_blocks is not None:
                kept_blocks = min(lease.kept_cap_blocks, cap_before, self.owned_blocks + num_running)
                self.cap_blocks = min(num_blocks, max(lease.cap_blocks, kept_blocks))

    def own(self, count: int) -> None:
        """Count blocks that its sequences hold from now on."""
        self.owned_blocks += count
        self.peak_owned_blocks = max(self.peak_owned_blocks, self.owned_blocks)

    @property
    def cached_blocks(self) -> int:
        """Blocks that only the prefix cache holds."""
        return len(self.cached)

    @property
    def held_blocks(self) -> int:
        """Owned and cached: what the cap limits."""
        return self.owned_blocks + len(self.cached)

    @property
    def excess_blocks(self) -> int:
        """Owned blocks above the guarantee; negative below it."""
        return self.owned_blocks - self.guarantee_blocks


def check_shares(
    shares: Mapping[str, Share], num_blocks: int, block_size: int, leases: Mapping[str, Lease] = NO_LEASES
) -> None:
    """Refuse shares that this pool cannot keep; of one that is leased it has to keep no more than the lease.

    Raises:
        ValueError: names the tenant, the numbers and the mend.
    """
    guaranteed_blocks = 0
    for tenant_id, share in shares.items():
        if share.guarantee_tokens < 0 or (share.cap_tokens is not None and share.cap_tokens < 0):
            raise ValueError(f"tenant {tenant_id}: guarantee and cap cannot be negative")
        if share.weight < 1:
            raise ValueError(f"tenant {tenant_id}: weight is {share.weight}; it must be at least 1")
        if share.cap_tokens is not None and share.guarantee_tokens > share.cap_tokens:
            raise ValueError(
                f"tenant {tenant_id}: the guarantee of {share.guarantee_tokens} tokens is above "
                f"the cap of {share.cap_tokens}; raise the cap or lower the guarantee"
            )
        lease = leases.get(tenant_id)
        whole_blocks = blocks_for(share.guarantee_tokens, block_size)
        guaranteed_blocks += whole_blocks if lease is None else lease.most_guarantee_blocks
    if guaranteed_blocks > num_blocks:
        raise ValueError(
            f"the guarantees add up to {guaranteed_blocks * block_size} tokens (in whole blocks of {block_size}), the "
            f"KV pool holds {num_blocks * block_size}; lower them or give the pool more memory"
        )
