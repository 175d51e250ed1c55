"""What a share would do, before it is set. Pure: numbers of one moment, from what is granted and what replicas hold.

The fleet divides shares among replicas by demand, so figures of one replica are those of an equal part;
what a tenant may hold in all follows from the share as a whole.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from dataplane.contracts import memory
from dataplane.contracts.catalog import Share


@dataclass(frozen=True, slots=True)
class Held:
    """What a tenant holds now, over all replicas: in use and cached, in tokens, and how many requests use it."""

    used_tokens: int = 0
    cached_tokens: int = 0
    num_requests: int = 0


@dataclass(frozen=True, slots=True)
class PoolSize:
    """What promises are made from.

    Args:
        block_size: tokens of a block.
        blocks: of one replica.
        replicas: how many divide the shares: those that serve, and at least the fewest there may be.
        min_replicas: what guarantees are checked against.
        longest_tokens: the longest request, prompt and answer together, by the context.
    """

    block_size: int
    blocks: int
    replicas: int
    min_replicas: int
    longest_tokens: int


@dataclass(frozen=True, slots=True)
class Effect:
    """What setting a share would do now. Tokens in whole blocks, unless they are of the share itself.

    Args:
        refusal: why it cannot be set, with the numbers; empty where it can.
        replicas: how many divide the share.
        guarantee_blocks: the guarantee's equal part on a replica.
        cap_blocks: the cap's; of the whole pool where there is none.
        limit_tokens: the cap of all replicas together.
        block_size: tokens of a block.
        guaranteed_tokens: all tenants' guarantees together, this one included.
        pool_tokens: what they are checked against.
        room_tokens: what is left of one replica beside all guarantees.
        largest_tokens: the largest request that a replica admits.
        own_largest_tokens: the largest that this tenant could send.
        over_tokens: what the tenant holds above the new cap, in use and cached.
        over_used_tokens: the part of that which its running requests hold.
        preempted_at_most: running requests of its own that may lose their memory at once.
        claimable_tokens: what others hold above their guarantees and may lose to the part that is new of this one.
        turns: its part of the turns when all want more, in per cent.
    """

    refusal: str
    replicas: int
    guarantee_blocks: int
    cap_blocks: int
    limit_tokens: int
    block_size: int
    guaranteed_tokens: int
    pool_tokens: int
    room_tokens: int
    largest_tokens: int
    own_largest_tokens: int
    over_tokens: int
    over_used_tokens: int
    preempted_at_most: int
    claimable_tokens: int
    turns: float

    @property
    def guarantee_tokens(self) -> int:
        """The guarantee's part on a replica."""
        return self.guarantee_blocks * self.block_size

    @property
    def cap_tokens(self) -> int:
        """The cap's part on a replica."""
        return self.cap_blocks * self.block_size

    @property
    def evicted_tokens(self) -> int:
        """What is dropped of its cache."""
        return self.over_tokens - self.over_used_tokens

    @property
    def leaves_room(self) -> bool:
        """Whether a tenant without a guarantee can send the largest request while all guarantees are in use."""
        return self.room_tokens >= self.largest_tokens


def effect(
    tenant: str,
    share: Share,
    shares: Mapping[str, Share],
    held: Mapping[str, Held],
    *,
    pool: PoolSize,
    refusal: str = "",
) -> Effect:
    """Return what it would do to give ``tenant`` the share.

    Args:
        tenant: whose share changes.
        share: the new one.
        shares: what is granted now, by tenant.
        held: what each tenant holds now.
        pool: what there is.
        refusal: why the share cannot be set.
    """
    size, before = pool.block_size, shares.get(tenant, Share())
    after = {**shares, tenant: share}
    guaranteed_blocks = memory.promised_blocks(after, size, pool.min_replicas)
    room_blocks = pool.blocks - memory.promised_blocks(after, size, pool.replicas)
    limit_blocks = pool.blocks * pool.replicas
    if share.cap_tokens is not None:
        limit_blocks = min(limit_blocks, _parts(share.cap_tokens, size))
    limit_tokens = limit_blocks * size
    largest_tokens = min(pool.longest_tokens, pool.blocks * size)
    mine = held.get(tenant, Held())
    over_used_tokens = max(0, mine.used_tokens - limit_tokens)
    return Effect(
        refusal=refusal,
        replicas=pool.replicas,
        guarantee_blocks=_parts(_parts(share.guarantee_tokens, pool.replicas), size),
        cap_blocks=_parts(limit_blocks, pool.replicas),
        limit_tokens=limit_tokens,
        block_size=size,
        guaranteed_tokens=guaranteed_blocks * size * pool.min_replicas,
        pool_tokens=pool.blocks * size * pool.min_replicas,
        room_tokens=max(0, room_blocks) * size,
        largest_tokens=largest_tokens,
        own_largest_tokens=min(largest_tokens, limit_tokens),
        over_tokens=max(0, mine.used_tokens + mine.cached_tokens - limit_tokens),
        over_used_tokens=over_used_tokens,
        # Requests may share blocks, so the newest one's end can give nothing: all of them are the bound.
        preempted_at_most=mine.num_requests if over_used_tokens else 0,
        claimable_tokens=_claimable(tenant, before, share, shares, held),
        turns=100 * share.weight / max(1, sum(each.weight for each in after.values())),
    )


def _claimable(tenant: str, before: Share, share: Share, shares: Mapping[str, Share], held: Mapping[str, Held]) -> int:
    """Return what borrowers may lose to a guarantee that grows: no more than it grows, nor than they have borrowed."""
    borrowed = sum(
        max(0, held[name].used_tokens - other.guarantee_tokens)
        for name, other in shares.items()
        if name != tenant and name in held
    )
    return min(borrowed, max(0, share.guarantee_tokens - before.guarantee_tokens))


def _parts(value: int, size: int) -> int:
    return -(-value // size)
