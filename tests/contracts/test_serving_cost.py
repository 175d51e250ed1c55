"""What tokens cost at a measured rate."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane.contracts.serving_cost import serving_cost


def test_worked_example_1120_tokens_a_second_at_8_20_dollars_an_hour():
    cost = serving_cost(hour_microusd=8_200_000, output_tokens_per_s=1120, batch=32, request_output_tokens=300)
    assert cost.request_tokens_per_s == 35
    assert round(cost.output_microusd / 1e6, 2) == 2.03
    assert round(cost.requests_per_s, 1) == 3.7
    assert round(cost.request_microusd / 1e6, 4) == 0.0006
    assert cost.input_microusd == 0


@given(
    share=st.floats(0, 1),
    input_tokens=st.integers(1, 10_000),
    output_tokens=st.integers(1, 1000),
    rate=st.floats(1, 1e5),
)
def test_input_and_output_are_costed_apart_and_add_up_to_the_request(share, input_tokens, output_tokens, rate):
    cost = serving_cost(
        hour_microusd=8_200_000, output_tokens_per_s=rate, batch=32, request_output_tokens=output_tokens,
        request_input_tokens=input_tokens, prefill_share=share,
    )  # fmt: skip
    parts = (cost.input_microusd * input_tokens + cost.output_microusd * output_tokens) / 1e6
    assert parts == pytest.approx(cost.request_microusd, abs=1)


def test_a_rate_of_nothing_and_prompt_time_without_prompts_are_refused():
    with pytest.raises(ValueError, match="above 0"):
        serving_cost(hour_microusd=1, output_tokens_per_s=0, batch=1, request_output_tokens=1)
    with pytest.raises(ValueError, match="needs prompts"):
        serving_cost(hour_microusd=1, output_tokens_per_s=1, batch=1, request_output_tokens=1, prefill_share=0.5)
