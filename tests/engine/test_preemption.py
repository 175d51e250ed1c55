"""Whom it hits: pure choices over small tables of tenants."""

from hypothesis import given
from hypothesis import strategies as st

from dataplane.contracts.catalog import Share
from dataplane.contracts.sampling import SamplingParams
from dataplane.engine.block_pool import BlockPool
from dataplane.engine.preemption import ReclaimCredit, growth_victim, reclaim_victims, row_giver
from dataplane.engine.sequence import Sequence
from dataplane.engine.tenant_budget import TenantBudget
from dataplane.engine.tenant_queue import TenantQueue
from dataplane.engine.timing import Time

POOL_BLOCKS = 64


class Bench:
    """A pool in which tenants run sequences of given sizes."""

    def __init__(self) -> None:
        self.pool = BlockPool(POOL_BLOCKS)
        self.tenants: list[TenantQueue] = []
        self.arrivals = 0

    def tenant(self, name: str, sizes: list[int], *, guarantee: int = 0, cap: int | None = None, weight: int = 1):
        share = Share(guarantee * 8, None if cap is None else cap * 8, weight)
        tenant = TenantQueue(TenantBudget(name, share, POOL_BLOCKS, 8), 0.0, 0)
        self.tenants.append(tenant)
        for size in sizes:
            self.arrivals += 1
            sequence = Sequence(
                f"{name}{self.arrivals}",
                tenant,
                [1] * (8 * size),
                sampling=SamplingParams(max_tokens=1),
                stop_token_ids=(),
                arrival=self.arrivals,
                time=Time(),
            )
            assert sequence.table.allocate(self.pool, tenant.budget, [], size)
            tenant.running[sequence.request_id] = sequence
        return tenant


def newest(tenant: TenantQueue) -> Sequence:
    return tenant.newest_running()


def test_growth_hits_the_newest_of_the_tenant_most_above_its_guarantee() -> None:
    bench = Bench()
    grower = bench.tenant("grower", [4])
    most = bench.tenant("most", [5, 3])
    bench.tenant("guaranteed", [20], guarantee=20)
    assert growth_victim(newest(grower), bench.tenants) is newest(most)


def test_growth_does_not_take_from_an_equal() -> None:
    bench = Bench()
    grower = bench.tenant("grower", [3, 2])
    bench.tenant("equal", [6])
    assert growth_victim(next(iter(grower.running.values())), bench.tenants) is newest(grower)


def test_growth_at_the_cap_hits_the_tenants_own_newest() -> None:
    bench = Bench()
    grower = bench.tenant("grower", [2, 2], cap=4)
    bench.tenant("large", [30])
    assert growth_victim(next(iter(grower.running.values())), bench.tenants) is newest(grower)


@given(
    st.lists(
        st.tuples(st.lists(st.integers(1, 9), min_size=1, max_size=3), st.integers(0, 20)), min_size=1, max_size=6
    ),
    st.integers(0, 5),
)
def test_in_a_full_pool_growth_always_finds_a_victim_that_is_no_innocent(
    table: list[tuple[list[int], int]], grower: int
) -> None:
    bench = Bench()
    guaranteed = 0
    for number, (sizes, guarantee) in enumerate(table):
        if sum(sizes) <= bench.pool.free_blocks and guaranteed + guarantee <= POOL_BLOCKS:
            bench.tenant(f"t{number}", sizes, guarantee=guarantee)
            guaranteed += guarantee
    if not bench.tenants:
        return
    if bench.pool.free_blocks:
        bench.tenant("rest", [bench.pool.free_blocks])
    own = bench.tenants[grower % len(bench.tenants)]
    victim = growth_victim(newest(own), bench.tenants)
    assert victim.tenant is own or victim.tenant.budget.excess_blocks > 0
    assert victim.tenant.budget.excess_blocks + (victim.tenant is own) > 0


