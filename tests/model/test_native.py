"""The kernels compute what plain torch does, whatever the program asks for; and the same bits whoever else is there."""

import ctypes
from dataclasses import replace

import numpy as np
import pytest
import torch
from driven_executor import Drive, random_tokens
from hypothesis import given, settings
from hypothesis import strategies as st

from dataplane.kernels import panels
from dataplane.kernels.cpu.binding import load_libraries
from dataplane.kernels.rotary import frequencies
from dataplane.model import step as steps
from dataplane.model.native import NativeExecutor, unsupported
from dataplane.model.packing import Packed, matrix_shapes
from dataplane.model.program import (
    Activation,
    Angles,
    Attention,
    Cache,
    Embed,
    Linear,
    Norm,
    Normalise,
    NormKind,
    Operation,
    Program,
    Select,
)
from dataplane.model.reference import ReferenceExecutor

VOCAB, HIDDEN = 70, 40
LIMITS = steps.StepLimits(tokens=512, sampled=512)
LIBRARIES = {library.pagoda_instructions().decode(): library for library in load_libraries()}
"""The kernels of every kind that this processor can run."""
every_library = pytest.mark.parametrize("library", LIBRARIES.values(), ids=LIBRARIES)


def packed_as(matrix: torch.Tensor, lies: str) -> tuple[torch.Tensor, str, int, int]:
    """A matrix in one of the formats of panels; fp24 is how fp32 lies whose last bytes are 0."""
    precision = "fp32" if lies == "fp24" else lies
    if lies == "fp24":
        matrix = (matrix.view(torch.int32) & ~0xFF).view(torch.float32)
    packed = panels.pack(matrix, precision)
    assert panels.format_of(packed, precision) == lies
    rows, columns = matrix.shape
    return packed, precision, rows, columns


def weights(program: Program, lies: str, seed: int) -> Packed:
    """Random weights for every name that ``program`` mentions."""
    generator = torch.Generator().manual_seed(seed)
    matrices = {
        name: packed_as(torch.randn(shape, generator=generator) / shape[1] ** 0.5, lies)
        for name, shape in matrix_shapes(program).items()
    }
    sizes = vectors(program)
    return Packed(matrices, {name: torch.randn(size, generator=generator) * 0.5 + 1 for name, size in sizes.items()})


def vectors(program: Program) -> dict[str, int]:
    """The vectors of a program with their sizes; biases fill whole panels."""
    found: dict[str, int] = {}
    for one in program.operations:
        match one:
            case Linear():
                if one.norm is not None:
                    found |= {name: program.widths[one.source] for name in (one.norm.weight, one.norm.bias) if name}
                if one.bias is not None:
                    outputs = matrix_shapes(program)[one.weight][0]
                    found[one.bias] = outputs + -outputs % panels.PANEL
            case Normalise():
                found |= {name: program.widths[one.source] for name in (one.norm.weight, one.norm.bias) if name}
            case Cache():
                found |= {norm.weight: program.head_dim for norm in (one.query_norm, one.key_norm) if norm is not None}
            case _:
                pass
    return found


def one_layer(heads: int, kv_heads: int, dim: int, attention: Attention, norm: Norm, *, heads_norm: bool) -> Program:
    """A program that uses every field of its operations at least in some draw."""
    query_norm = Norm("query_norm", 1e-5) if heads_norm else None
    key_norm = Norm("key_norm", 1e-5) if heads_norm else None
    operations: list[Operation] = [
        Embed("rows", "embedding", scale=1.5),
        Angles("angles", frequencies(dim, 1e4), scale=1.1),
        Linear("rows", "heads", "qkv", "qkv.bias", norm),
        Cache("heads", 0, "angles", query_norm, key_norm),
        attention,
        Linear("attended", "out", "attention_out"),
        Normalise("out", "rows", Norm("post", 1e-5), accumulate=True),
        Linear("rows", "inner", "gate_up", "gate_up.bias", norm, Activation.GELU_TANH, gated=True),
        Linear("inner", "rows", "down", accumulate=True),
        Linear("rows", "wide", "fc", "fc.bias", norm, Activation.SILU),
        Linear("wide", "rows", "projection", accumulate=True),
        Select("rows", "sampled"),
        Linear("sampled", "logits", "embedding", norm=norm, softcap=20.0),
    ]
    widths = {
        "rows": HIDDEN, "angles": dim, "heads": (heads + 2 * kv_heads) * dim, "attended": heads * dim, "out": HIDDEN,
        "inner": 24, "wide": 56, "sampled": HIDDEN, "logits": VOCAB,
    }  # fmt: skip
    return Program(tuple(operations), widths, heads, kv_heads, dim)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    kv_heads, group, dim = (
        draw(st.integers(1, 3)),
        draw(st.sampled_from([1, 3, 4, 8])),
        draw(st.sampled_from([8, 24, 64])),
    )
    attention = Attention(
        "heads", "attended", 0, scale=dim**-0.5, window=draw(st.sampled_from([0, 1, 5, 300])),
        softcap=draw(st.sampled_from([0.0, 5.0])),
    )  # fmt: skip
    kind = draw(st.sampled_from(NormKind))
    norm = Norm("norm", 1e-5, kind, "norm.bias" if kind is NormKind.LAYER else None)
    return one_layer(kv_heads * group, kv_heads, dim, attention, norm, heads_norm=draw(st.booleans()))


