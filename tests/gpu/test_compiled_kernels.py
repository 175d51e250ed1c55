"""Every kernel agrees with its plain-torch reference, compiled, on the GPU."""

import kernel_cases
import pytest
import torch
from kernel_cases import Case

from dataplane.kernels.triton.paged_attention import AttentionRows, attention_tiles, paged_attention


@pytest.mark.parametrize("case", kernel_cases.all_cases(), ids=str)
def test_a_compiled_kernel_agrees_with_its_reference(case: Case) -> None:
    case.check("cuda")


def test_neighbours_change_no_bit_of_a_row() -> None:
    sequences = kernel_cases.Sequences((900, 30, 5000), (1, 20, 1), head_dim=128, query=torch.bfloat16)
    (query, pool, rows), options = kernel_cases.moved(sequences.inputs(torch.Generator().manual_seed(1)), "cuda")
    together = paged_attention(query, pool, rows, **options)
    positions = torch.tensor([5000])
    alone = AttentionRows(
        positions=positions.int().cuda(),
        tiles=attention_tiles(torch.ones_like(positions), positions, sequences.group).cuda(),
        block_tables=rows.block_tables[2:],
        context_tokens=5001,
    )
    assert torch.equal(together[21:22], paged_attention(query[21:22].clone(), pool, alone, **options))


def test_a_pool_of_more_than_two_to_the_31_elements_is_read_where_it_should() -> None:
    blocks = 2**31 // (8 * 2 * 8 * 128) + 2
    pool = torch.zeros(blocks, 8, 2, 8, 128, dtype=torch.float16, device="cuda")
    pool[-1, 0, 1] = 3.0
    position = torch.zeros(1, dtype=torch.int64)
    rows = AttentionRows(
        positions=position.int().cuda(),
        tiles=attention_tiles(torch.ones_like(position), position, 4).cuda(),
        block_tables=torch.tensor([[blocks - 1]], dtype=torch.int32, device="cuda"),
        context_tokens=1,
    )
    query = torch.ones(1, 32, 128, dtype=torch.float16, device="cuda")
    assert (paged_attention(query, pool, rows, scale=0.1) == 3.0).all()
