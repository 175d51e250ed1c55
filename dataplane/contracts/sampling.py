"""Sampling parameters as the engine sees them: checked, complete, defaults resolved."""

import msgspec


class SamplingParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How one sequence's tokens are chosen.

    ``temperature`` 0 is greedy whatever the others say. ``top_k`` 0 and ``top_p`` 1 switch those filters off. The token
    at position p of the output is drawn with a generator seeded from (``seed``, p) alone: neither neighbours nor a
    preemption can change it. ``max_tokens`` counts output tokens.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
