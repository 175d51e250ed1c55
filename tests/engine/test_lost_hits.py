from hypothesis import given
from hypothesis import strategies as st

from dataplane.engine.lost_hits import LostHits

SIZE = 4
PROMPT = list(range(21))
prompts = st.lists(st.tuples(st.sampled_from("ab"), st.lists(st.integers(0, 1), min_size=1, max_size=12)), max_size=30)


def lost_hits(capacity_blocks: int = 100) -> LostHits:
    return LostHits(capacity_blocks, SIZE, b"secret")


def test_what_another_tenant_has_sent_is_lost_to_whoever_has_a_cache_of_its_own() -> None:
    counted = lost_hits()
    assert counted.count("a", PROMPT, 0) == 0
    assert counted.count("b", PROMPT[:11] + [99] * 10, 0) == 8
    assert counted.count("b", PROMPT, 8) == 12  # two blocks were in its own cache, and so are not lost


def test_what_only_the_tenant_itself_has_sent_is_not_lost_by_caches_that_are_apart() -> None:
    counted = lost_hits()
    counted.count("a", PROMPT, 0)
    assert counted.count("a", PROMPT, 0) == 0


def test_what_several_have_sent_is_lost_to_each_that_has_it_no_more() -> None:
    counted = lost_hits()
    for tenant in "ab":
        counted.count(tenant, PROMPT, 0)
    assert counted.count("a", PROMPT, 0) == 20
    assert counted.count("a", PROMPT, 20) == 0


def test_no_more_is_remembered_than_one_cache_would_hold() -> None:
    counted = lost_hits(capacity_blocks=3)
    counted.count("a", PROMPT, 0)
    assert counted.count("b", PROMPT, 0) == 12  # the end of the prompt was forgotten first


@given(prompts)
def test_no_tenant_alone_loses_anything_and_never_more_than_it_asks_for(sent: list[tuple[str, list[int]]]) -> None:
    shared, alone = lost_hits(), lost_hits()
    for tenant, prompt in sent:
        assert 0 <= shared.count(tenant, prompt, 0) < len(prompt)
        if tenant == "a":
            assert alone.count(tenant, prompt, 0) == 0
