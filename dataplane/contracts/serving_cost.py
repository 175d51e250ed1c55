"""What serving costs, from a measured rate and the price of an accelerator-hour. Pure; money is micro-USD."""

from dataclasses import dataclass

_HOUR_S = 3600
_MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class ServingCost:
    """The cost of tokens at one load.

    Attributes:
        request_tokens_per_s: output tokens a second of each request of the batch.
        requests_per_s: requests that end each second.
        input_microusd, output_microusd: of a million tokens.
        request_microusd: of one request.
    """

    request_tokens_per_s: float
    requests_per_s: float
    input_microusd: int
    output_microusd: int
    request_microusd: int


def serving_cost(
    *,
    hour_microusd: int,
    output_tokens_per_s: float,
    batch: int,
    request_output_tokens: int,
    request_input_tokens: int = 0,
    prefill_share: float = 0.0,
) -> ServingCost:
    """Return what tokens cost while a deployment runs at a measured rate.

    Args:
        hour_microusd: of all its devices together.
        output_tokens_per_s: measured, over the whole batch.
        batch: requests that run at once.
        request_output_tokens: of a request.
        request_input_tokens: of a request, less those found in the cache.
        prefill_share: the part of the devices' time that goes into prompts; the rest is the output's.

    Raises:
        ValueError: a rate, a batch or an output that is not above zero, a share that is not from 0 to 1, or one
            without prompts.
    """
    if min(output_tokens_per_s, batch, request_output_tokens) <= 0 or not 0 <= prefill_share <= 1:
        raise ValueError("a rate, a batch and an output are above 0, and a share is from 0 to 1")
    if prefill_share and request_input_tokens <= 0:
        raise ValueError("time that goes into prompts needs prompts")
    requests_per_s = output_tokens_per_s / request_output_tokens
    second_microusd = hour_microusd / _HOUR_S
    input_tokens_per_s = requests_per_s * request_input_tokens
    return ServingCost(
        request_tokens_per_s=output_tokens_per_s / batch,
        requests_per_s=requests_per_s,
        input_microusd=_per_million(second_microusd * prefill_share, input_tokens_per_s),
        output_microusd=_per_million(second_microusd * (1 - prefill_share), output_tokens_per_s),
        request_microusd=round(second_microusd / requests_per_s),
    )


def _per_million(microusd_per_s: float, tokens_per_s: float) -> int:
    return round(microusd_per_s / tokens_per_s * _MILLION) if tokens_per_s else 0