def native(program: Program, packed: Packed, threads: int = 1, library: ctypes.CDLL | None = None) -> NativeExecutor:
    return NativeExecutor(library or load_libraries()[0], program, packed, LIMITS, threads)


def tokens(count: int, seed: int) -> list[int]:
    return random_tokens(count, seed, VOCAB)


@settings(deadline=None, max_examples=40)
@given(
    library=st.sampled_from(list(LIBRARIES)),
    program=programs(),
    precision=st.sampled_from(panels.FORMATS),
    kv_dtype=st.sampled_from(["fp32", "fp16", "bf16", "int8"]),
    lengths=st.lists(st.sampled_from([1, 2, 7, 8, 9, 31, 64, 65, 255, 256, 257, 300]), min_size=1, max_size=3),
    seed=st.integers(0, 99),
)
def test_both_executors_agree(
    library: str, program: Program, precision: str, kv_dtype: str, lengths: list[int], seed: int
) -> None:
    """Two steps: whole prompts together (as far as a step holds), then one token for each."""
    packed = weights(program, precision, seed)
    lengths = lengths if sum(lengths) <= LIMITS.tokens else lengths[:1]
    first = {str(index): tokens(length, seed + index) for index, length in enumerate(lengths)}
    ours, theirs = (
        Drive(executor, program, kv_dtype)
        for executor in (
            native(program, packed, library=LIBRARIES[library]), ReferenceExecutor(program, packed)
        )
    )  # fmt: skip
    # narrow keys and values may round to neighbours in the two: a step of bf16 is 2^-8; beside int4, rows have 8 bits
    tolerance = {"fp32": 2e-3, "fp16": 2e-2, "bf16": 2e-1, "int8": 2e-1}[kv_dtype]
    tolerance = max(tolerance, 2e-1) if precision == "int4" else tolerance
    for chunks in (first, {name: tokens(1, seed) for name in first}):
        found, expected = ours.run(chunks), theirs.run(chunks)
        for name in chunks:
            torch.testing.assert_close(found[name], expected[name], atol=tolerance, rtol=tolerance)


ONE_LINEAR = Program(
    (Embed("rows", "table"), Select("rows", "sampled"), Linear("sampled", "logits", "head")),
    {"rows": 72, "sampled": 72, "logits": VOCAB}, 1, 1, 8,
)  # fmt: skip


def for_one_linear(table: torch.Tensor, lies: str, seed: int) -> Packed:
    """The weights of ``ONE_LINEAR``: rows as they are, and a random head."""
    head = torch.randn(VOCAB, 72, generator=torch.Generator().manual_seed(seed))
    return Packed({"table": (panels.pack(table, "fp32"), "fp32", VOCAB, 72), "head": packed_as(head, lies)}, {})


@every_library
@pytest.mark.parametrize("precision", panels.FORMATS)
@pytest.mark.parametrize("rows", [1, 2, 7, 30])
def test_rows_that_their_codes_hold_exactly_are_multiplied_exactly(
    library: ctypes.CDLL, precision: str, rows: int
) -> None:
    """Whole numbers up to 127 in every group: int8 codes are exact, int16 ones within 0.002, and the rest is sums."""
    table = torch.randint(-127, 128, (VOCAB, 72), generator=torch.Generator().manual_seed(rows)).float()
    table[:, ::32] = 127
    packed = for_one_linear(table, precision, rows)
    step = {"a": tokens(rows, 3)}
    ours = Drive(native(ONE_LINEAR, packed, library=library), ONE_LINEAR, "fp32").run(step)["a"]
    theirs = table[step["a"]] @ panels.unpack(*packed.matrices["head"]).T
    torch.testing.assert_close(ours, theirs, atol=5e-2, rtol=1e-5)  # of some hundreds


@pytest.mark.parametrize("precision", panels.FORMATS)
def test_linear_layers_have_the_same_bits_by_every_kind_of_instructions(precision: str) -> None:
    packed = for_one_linear(torch.randn(VOCAB, 72, generator=torch.Generator().manual_seed(1)), precision, 2)
    for rows in (1, 2, 8, 9, 13, 40):
        found = [
            Drive(native(ONE_LINEAR, packed, library=library), ONE_LINEAR, "fp32").run({"a": tokens(rows, 3)})["a"]
            for library in LIBRARIES.values()
        ]
        assert all(torch.equal(each, found[0]) for each in found)


