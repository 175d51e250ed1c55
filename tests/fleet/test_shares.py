from hypothesis import given
from hypothesis import strategies as st

from dataplane.contracts.catalog import Share
from dataplane.fleet.shares import salt_secret, split

tokens = st.integers(0, 10**9)
grants = st.dictionaries(
    st.text(min_size=1, max_size=3),
    st.builds(Share, tokens, st.one_of(st.none(), tokens), st.integers(1, 100), st.integers(0, 9)),
)


@given(grants, st.integers(0, 64))
def test_the_parts_of_all_replicas_hold_the_promise_with_less_than_a_token_too_much_each(
    granted: dict[str, Share], replicas: int
) -> None:
    parts = split(granted, replicas)
    count = max(1, replicas)
    assert parts.keys() == granted.keys()
    for tenant_id, share in granted.items():
        part = parts[tenant_id]
        assert 0 <= part.guarantee_tokens * count - share.guarantee_tokens < count
        assert (part.weight, part.cache_epoch) == (share.weight, share.cache_epoch)
        if share.cap_tokens is None:
            assert part.cap_tokens is None
        else:
            assert 0 <= part.cap_tokens * count - share.cap_tokens < count
            assert part.guarantee_tokens <= part.cap_tokens or share.guarantee_tokens > share.cap_tokens


@given(st.binary(min_size=32, max_size=32), st.text(), st.text())
def test_each_version_has_its_own_salt_secret(secret: bytes, one: str, two: str) -> None:
    assert (salt_secret(secret, one) == salt_secret(secret, two)) == (one == two)
    assert secret not in salt_secret(secret, one)
