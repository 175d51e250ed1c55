"""Requests of all kinds, drawn at random: what the soaks of the engine and of a worker have in common."""

import random

from dataplane.contracts.generation import Submit
from dataplane.contracts.sampling import SamplingParams

VOCABULARY = 100
"""Token ids of prompts and stops are below it. 0 is an end, where the model has it."""
TENANTS = ("alpha", "beta", "gamma")
_REQUESTS_OF_A_STRANGER = 50


def drawn(draw: random.Random, number: int) -> Submit:
    """Draw the request ``number``: who asks, a prompt that may share its beginning, how long, and when it may end."""
    tenant_id = draw.choice([*TENANTS, f"stranger-{number // _REQUESTS_OF_A_STRANGER}"])
    common = [draw.randrange(5)] * draw.choice([0, 0, 40, 200])
    prompt = common + [draw.randrange(VOCABULARY) for _ in range(draw.randint(1, draw.choice([8, 60, 300])))]
    max_tokens = draw.randint(1, draw.choice([4, 40, 120]))
    sampling = SamplingParams(
        max_tokens=max_tokens,
        min_tokens=draw.randint(0, max_tokens) if draw.random() < 0.3 else 0,
        ignore_eos=draw.random() < 0.5,
        stop_token_ids=tuple(draw.sample(range(VOCABULARY), draw.choice([0, 0, 3]))),
        repetition_penalty=draw.choice([1.0, 1.0, 1.2]),
    )
    return Submit(f"r{number}", tenant_id, prompt, sampling, n=draw.choice([1, 1, 1, 3]))
