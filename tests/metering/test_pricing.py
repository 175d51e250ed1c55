from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.metering.pricing import FREE, TokenPrice, charge_microusd

counts = st.integers(0, 10**9)


@given(counts, counts, counts, counts)
def test_a_charge_is_the_exact_price_rounded_once(
    input_price: int, output_price: int, prompt: int, output: int
) -> None:
    price = TokenPrice(input_microusd=input_price, output_microusd=output_price)
    exact = Fraction(prompt * input_price + output * output_price, 1_000_000)
    charged = charge_microusd(price, prompt_tokens=prompt, completion_tokens=output)
    assert Fraction(-1, 2) < charged - exact <= Fraction(1, 2)


def test_half_a_microusd_rounds_up_and_the_default_is_free() -> None:
    assert charge_microusd(TokenPrice(500_000, 0), prompt_tokens=1, completion_tokens=0) == 1
    assert charge_microusd(TokenPrice(499_999, 0), prompt_tokens=1, completion_tokens=0) == 0
    assert charge_microusd(FREE, prompt_tokens=10**9, completion_tokens=10**9) == 0


def test_negative_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        charge_microusd(FREE, prompt_tokens=-1, completion_tokens=0)
