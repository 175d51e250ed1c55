"""What a token is computed beside changes no bit of its attention; and draws are those of the sampler."""

import pytest
import torch
from kernel_cases import BF16, INT8, Sequences

from dataplane.contracts.sampling import SamplingParams
from dataplane.kernels.triton import sampling
from dataplane.kernels.triton.paged_attention import AttentionRows, attention_tiles, paged_attention
from dataplane.model import sampler
from dataplane.model.sampler import Draw


def attend(sequences: Sequences, chosen: list[tuple[int, int, int]]) -> list[torch.Tensor]:
    """Attend with ``chosen`` tokens (row, from, to, counted in the row) of ``sequences``; return each one's result."""
    (query, pool, rows), options = sequences.inputs(torch.Generator().manual_seed(1))
    starts = torch.tensor(sequences.counts).cumsum(0) - torch.tensor(sequences.counts)
    pieces = [range(int(starts[row]) + begin, int(starts[row]) + end) for row, begin, end in chosen]
    tokens = torch.tensor([token for piece in pieces for token in piece])
    counts = torch.tensor([len(piece) for piece in pieces])
    positions = torch.tensor([sequences.positions[row] + begin for row, begin, _ in chosen])
    part = AttentionRows(
        positions=rows.positions[tokens],
        tiles=attention_tiles(counts, positions, sequences.group),
        block_tables=rows.block_tables[[row for row, _, _ in chosen]],
        context_tokens=int((counts + positions).max()),
    )
    return list(paged_attention(query[tokens], pool, part, **options).split(counts.tolist()))


def test_neighbours_and_chunks_change_no_bit_of_a_row() -> None:
    sequences = Sequences((0, 252), (2, 6), group=3, pool=INT8, options={"window": 250})
    together = attend(sequences, [(0, 0, 2), (1, 0, 6)])
    chunks = attend(sequences, [(1, 0, 3), (1, 3, 4), (1, 4, 6)])
    assert torch.equal(together[1], torch.cat(chunks))


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_a_prompt_attends_alike_in_chunks_of_any_size(chunk: int) -> None:
    prompt = Sequences((0,), (300,), group=4, query=BF16, pool=BF16)
    (whole,) = attend(prompt, [(0, 0, 300)])
    chunks = [(0, begin, min(begin + chunk, 300)) for begin in range(0, 300, chunk)]
    assert torch.equal(whole, torch.cat(attend(prompt, chunks)))


def test_a_draw_is_the_samplers_own() -> None:
    shapes = [
        SamplingParams(max_tokens=1, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
        for seed, (temperature, top_k, top_p, min_p) in enumerate(
            [(1.0, 0, 1.0, 0.0), (0.7, 20, 1.0, 0.0), (1.5, 0, 0.8, 0.0), (1.0, 50, 0.6, 0.02), (2.0, 0, 1.0, 0.1)]
        )
    ]
    logits = torch.randn(len(shapes), 900, generator=torch.Generator().manual_seed(3)) * 2
    expected = sampler.sample(logits.clone(), [Draw(params, 4) for params in shapes])

    def column(values: list[float], dtype: torch.dtype = torch.float64) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype)

    drawn = sampling.draw(
        logits,
        sampling.likeliest(logits).logits,
        column([params.temperature for params in shapes]),
        column([params.min_p for params in shapes]),
        column([params.top_k for params in shapes], torch.int32),
        column([params.top_p for params in shapes]),
        column([sampler.uniform(params.seed, 4) for params in shapes]),
    )
    assert drawn.tolist() == expected
