"""The prefix cache against a naive model, and across tenants and versions."""

from hypothesis import given, settings
from hypothesis import strategies as st

from dataplane.contracts.catalog import Share
from dataplane.contracts.sampling import SamplingParams
from dataplane.engine.block_pool import BlockPool
from dataplane.engine.prefix_cache import PrefixCache, chain_seed
from dataplane.engine.sequence import Sequence
from dataplane.engine.tenant_budget import TenantBudget
from dataplane.engine.tenant_queue import TenantQueue
from dataplane.engine.timing import Time

SIZE = 8
NUM_BLOCKS = 64


class Bench:
    """A pool, a cache of one version, and computed sequences."""

    def __init__(self, version: str = "v1", *, enabled: bool = True, pool: BlockPool | None = None) -> None:
        self.pool = pool or BlockPool(NUM_BLOCKS)
        self.cache = PrefixCache(self.pool, SIZE, b"secret", version, enabled=enabled)
        self.tenants: dict[str, TenantQueue] = {}

    def sequence(self, tenant_id: str, tokens: list[int]) -> Sequence:
        if tenant_id not in self.tenants:
            self.tenants[tenant_id] = TenantQueue(TenantBudget(tenant_id, Share(), NUM_BLOCKS, SIZE), 0.0, 0)
        return Sequence(
            "r",
            self.tenants[tenant_id],
            tokens,
            sampling=SamplingParams(max_tokens=1),
            stop_token_ids=(),
            arrival=0,
            time=Time(),
        )

    def compute(self, tenant_id: str, tokens: list[int]) -> None:
        sequence = self.sequence(tenant_id, tokens)
        hits = self.cache.match(sequence)
        assert sequence.table.allocate(self.pool, sequence.tenant.budget, hits, -(-len(tokens) // SIZE) - len(hits))
        sequence.num_computed_tokens = len(tokens)
        self.cache.register(sequence, len(hits) * SIZE)
        sequence.table.deallocate(self.pool)

    def hit_tokens(self, tenant_id: str, tokens: list[int]) -> int:
        return SIZE * len(self.cache.match(self.sequence(tenant_id, tokens)))


prompts = st.lists(st.integers(0, 1), min_size=1, max_size=40)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("ab"), prompts), max_size=6), st.sampled_from("ab"), prompts)
def test_a_hit_is_the_longest_block_aligned_prefix_that_the_same_tenant_computed(
    history: list[tuple[str, list[int]]], tenant_id: str, prompt: list[int]
) -> None:
    bench = Bench()
    known: set[tuple[str, tuple[int, ...]]] = set()
    for owner, tokens in history:
        bench.compute(owner, tokens)
        known |= {(owner, tuple(tokens[:end])) for end in range(SIZE, len(tokens) + 1, SIZE)}
    expected = 0
    # At least the last token is computed, so that there are logits to draw from.
    while expected + SIZE <= len(prompt) - 1 and (tenant_id, tuple(prompt[: expected + SIZE])) in known:
        expected += SIZE
    assert bench.hit_tokens(tenant_id, prompt) == expected


def test_another_tenant_never_hits() -> None:
    bench = Bench()
    prompt = list(range(33))
    bench.compute("acme", prompt)
    assert bench.hit_tokens("acme", prompt) == 32
    assert bench.hit_tokens("evil", prompt) == 0


def test_another_version_never_hits() -> None:
    pool = BlockPool(NUM_BLOCKS)
    first, second = Bench("v1", pool=pool), Bench("v2", pool=pool)
    second.tenants = first.tenants
    first.compute("acme", list(range(33)))
    assert first.hit_tokens("acme", list(range(33))) == 32
    assert second.hit_tokens("acme", list(range(33))) == 0


def test_a_forged_digest_is_no_hit_for_another_tenant_nor_for_other_tokens() -> None:
    bench = Bench()
    prompt = list(range(9))
    bench.compute("acme", prompt)
    (block,) = bench.pool.index.values()
    thief, same_owner = bench.sequence("evil", prompt), bench.sequence("acme", [1, *prompt[1:]])
    for sequence in (thief, same_owner):
        bench.cache.match(sequence)
        bench.pool.index[sequence.chain[0]] = block
        assert bench.cache.match(sequence) == []


def test_a_prompt_of_whole_blocks_leaves_its_last_token_to_compute() -> None:
    bench = Bench()
    bench.compute("acme", list(range(16)))
    assert bench.hit_tokens("acme", list(range(16))) == 8


def test_switched_off_it_finds_nothing() -> None:
    bench = Bench(enabled=False)
    bench.compute("acme", list(range(16)))
    assert bench.hit_tokens("acme", list(range(16))) == 0
    assert bench.pool.free_blocks == NUM_BLOCKS


seeded = st.tuples(st.text(max_size=6), st.text(max_size=6), st.integers(0, 12))


@given(seeded, seeded)
def test_seeds_of_different_tenants_versions_or_epochs_differ(
    one: tuple[str, str, int], other: tuple[str, str, int]
) -> None:
    assert (chain_seed(b"s", *one) == chain_seed(b"s", *other)) == (one == other)


def test_the_seed_needs_the_secret() -> None:
    assert chain_seed(b"one", "acme", "v1", 0) != chain_seed(b"two", "acme", "v1", 0)


def test_a_cleared_cache_knows_no_prefix_and_gives_every_block_back() -> None:
    bench = Bench()
    for owner in "ab":
        bench.compute(owner, [0] * 20)
    assert bench.hit_tokens("a", [0] * 20) == 16
    bench.pool.clear_cache()
    assert [bench.hit_tokens(owner, [0] * 20) for owner in "ab"] == [0, 0]
    assert bench.pool.free_blocks == NUM_BLOCKS
    bench.pool.check_integrity(tenant.budget for tenant in bench.tenants.values())


def test_with_another_epoch_a_tenant_begins_anew_and_nobody_else_does() -> None:
    bench = Bench()
    prompt = [0] * 20
    for owner in "ab":
        bench.compute(owner, prompt)
    waiting = bench.sequence("a", prompt)
    assert len(bench.cache.match(waiting)) == 2
    bench.tenants["a"].waiting["r"] = waiting
    bench.cache.begin_epoch(bench.tenants["a"], 1)
    assert bench.cache.match(waiting) == []
    assert [bench.hit_tokens(owner, prompt) for owner in "ab"] == [0, 16]
    bench.compute("a", prompt)
    assert len(bench.cache.match(waiting)) == 2
    bench.pool.check_integrity(tenant.budget for tenant in bench.tenants.values())
