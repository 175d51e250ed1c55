"""Sampling parameters as the engine sees them: checked, complete, defaults resolved."""

import msgspec

MAX_CHOICES = 16
"""Completions of one request, ``n``."""
MAX_ALTERNATIVES = 20
"""Likeliest tokens that are told beside the chosen one."""
MAX_BIASED_TOKENS = 300


class SamplingParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How one sequence's tokens are chosen.

    ``temperature`` 0 is greedy whatever the others say. ``top_k`` 0, ``top_p`` 1 and ``min_p`` 0 switch those filters
    off, penalties of 0 (``repetition_penalty`` of 1) and an empty ``logit_bias`` change nothing. The token at position
    p of the output is drawn with a generator seeded from (``seed``, p, ``choice``) alone: neither neighbours nor a
    preemption can change it. ``max_tokens`` counts output tokens.

    ``choice`` is the sequence's place among the completions of its request. ``logprobs`` is how many of the likeliest
    tokens are told with each output token and its own log probability, None for neither; ``score_prompt`` tells the
    same of the prompt's tokens. ``grammar`` is one of :mod:`dataplane.text.grammar` that the output follows; empty is
    none.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    seed: int = 0
    choice: int = 0
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    score_prompt: bool = False
    grammar: str = ""

    @property
    def penalises(self) -> bool:
        """Whether tokens that the sequence has already weigh on the next one."""
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1)
