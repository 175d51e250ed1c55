"""Draws follow the exact distribution, depend on nothing but their own row, and fail alone."""

import math
from collections import Counter

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dataplane.contracts.errors import Code
from dataplane.contracts.sampling import SamplingParams
from dataplane.engine.runner import RowFailure
from dataplane.model.sampler import Draw, sample, uniform

PARAMS = SamplingParams(max_tokens=1, temperature=1.0)
LOGITS = st.lists(st.floats(-8, 8, width=32), min_size=1, max_size=300)


def params(**changes: float) -> SamplingParams:
    return msgspec.structs.replace(PARAMS, **changes)


def reference_probabilities(logits: list[float], chosen: SamplingParams) -> list[float]:
    """Temperature, top_k, top_p by the definition; ties with the last one kept are kept."""
    weights = [math.exp((logit - max(logits)) / chosen.temperature) for logit in logits]
    ranked = sorted(weights, reverse=True)
    if 0 < chosen.top_k < len(ranked):
        weights = [weight if weight >= ranked[chosen.top_k - 1] else 0.0 for weight in weights]
    if chosen.top_p < 1:
        ranked, mass = sorted(weights, reverse=True), 0.0
        for border in ranked:
            mass += border
            if mass >= chosen.top_p * sum(weights):
                break
        weights = [weight if weight >= border else 0.0 for weight in weights]
    return [weight / sum(weights) for weight in weights]


def draw_many(logits: list[float], chosen: SamplingParams, count: int) -> Counter[int]:
    """Tokens at output indices 0 to ``count`` - 1."""
    rows = torch.tensor([logits]).repeat(count, 1)
    results = sample(rows, [Draw(chosen, index) for index in range(count)])
    assert all(isinstance(token, int) for token in results)
    return Counter(results)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "chosen",
    [
        params(seed=1),
        params(seed=2, temperature=0.5),
        params(seed=3, temperature=2.0, top_k=4),
        params(seed=4, top_p=0.8),
        params(seed=5, temperature=1.5, top_k=6, top_p=0.7),
    ],
)
def test_frequencies_are_the_exact_probabilities(chosen: SamplingParams) -> None:
    logits = [1.0, 0.0, 2.0, -1.0, 0.5, 1.5, -3.0, 0.25]
    expected = reference_probabilities(logits, chosen)
    count = 6_000
    drawn = draw_many(logits, chosen, count)
    assert all(expected[token] > 0 for token in drawn)
    # Pearson's statistic; 7 degrees of freedom exceed 24.3 once in 1,000 seeds, and the seeds are fixed
    statistic = sum((drawn[token] - count * p) ** 2 / (count * p) for token, p in enumerate(expected) if p > 0)
    assert statistic < 24.3


