from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from dataplane.engine.token_counts import TokenCounts

TOKENS = st.lists(st.integers(0, 2**31 - 1) | st.integers(0, 5), max_size=30)


@given(prompt=TOKENS, output=TOKENS)
def test_each_token_is_there_once_with_how_often_the_output_has_it(prompt: list[int], output: list[int]) -> None:
    counts = TokenCounts(prompt)
    for token_id in output:
        counts.add(token_id)
    kept = dict(zip(counts.token_ids, counts.counts, strict=True))
    assert len(kept) == len(counts.token_ids)
    assert kept == dict.fromkeys(prompt, 0) | Counter(output)
