"""The pool against a model: who owns what, in which order it is evicted, and that nothing is ever lost."""

from collections import OrderedDict

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dataplane.contracts.catalog import Share
from dataplane.engine.block_list import Block, BlockList
from dataplane.engine.block_pool import BlockPool, IntegrityError
from dataplane.engine.tenant_budget import TenantBudget, check_shares

NUM_BLOCKS = 12
SHARES = {"a": Share(guarantee_tokens=32), "b": Share(cap_tokens=40), "c": Share()}


class PoolMachine(RuleBasedStateMachine):
    """Tenants allocate, share, index and release; the model knows the LRU order and the counts."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS)
        self.budgets = {name: TenantBudget(name, share, NUM_BLOCKS, 8) for name, share in SHARES.items()}
        self.holders: list[tuple[str, Block]] = []
        self.cached: dict[str, OrderedDict[int, None]] = {name: OrderedDict() for name in SHARES}
        self.digests = 0

    def owned(self, name: str) -> int:
        return len({block.id for owner, block in self.holders if owner == name})

    def num_cached(self) -> int:
        return sum(len(lru) for lru in self.cached.values())

    def num_free(self) -> int:
        return NUM_BLOCKS - self.num_cached() - sum(self.owned(name) for name in SHARES)

    def expect_evictions(self, name: str, count: int) -> None:
        budget, own = self.budgets[name], self.cached[name]
        free = self.num_free()
        for _ in range(max(0, self.owned(name) + len(own) + count - budget.cap_blocks)):
            own.popitem(last=False)
            free += 1
        while own and free < count:
            own.popitem(last=False)
            free += 1
        while free < count:
            above = {
                other: self.owned(other) + len(lru) - self.budgets[other].guarantee_blocks
                for other, lru in self.cached.items()
                if lru
            }
            most = max(above.values())
            losers = [other for other, excess in above.items() if excess == most]
            # Among equals either may lose: follow the pool.
            loser = next(o for o in losers if len(self.cached[o]) > self.budgets[o].cached_blocks)
            self.cached[loser].popitem(last=False)
            free += 1

    @rule(name=st.sampled_from("abc"), count=st.integers(1, 6))
    def allocate(self, name: str, count: int) -> None:
        possible = (
            self.owned(name) + count <= self.budgets[name].cap_blocks and count <= self.num_free() + self.num_cached()
        )
        blocks = self.pool.allocate(self.budgets[name], count)
        assert (blocks is not None) == possible
        if blocks is not None:
            self.expect_evictions(name, count)
            assert len({block.id for block in blocks}) == count
            self.holders += [(name, block) for block in blocks]

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def register(self, data: st.DataObject) -> None:
        _, block = data.draw(st.sampled_from(self.holders))
        if block.digest is None:
            self.digests += 1
            self.pool.register(block, str(self.digests).encode(), [self.digests])

    @precondition(lambda self: self.pool.index)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        block = self.pool.index[data.draw(st.sampled_from(sorted(self.pool.index)))]
        assert block.owner is not None
        self.cached[block.owner.id].pop(block.id, None)
        self.pool.share(block)
        self.holders.append((block.owner.id, block))

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(self.holders))
        self.holders.remove(entry)
        name, block = entry
        indexed = block.digest is not None
        self.pool.release([block])
        if indexed and all(other is not block for _, other in self.holders):
            self.cached[name][block.id] = None

    @invariant()
    def books_balance(self) -> None:
        self.pool.check_integrity(self.budgets.values())
        assert self.pool.free_blocks == self.num_free()
        for name, budget in self.budgets.items():
            assert budget.owned_blocks == self.owned(name)
            assert [block.id for block in budget.cached] == list(self.cached[name])
            assert budget.held_blocks <= budget.cap_blocks


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)


def test_a_prefix_outlives_its_tail() -> None:
    pool, budget = BlockPool(3), TenantBudget("a", Share(), 3, 8)
    blocks = pool.allocate(budget, 3) or []
    for number, block in enumerate(blocks):
        pool.register(block, bytes([number]), [number])
    pool.release(reversed(blocks))
    pool.allocate(budget, 1)
    assert sorted(pool.index) == [b"\x00", b"\x01"]


def test_the_cache_of_an_idle_tenant_below_its_guarantee_is_reclaimed() -> None:
    pool = BlockPool(4)
    idle, busy = TenantBudget("idle", Share(guarantee_tokens=32), 4, 8), TenantBudget("busy", Share(), 4, 8)
    blocks = pool.allocate(idle, 4) or []
    for number, block in enumerate(blocks):
        pool.register(block, bytes([number]), [number])
    pool.release(blocks)
    assert idle.cached_blocks == 4
    assert len(pool.allocate(busy, 4) or []) == 4


def test_a_wrong_count_is_found() -> None:
    pool, budget = BlockPool(4), TenantBudget("a", Share(), 4, 8)
    pool.allocate(budget, 2)
    budget.owned_blocks = 1
    with pytest.raises(IntegrityError, match="owned by a"):
        pool.check_integrity([budget])


def test_a_lost_block_is_found() -> None:
    pool, budget = BlockPool(4), TenantBudget("a", Share(), 4, 8)
    pool._free.popleft()
    with pytest.raises(IntegrityError, match="free \\+ cached \\+ owned"):
        pool.check_integrity([budget])


def test_an_empty_list_has_no_first_block() -> None:
    with pytest.raises(IndexError):
        BlockList().popleft()


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        ({"a": Share(guarantee_tokens=64), "b": Share(guarantee_tokens=40)}, "add up to 104 tokens"),
        ({"a": Share(guarantee_tokens=64, cap_tokens=32)}, "above the cap"),
        ({"a": Share(weight=0)}, "weight is 0"),
        ({"a": Share(guarantee_tokens=-1)}, "cannot be negative"),
        ({"a": Share(cap_tokens=-1)}, "cannot be negative"),
    ],
)
def test_shares_that_the_pool_cannot_keep_are_refused_by_name(shares: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_shares(shares, num_blocks=12, block_size=8)


def test_tokens_round_up_to_blocks_and_a_cap_above_the_pool_is_the_pool() -> None:
    budget = TenantBudget("a", Share(guarantee_tokens=9, cap_tokens=17), 12, 8)
    assert (budget.guarantee_blocks, budget.cap_blocks) == (2, 3)
    assert TenantBudget("b", Share(cap_tokens=10_000), 12, 8).cap_blocks == 12