@every_library
@pytest.mark.parametrize("precision", panels.FORMATS)
@pytest.mark.parametrize(("threads", "dim"), [(1, 64), (3, 24)])
def test_a_token_has_the_same_bits_alone_among_others_and_in_any_chunk(
    library: ctypes.CDLL, precision: str, threads: int, dim: int
) -> None:
    attention = Attention("heads", "attended", 0, scale=0.2, window=290)
    program = one_layer(6, 2, dim, attention, Norm("norm", 1e-5), heads_norm=True)
    packed = weights(program, precision, 5)
    whole = tokens(330, 7)
    alone = Drive(native(program, packed, library=library), program, "fp16").run({"a": whole})["a"]
    for chunk in (1, 7, 64):
        drive = Drive(native(program, packed, threads, library), program, "fp16")
        found = []
        for start in range(0, len(whole), chunk):
            neighbours = {str(index): tokens(1 + (start + index) % 3, index) for index in range(start // chunk % 9)}
            found.append(drive.run({"a": whole[start : start + chunk]} | neighbours)["a"])
            for name in neighbours:
                drive.forget(name)
        assert torch.equal(torch.cat(found), alone)


def test_the_bits_do_depend_on_the_order_of_a_sum() -> None:
    """What the test above would see if rows shared their sums: another order gives other bits."""
    rows = torch.randn(64, generator=torch.Generator().manual_seed(1))
    assert rows.sum() != sum(rows.flip(0).tolist())


def test_logits_can_be_asked_for_again_and_in_any_order() -> None:
    program = one_layer(2, 1, 8, Attention("heads", "attended", 0, scale=0.3), Norm("norm", 1e-5), heads_norm=False)
    executor = native(program, weights(program, "fp32", 1))
    drive = Drive(executor, program, "fp32")
    whole = drive.run({"a": tokens(20, 3)})["a"]
    some = executor.logits(np.array([19, 3], np.int32))
    assert torch.equal(some.values, whole[[19, 3]])
    assert some.greedy == whole[[19, 3]].argmax(-1).tolist()


def test_logits_are_those_of_the_step_though_the_last_ones_were_drawn_from() -> None:
    program = one_layer(2, 1, 8, Attention("heads", "attended", 0, scale=0.3), Norm("norm", 1e-5), heads_norm=False)
    executor = native(program, weights(program, "fp32", 1))
    drive = Drive(executor, program, "fp32")
    step = drive.step({"a": tokens(20, 3), "b": tokens(4, 5)})
    executor.run(step, drive.pool)
    first = executor.logits(step.sampled_at)
    values, greedy = first.values.clone(), first.greedy
    first.values.zero_()
    again = executor.logits(step.sampled_at)
    assert torch.equal(again.values, values)
    assert again.greedy == greedy == values.argmax(-1).tolist()


def test_logits_that_are_not_finite_have_no_likeliest_token() -> None:
    program = one_layer(2, 1, 8, Attention("heads", "attended", 0, scale=0.3), Norm("norm", 1e-5), heads_norm=False)
    packed = weights(program, "fp32", 1)
    for executor in (native(program, packed), ReferenceExecutor(program, packed)):
        drive = Drive(executor, program, "fp32")
        drive.run({"a": tokens(5, 3), "b": tokens(5, 4)})
        drive.pool.data[0, drive.tables["a"][0], 2] = torch.nan
        drive.run({"a": [1], "b": [2]})
        sick, well = executor.logits(np.array([0, 1], np.int32)).greedy
        assert sick == -1
        assert well >= 0


def test_a_step_longer_than_was_said_is_refused() -> None:
    program = one_layer(2, 1, 8, Attention("heads", "attended", 0, scale=0.3), Norm("norm", 1e-5), heads_norm=False)
    drive = Drive(native(program, weights(program, "fp32", 1)), program, "fp32")
    with pytest.raises(ValueError, match="513 tokens"):
        drive.run({"a": tokens(513, 1)})


@pytest.mark.parametrize(("widths", "dim"), [({"rows": 36}, 8), ({}, 12), ({}, 2048)])
def test_widths_that_the_kernels_cannot_take_are_named(widths: dict[str, int], dim: int) -> None:
    program = one_layer(2, 1, dim, Attention("heads", "attended", 0, scale=0.3), Norm("norm", 1e-5), heads_norm=False)
    assert not unsupported(
        one_layer(2, 1, 8, Attention("heads", "attended", 0, 0.3), Norm("norm", 1e-5), heads_norm=False)
    )
    assert unsupported(replace(program, widths={**program.widths, **widths}))
