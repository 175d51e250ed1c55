"""Draws follow the exact distribution, depend on nothing but their own row, and fail alone."""

import itertools
import math
from collections import Counter
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dataplane.contracts.errors import Code
from dataplane.contracts.sampling import SamplingParams
from dataplane.engine.runner import RowFailure, Scored
from dataplane.engine.token_counts import TokenCounts
from dataplane.model.sampler import Draw, needs_logits, sample, score, uniform

PARAMS = SamplingParams(max_tokens=1, temperature=1.0)
LOGITS = st.lists(st.floats(-8, 8, width=32), min_size=1, max_size=300)


def params(**changes: Any) -> SamplingParams:
    return msgspec.structs.replace(PARAMS, **changes)


def reference_probabilities(logits: list[float], chosen: SamplingParams) -> list[float]:
    """Temperature, min_p, top_k, top_p by the definition; ties with the last one kept are kept."""
    weights = [math.exp((logit - max(logits)) / chosen.temperature) for logit in logits]
    weights = [weight if weight >= chosen.min_p else 0.0 for weight in weights]
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
        params(seed=5, temperature=1.5, top_k=6, top_p=0.7, min_p=0.05, choice=3),
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
    min_p=st.just(0.0) | st.floats(0, 1),
    seed=st.integers(0, 2**63),
    output_index=st.integers(0, 10_000),
)
def test_a_draw_is_the_inverse_of_the_reference_distribution(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float, seed: int, output_index: int
) -> None:
    chosen = params(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
    rounded = torch.tensor(logits).tolist()
    (token,) = sample(torch.tensor([logits]), [Draw(chosen, output_index)])
    assert isinstance(token, int)
    point = uniform(seed, output_index)
    # where rounding could put the border of the nucleus on either side, either distribution is right
    for nudge, other in itertools.product((0, -1e-9, 1e-9), repeat=2):
        nudged = msgspec.structs.replace(chosen, top_p=top_p * (1 + nudge), min_p=min(1.0, min_p * (1 + other)))
        probabilities = reference_probabilities(rounded, nudged)
        before = sum(probabilities[:token])
        if probabilities[token] > 0 and before - 1e-9 <= point <= before + probabilities[token] + 1e-9:
            return
    pytest.fail(f"token {token} does not hold the point {point}")


@pytest.mark.parametrize(("top_p", "kept"), [(1.0, {0, 1, 2}), (0.75, {0, 1})])
def test_min_p_keeps_a_part_of_the_likeliest_and_top_p_counts_what_is_left(top_p: float, kept: set[int]) -> None:
    logits = [math.log(weight) for weight in (1.0, 0.6, 0.51, 0.4)]
    assert set(draw_many(logits, params(min_p=0.5, top_p=top_p), 100)) == kept


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


def test_choices_of_one_seed_draw_apart_and_each_always_the_same() -> None:
    flat = torch.zeros(1, 4096)
    drawn = [[sample(flat.clone(), [Draw(params(seed=7, choice=c), i)])[0] for i in range(8)] for c in (0, 1, 2, 1)]
    assert drawn[1] == drawn[3]
    assert drawn[0] != drawn[1] != drawn[2] != drawn[0]
    assert drawn[0] == [sample(flat.clone(), [Draw(params(seed=7), index)])[0] for index in range(8)]


def counted(prompt: list[int], output: list[int]) -> TokenCounts:
    counts = TokenCounts(prompt)
    for token_id in output:
        counts.add(token_id)
    return counts


def reference_logits(logits: list[float], chosen: SamplingParams, prompt: list[int], output: list[int]) -> list[float]:
    """Penalties and bias by OpenAI's and the repetition penalty's definition, one token at a time."""
    shaped = []
    for token_id, logit in enumerate(logits):
        seen = token_id in prompt or token_id in output
        repetition = chosen.repetition_penalty if seen else 1.0
        repelled = logit / repetition if logit > 0 else logit * repetition
        count = output.count(token_id)
        penalty = chosen.frequency_penalty * count + chosen.presence_penalty * (count > 0)
        shaped.append(repelled - penalty + chosen.logit_bias.get(token_id, 0.0))
    return shaped


@settings(deadline=None)
@given(
    data=st.data(),
    logits=LOGITS,
    presence=st.floats(-2, 2, width=32),
    frequency=st.floats(-2, 2, width=32),
    repetition=st.sampled_from([1.0, 0.5, 1.25, 4.0]),
)
def test_penalties_and_bias_change_the_logits_as_defined(
    data: st.DataObject, logits: list[float], presence: float, frequency: float, repetition: float
) -> None:
    ids = st.integers(0, len(logits) - 1)
    prompt, output = data.draw(st.lists(ids, max_size=6)), data.draw(st.lists(ids, max_size=12))
    chosen = params(
        temperature=0.0, presence_penalty=presence, frequency_penalty=frequency, repetition_penalty=repetition,
        logit_bias=data.draw(st.dictionaries(ids, st.floats(-100, 100, width=32), max_size=4)),
    )  # fmt: skip
    expected = reference_logits(torch.tensor(logits).tolist(), chosen, prompt, output)
    draw = Draw(chosen, len(output), counts=counted(prompt if repetition != 1 else [], output))
    (token,) = sample(torch.tensor([logits]), [draw])
    assert isinstance(token, int)
    assert expected[token] == pytest.approx(max(expected), abs=1e-4)


def test_a_token_that_only_the_prompt_has_is_repelled_by_the_repetition_penalty_alone() -> None:
    chosen = params(temperature=0.0, repetition_penalty=1.25, presence_penalty=1.0, frequency_penalty=1.0)
    for prompt, output, expected in (([0], [], 0), ([], [0], 1), ([0, 0], [2], 0)):
        rows = torch.tensor([[2.0, 1.5, 0.0]])
        assert sample(rows, [Draw(chosen, 0, counts=counted(prompt, output))]) == [expected]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_bias_of_a_hundred_forces_or_forbids_a_token(temperature: float) -> None:
    rows = torch.tensor([[9.0, 1.0, 0.0, 8.5]]).repeat(100, 1)
    forced = params(temperature=temperature, logit_bias={2: 100.0})
    assert sample(rows.clone(), [Draw(forced, index) for index in range(100)]) == [2] * 100
    forbidden = params(temperature=temperature, logit_bias={0: -100.0, 3: -100.0})
    drawn = sample(rows.clone(), [Draw(forbidden, index) for index in range(100)])
    assert not {0, 3} & set(drawn)


@settings(deadline=None)
@given(logits=LOGITS, alternatives=st.integers(0, 20), temperature=st.sampled_from([0.0, 2.0]))
def test_scores_are_the_models_own_whatever_shapes_the_draw(
    logits: list[float], alternatives: int, temperature: float
) -> None:
    chosen = params(temperature=temperature, logprobs=alternatives, logit_bias={0: -50.0}, presence_penalty=2.0)
    (result,) = sample(torch.tensor([logits]), [Draw(chosen, 1, counts=counted([], [0]))])
    assert isinstance(result, Scored)
    (found,) = result.scores
    logprobs = torch.tensor(logits, dtype=torch.float64).log_softmax(0).tolist()
    assert found.token_id == result.token_id
    assert found.logprob == pytest.approx(logprobs[found.token_id], abs=1e-4)
    expected = sorted(logprobs, reverse=True)[:alternatives]
    assert [logprob for _, logprob in found.top] == pytest.approx(expected, abs=1e-4)
    assert all(logprob == pytest.approx(logprobs[token_id], abs=1e-4) for token_id, logprob in found.top)
    assert len({token_id for token_id, _ in found.top}) == len(expected)


def test_each_row_has_as_many_alternatives_as_it_asked_for() -> None:
    rows = torch.randn(4, 50, generator=torch.Generator().manual_seed(0))
    wishes = [None, 0, 5, 2]
    results = sample(rows, [Draw(params(temperature=0.0, logprobs=wish), 0) for wish in wishes])
    assert isinstance(results[0], int)
    assert [len(result.scores[0].top) for result in results[1:] if isinstance(result, Scored)] == [0, 5, 2]


def test_a_row_that_fails_has_no_scores_and_its_neighbours_keep_theirs() -> None:
    rows = torch.tensor([[0.0, math.nan], [0.0, 1.0]])
    failed, fine = sample(rows, [Draw(params(logprobs=1), 0)] * 2)
    assert isinstance(failed, RowFailure)
    assert isinstance(fine, Scored)
    assert not math.isnan(fine.scores[0].logprob)
    assert isinstance(score(rows[:1], [1], 0), RowFailure)


def test_given_tokens_are_scored_under_their_rows() -> None:
    rows = torch.randn(5, 30, generator=torch.Generator().manual_seed(1))
    scores = score(rows, [3, 1, 4, 1, 5], 2)
    assert isinstance(scores, list)
    logprobs = rows.log_softmax(-1)
    assert [found.logprob for found in scores] == pytest.approx(
        [logprobs[i, t].item() for i, t in enumerate([3, 1, 4, 1, 5])], abs=1e-5
    )
    assert [found.top[0][0] for found in scores] == rows.argmax(-1).tolist()


@pytest.mark.parametrize(
    ("draw", "needed"),
    [
        (Draw(params(temperature=0.0), 0), False),
        (Draw(params(temperature=0.0, top_p=0.5, top_k=3, min_p=0.5), 0), False),
        (Draw(params(), 0), True),
        (Draw(params(temperature=0.0, logprobs=0), 0), True),
        (Draw(params(temperature=0.0, logit_bias={1: 1.0}), 0), True),
        (Draw(params(temperature=0.0), 0, (2,)), True),
        (Draw(params(temperature=0.0, presence_penalty=1.0), 0, counts=TokenCounts()), True),
    ],
)
def test_logits_are_needed_by_whatever_is_not_the_likeliest_token_alone(draw: Draw, needed: bool) -> None:
    assert needs_logits(draw) is needed


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


def bits(*token_ids: int) -> bytes:
    return sum(1 << token_id for token_id in token_ids).to_bytes(8, "little")


@given(
    st.lists(st.floats(-8, 8, width=32), min_size=40, max_size=60), st.sets(st.integers(0, 39), min_size=1), st.data()
)
def test_only_what_is_allowed_is_drawn_and_neighbours_draw_as_ever(
    logits: list[float], allowed: set[int], data: st.DataObject
) -> None:
    chosen = params(temperature=data.draw(st.sampled_from([0, 1.0])), seed=data.draw(st.integers(0, 99)))
    draws = [Draw(chosen, 0), Draw(chosen, 0, allowed=bits(*allowed)), Draw(chosen, 0)]
    assert needs_logits(draws[1])
    first, bound, last = sample(torch.tensor([logits] * 3), draws)
    assert bound in allowed
    assert first == last == sample(torch.tensor([logits]), [Draw(chosen, 0)])[0]


def test_a_grammar_that_leaves_nothing_fails_its_row_alone() -> None:
    over = RowFailure("the grammar: it is too complex", Code.GRAMMAR_FAILED)
    results = sample(
        torch.zeros(3, 8),
        [Draw(PARAMS, 5, (2,), allowed=bits(2)), Draw(PARAMS, 0, allowed=over), Draw(PARAMS, 0)],
    )
    assert isinstance(results[0], RowFailure)
    assert results[0].code is Code.GRAMMAR_FAILED
    assert "after 5 tokens" in results[0].message
    assert results[1] is over
    assert isinstance(results[2], int)
