"""Packed matrices stand for what they were packed from, within what their precision allows."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dataplane.kernels import panels
from dataplane.kernels.rotary import interleave_pairs, reference_rotate

SHAPES = st.tuples(st.integers(1, 50), st.integers(1, 150))


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@settings(deadline=None, max_examples=40)
@given(shape=SHAPES, precision=st.sampled_from(list(panels.DTYPES)), seed=st.integers(0, 99))
def test_floats_come_back_as_they_were_rounded(shape: tuple[int, int], precision: str, seed: int) -> None:
    matrix = random(*shape, seed=seed)
    expected = matrix.to(panels.DTYPES[precision]).float()
    assert torch.equal(panels.unpack(panels.pack(matrix, precision), precision, *shape), expected)


@pytest.mark.parametrize(("lost_bits", "lies"), [(16, "bf16"), (13, "fp16"), (8, "fp24"), (7, "fp32"), (0, "fp32")])
def test_fp32_lies_in_the_narrowest_format_that_holds_it_as_it_is(lost_bits: int, lies: str) -> None:
    matrix = (random(1100, 24).clamp(-3, 3).view(torch.int32) >> lost_bits << lost_bits).view(torch.float32)
    matrix[matrix.abs() < 2**-10] = 0  # fp16 has fewer exponents
    matrix[-1, -1] = float(torch.tensor(0x3F80_0000 | 1 << lost_bits, dtype=torch.int32).view(torch.float32))
    packed = panels.pack(matrix, "fp32")
    assert panels.format_of(packed, "fp32") == lies
    assert torch.equal(panels.unpack(packed, "fp32", *matrix.shape), matrix)


@settings(deadline=None, max_examples=60)
@given(shape=SHAPES, precision=st.sampled_from(list(panels.GROUP_INPUTS)), seed=st.integers(0, 99))
def test_a_code_is_at_most_half_a_step_from_its_value(shape: tuple[int, int], precision: str, seed: int) -> None:
    matrix = random(*shape, seed=seed) * 10 ** (seed % 5 - 2)
    found = panels.unpack(panels.pack(matrix, precision), precision, *shape)
    group = panels.GROUP_INPUTS[precision]
    filled = torch.nn.functional.pad(matrix, (0, -shape[1] % group)).view(shape[0], -1, group)
    width = filled.abs().amax(-1) / 127 if precision == "int8" else (filled.amax(-1) - filled.amin(-1)) / 15
    # half a step, and what rounding scale and minimum to fp16 adds (the last where they are subnormal)
    allowed = width * 0.5 + filled.abs().amax(-1) * (2**-11 if precision == "int8" else 2**-9) + 128 * 2**-25
    errors = torch.nn.functional.pad((found - matrix).abs(), (0, -shape[1] % group)).view(filled.shape).amax(-1)
    assert bool((errors <= allowed).all())


def test_what_lies_on_an_int4_grid_already_is_kept() -> None:
    """A checkpoint that was 4 bit before loses nothing again."""
    codes = torch.randint(0, 16, (32, 64), generator=torch.Generator().manual_seed(1)).float()
    codes[:, ::32], codes[:, 1::32] = 0, 15
    scale = random(32, 1, seed=2).abs().half().float()
    minimum = random(32, 1, seed=3).half().float()
    matrix = minimum + codes * scale
    found = panels.unpack(panels.pack(matrix, "int4"), "int4", 32, 64)
    torch.testing.assert_close(found, matrix, atol=1e-3, rtol=2**-10)


@pytest.mark.parametrize("precision", ["fp16", "int8", "int4"])
def test_values_that_cannot_be_held_are_refused(precision: str) -> None:
    matrix = torch.full((3, 5), 1e9)
    matrix[0, 0] = -1e9
    with pytest.raises(ValueError, match="too large"):
        panels.pack(matrix, precision)


@pytest.mark.parametrize("rows", [8, 16, 20, 3])
def test_a_gate_and_what_it_opens_lie_in_one_panel(rows: int) -> None:
    gate, opened = random(rows, 4, seed=1), random(rows, 4, seed=2)
    both = panels.interleave_gate(gate, opened).view(-1, 2, 8, 4)
    assert torch.equal(both[:, 0].reshape(-1, 4)[:rows], gate)
    assert torch.equal(both[:, 1].reshape(-1, 4)[:rows], opened)


def test_interleaving_pairs_puts_the_two_of_a_pair_side_by_side() -> None:
    plain = torch.arange(16.0).view(16, 1)
    assert interleave_pairs(plain, 8)[:, 0].tolist() == [0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15]
    turned = reference_rotate(plain.view(1, 2, 8), torch.tensor([0]), 1e4)
    assert torch.equal(turned.flatten(), plain[:, 0])