@settings(deadline=None)
@given(
    logits=LOGITS,
    temperature=st.floats(0.1, 4),
    top_k=st.integers(0, 320),
    top_p=st.floats(0.01, 1),
    seed=st.integers(0, 2**63),
    output_index=st.integers(0, 10_000),
)
def test_a_draw_is_the_inverse_of_the_reference_distribution(
    logits: list[float], temperature: float, top_k: int, top_p: float, seed: int, output_index: int
) -> None:
    chosen = params(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    rounded = torch.tensor(logits).tolist()
    (token,) = sample(torch.tensor([logits]), [Draw(chosen, output_index)])
    assert isinstance(token, int)
    point = uniform(seed, output_index)
    # where rounding could put the border of the nucleus on either side, either distribution is right
    for nudge in (0, -1e-9, 1e-9):
        probabilities = reference_probabilities(rounded, msgspec.structs.replace(chosen, top_p=top_p * (1 + nudge)))
        before = sum(probabilities[:token])
        if probabilities[token] > 0 and before - 1e-9 <= point <= before + probabilities[token] + 1e-9:
            return
    pytest.fail(f"token {token} does not hold the point {point}")


@settings(deadline=None)
@given(logits=LOGITS, top_k=st.integers(0, 5), top_p=st.floats(0.01, 1), seed=st.integers(0, 2**63))
def test_temperature_zero_is_greedy_whatever_the_rest_says(
    logits: list[float], top_k: int, top_p: float, seed: int
) -> None:
    chosen = params(temperature=0.0, top_k=top_k, top_p=top_p, seed=seed)
    (token,) = sample(torch.tensor([logits]), [Draw(chosen, 3)])
    assert token == logits.index(max(logits))


@settings(deadline=None)
@given(seed=st.integers(0, 2**63), others=st.lists(st.integers(0, 2**63), max_size=6), place=st.integers(0, 6))
def test_neighbours_do_not_change_a_draw(seed: int, others: list[int], place: int) -> None:
    torch_rows = torch.randn(8, 257, generator=torch.Generator().manual_seed(0))
    mine = Draw(params(seed=seed, temperature=1.3, top_p=0.9), 5)
    alone = sample(torch_rows[:1].clone(), [mine])
    draws = [Draw(params(seed=other, temperature=0.7 * (other % 3), top_k=other % 50), 9) for other in others]
    place = min(place, len(draws))
    draws.insert(place, mine)
    rows = torch_rows[1 : len(draws) + 1].clone()
    rows[place] = torch_rows[0]
    assert sample(rows, draws)[place] == alone[0]


def test_the_same_seed_and_index_draw_the_same_and_others_do_not() -> None:
    flat = [0.0] * 4096
    first = [sample(torch.tensor([flat]), [Draw(params(seed=7), index)])[0] for index in range(8)]
    again = [sample(torch.tensor([flat]), [Draw(params(seed=7), index)])[0] for index in range(8)]
    other = [sample(torch.tensor([flat]), [Draw(params(seed=8), index)])[0] for index in range(8)]
    assert first == again
    assert len(set(first)) > 4
    assert first != other


@pytest.mark.parametrize("temperature", [0.0, 1.0, 1e-310])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_logits_that_are_not_finite_fail_their_row_only(bad: float, temperature: float) -> None:
    rows = torch.tensor([[0.0, 5.0, 1.0], [0.0, bad, 1.0], [9.0, 5.0, 1.0]])
    first, second, third = sample(rows, [Draw(params(temperature=temperature), 0)] * 3)
    assert isinstance(second, RowFailure)
    assert second.code is Code.LOGITS_NOT_FINITE
    assert isinstance(first, int)
    assert isinstance(third, int)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_banned_tokens_are_never_drawn_and_a_ban_on_all_fails_the_row(temperature: float) -> None:
    rows = torch.tensor([[9.0, 1.0, 0.0]]).repeat(200, 1)
    draws = [Draw(params(temperature=temperature), index, (0, 2, 77)) for index in range(200)]
    assert sample(rows, draws) == [1] * 200
    (all_banned,) = sample(torch.tensor([[9.0, 1.0]]), [Draw(params(temperature=temperature), 0, (0, 1))])
    assert isinstance(all_banned, RowFailure)
    assert "banned" in all_banned.message


def test_a_wide_nucleus_is_found_beyond_the_first_guess() -> None:
    """Flat logits: top_p 0.5 of 5,000 tokens keeps at least 2,500, here all since they tie; a slope keeps a part."""
    logits = torch.linspace(0, 1, 5000)
    chosen = params(top_p=0.5, seed=11)
    drawn = draw_many(logits.tolist(), chosen, 400)
    probabilities = reference_probabilities(logits.tolist(), chosen)
    kept = sum(p > 0 for p in probabilities)
    assert 64 < kept < 5000
    assert min(drawn) >= 5000 - kept - 1
    assert min(drawn) < 5000 - 0.9 * kept


def test_uniform_points_are_uniform() -> None:
    counts = Counter(int(uniform(1, index) * 10) for index in range(20_000))
    assert sum((counts[bin_] - 2000) ** 2 / 2000 for bin_ in range(10)) < 27.9  # 9 degrees of freedom, 1 in 1,000
