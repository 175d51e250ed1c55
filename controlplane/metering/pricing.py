"""What one request is charged. Pure, integers only: money is micro-USD."""

import msgspec

TOKENS_PER_PRICE = 1_000_000


class TokenPrice(msgspec.Struct, frozen=True):
    """Prices in micro-USD per million tokens."""

    input_microusd: int
    output_microusd: int


FREE = TokenPrice(input_microusd=0, output_microusd=0)


def charge_microusd(price: TokenPrice, *, prompt_tokens: int, completion_tokens: int) -> int:
    """Return the charge of one row, rounded half up once, at the end.

    Raises:
        ValueError: a negative count or price.
    """
    if min(prompt_tokens, completion_tokens, price.input_microusd, price.output_microusd) < 0:
        raise ValueError("token counts and prices cannot be negative")
    exact = prompt_tokens * price.input_microusd + completion_tokens * price.output_microusd
    return (2 * exact + TOKENS_PER_PRICE) // (2 * TOKENS_PER_PRICE)
