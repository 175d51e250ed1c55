"""What is drawn from logits on a device is what the sampler draws from them."""

import pytest
import torch
from driven_executor import random_tokens, uneven_model

from dataplane.contracts.sampling import SamplingParams
from dataplane.engine.runner import Row, RowFailure
from dataplane.model import sampler
from dataplane.model.device_logits import DeviceLogits, greedy
from dataplane.model.device_weights import on_device
from dataplane.model.kv_pool import KvPool
from dataplane.model.model_runner import ModelRunner
from dataplane.model.reference import ReferenceExecutor
from dataplane.model.sampler import Draw
from dataplane.model.triton_executor import TritonExecutor

VOCAB = 700


def params(seed: int, **fields: object) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 9, "temperature": 0.8, "seed": seed, **fields})


DRAWS = [
    Draw(params(1, top_k=20), 3),
    Draw(params(2), 0, ban_token_ids=(5, 6)),
    Draw(params(3, top_p=0.7, min_p=0.01), 1),
    Draw(params(4, logprobs=2), 7),
    Draw(params(5, temperature=0.0, logit_bias={9: 50.0}), 0),
    Draw(params(6, temperature=1.5), 2, allowed=b"\xf0" * (VOCAB // 8) + b"\xf0"),
    Draw(params(7, choice=1), 4),
    Draw(params(8), 0, allowed=RowFailure("the grammar has had enough")),
    Draw(params(9), 5),
    Draw(params(10), 5, ban_token_ids=(1,)),
]


def test_every_draw_is_the_samplers_own_wherever_it_is_made() -> None:
    logits = torch.randn(len(DRAWS), VOCAB, generator=torch.Generator().manual_seed(1)) * 2
    logits[8:, 3] = torch.nan  # one that a kernel draws, and one that the host does
    expected = sampler.sample(logits.clone(), DRAWS)
    found = DeviceLogits(logits.clone(), []).draw(range(len(DRAWS)), DRAWS)
    assert found == expected
    assert [isinstance(one, RowFailure) for one in found] == [place in (7, 8, 9) for place in range(len(DRAWS))]


def test_a_few_rows_of_many_can_be_drawn() -> None:
    logits = torch.randn(6, VOCAB, generator=torch.Generator().manual_seed(2))
    draws = [DRAWS[0], DRAWS[1]]
    assert DeviceLogits(logits.clone(), []).draw([4, 1], draws) == sampler.sample(logits[[4, 1]], draws)


def test_logits_that_are_not_finite_have_no_likeliest_token() -> None:
    logits = torch.zeros(3, VOCAB)
    logits[0, 5], logits[1, 2], logits[2, 7] = 1.0, torch.inf, torch.nan
    assert greedy(logits).tolist() == [5, -1, -1]


@pytest.mark.parametrize("ask", [{"temperature": 0.0}, {"temperature": 0.9, "seed": 3}, {"prompt": True}])
def test_a_runner_answers_as_with_plain_torch(ask: dict[str, object], tmp_path_factory: pytest.TempPathFactory) -> None:
    model = uneven_model("llama", tmp_path_factory.mktemp("llama"), num_layers=1)
    prompt = random_tokens(5, 1)
    scored = tuple(prompt[1:]) if ask.pop("prompt", False) else ()
    sampling = SamplingParams(**{"max_tokens": 9, "temperature": 0.0, "logprobs": 1 if scored else None, **ask})
    rows = [
        Row("a", prompt, 0, [3], True, sampling, 0, (), score_token_ids=scored),
        Row("b", [7], 0, [9], False, sampling, 0, ()),
    ]
    weights = on_device(model.program, model.weights, "cpu")
    executors = (
        TritonExecutor(model.program, weights, "cpu"), ReferenceExecutor(model.program, model.weights)
    )  # fmt: skip
    found, expected = (
        ModelRunner(model.config, executor, KvPool(model.program, 16, 8, "fp32"), 64).execute(rows)
        for executor in executors
    )
    assert found[1] is expected[1] is None
    if not scored:
        assert found == expected
        return
    assert found[0].token_id == expected[0].token_id
    assert [one.token_id for one in found[0].scores] == [*scored, found[0].token_id]
    for ours, theirs in zip(found[0].scores, expected[0].scores, strict=True):
        assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-3)