def test_reclaim_takes_just_enough_newest_first_and_nobody_within_its_guarantee() -> None:
    bench = Bench()
    borrower = bench.tenant("borrower", [10, 6, 5], guarantee=4)
    bench.tenant("guaranteed", [30], guarantee=30)
    victims = reclaim_victims(8, bench.tenants, step=100, min_run_steps=16)
    assert victims is not None
    assert [len(victim.table) for victim in victims] == [5, 6]
    assert all(victim.tenant is borrower for victim in victims)


def test_reclaim_is_all_or_nothing() -> None:
    bench = Bench()
    bench.tenant("borrower", [3], guarantee=1)
    assert reclaim_victims(4, bench.tenants, step=100, min_run_steps=16) is None


def test_reclaim_spares_what_has_just_begun_or_is_still_catching_up() -> None:
    bench = Bench()
    borrower = bench.tenant("borrower", [4, 4, 4])
    fresh, catching_up, settled = borrower.running.values()
    fresh.running_since_step = 90
    catching_up.high_water_tokens = 32
    assert reclaim_victims(4, bench.tenants, step=100, min_run_steps=16) == [settled]
    assert reclaim_victims(5, bench.tenants, step=100, min_run_steps=16) is None


def test_a_shared_block_frees_nothing() -> None:
    bench = Bench()
    borrower = bench.tenant("borrower", [4])
    for block in newest(borrower).table.blocks:
        bench.pool.share(block)
    assert reclaim_victims(1, bench.tenants, step=100, min_run_steps=16) is None


def test_a_block_that_victims_share_is_freed_by_the_last_of_them() -> None:
    bench = Bench()
    borrower = bench.tenant("borrower", [4, 1])
    old, new = borrower.running.values()
    for block in old.table.blocks:
        bench.pool.share(block)
    new.table._extend(list(old.table.blocks))
    assert reclaim_victims(1, bench.tenants, step=100, min_run_steps=16) == [new]
    assert reclaim_victims(5, bench.tenants, step=100, min_run_steps=16) == [new, old]


def test_a_row_is_taken_from_whoever_has_most_per_weight_and_never_from_an_equal() -> None:
    bench = Bench()
    newcomer = bench.tenant("newcomer", [], guarantee=4)
    many = bench.tenant("many", [1, 1, 1])
    bench.tenant("heavy", [1, 1, 1, 1], weight=4)
    assert row_giver(newcomer, bench.tenants, 0) is newest(many)
    assert row_giver(newcomer, [newcomer, bench.tenant("one", [1])], 0) is None
    gave = newest(many)
    many.paused[gave.request_id] = gave
    assert row_giver(newcomer, bench.tenants, 0) is list(many.running.values())[1]


def test_where_rows_are_as_many_one_is_taken_from_whoever_had_most_service_but_never_its_last() -> None:
    bench = Bench()
    newcomer, served = bench.tenant("newcomer", [1, 1, 1]), bench.tenant("served", [1, 1])
    last = bench.tenant("last", [1])
    bench.tenant("other", [1, 1])
    served.counter, last.counter = 64.0, 500.0
    assert row_giver(newcomer, bench.tenants, 64.0) is None
    served.counter = 65.0
    assert row_giver(newcomer, bench.tenants, 64.0) is newest(served)


def test_credit_to_reclaim_is_earned_by_work_and_bounded_by_the_guarantee() -> None:
    credit = ReclaimCredit(0.25)
    credit.set_guarantees({"a": 100, "b": 300})
    assert credit.has("a", 100)
    credit.spend("a", 120)
    assert not credit.has("a", 100)
    assert credit.has("b", 300)
    credit.work_tokens += 320  # of which a quarter of a quarter is a's: 20
    assert not credit.has("a", 100)
    credit.work_tokens += 16
    assert credit.has("a", 100)
    credit.work_tokens += 1_000_000
    assert credit.has("a", 100)
    credit.spend("a", 100)
    assert not credit.has("a", 100)
    credit.spend("stranger", 5)
    credit.set_guarantees({"b": 300})
    assert credit.has("b", 300)
