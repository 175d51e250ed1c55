"""Safe batches and side by side, the worked example included."""

import pytest
from domain import CONFIG
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dataplane.contracts import memory
from dataplane.contracts.catalog import EngineSettings
from dataplane.contracts.replica import Device
from dataplane.contracts.room import Outcome, co_residency, kv_room_mb, narrower, safe_batch

MIB, GIB = 1024**2, 1024**3
SEVENTY_B = replace(
    CONFIG, vocab_size=128_256, hidden_size=8192, intermediate_size=28_672, num_layers=80, num_heads=64,
    num_kv_heads=8, head_dim=128, context_tokens=8192, tied_embeddings=False,
)  # fmt: skip
FP16 = EngineSettings(dtype="fp16")
TWO_OF_80 = Device("cuda", "2 x 80 GB", 2 * 80 * GIB)


def test_worked_example_seventy_billion_parameters_take_140_gb_and_640_mib_a_request():
    assert memory.weight_bytes(SEVENTY_B, "fp16") == pytest.approx(140e9, rel=0.01)
    assert memory.kv_bytes_per_token(SEVENTY_B, "fp16") == 320 * 1024
    assert 2048 * memory.kv_bytes_per_token(SEVENTY_B, "fp16") == 640 * MIB


def test_worked_example_nominal_memory_suggests_32_requests_and_the_planner_refuses_them():
    # The example counts in one unit throughout: its 20 GB hold 32 times 640 MiB, so its 140 GB are GiB of headers.
    batch = safe_batch(SEVENTY_B, FP16, TWO_OF_80, context_tokens=2048, weights_bytes=140 * GIB)
    assert batch.request_bytes == 640 * MIB
    assert batch.nominal_requests == 32
    assert batch.left_bytes == (-4 * GIB, 4 * GIB)
    assert batch.requests == (0, 6)
    assert batch.outcome is Outcome.REFUSED
    assert batch.words == (
        "Nominally 20.0 GiB of 160.0 GiB are left beside weights of 140.0 GiB, which suggests 32 requests of 2,048 "
        "tokens (640 MiB each). But 85% to 90% can be used, which leaves -4.0 GiB to 4.0 GiB; the rest is for "
        "fragments and, by estimate, workspace of a step 90 MiB, libraries of the device 1,024 MiB. Refused: at the "
        "lower end not one request fits. In int8 the weights would take 70.0 GiB, free 70.0 GiB and leave 66.0 GiB to "
        "74.0 GiB for keys and values."
    )


def test_worked_example_counted_in_powers_of_ten_is_refused_as_well():
    device = Device("cuda", "2 x 80 GB", 160 * 10**9)
    batch = safe_batch(SEVENTY_B, FP16, device, context_tokens=2048, weights_bytes=140 * 10**9)
    assert (batch.nominal_requests, batch.outcome) == (29, Outcome.REFUSED)
    assert [round(left / 1e9) for left in batch.left_bytes] == [-4, 4]


def test_worked_example_in_int8_fits_and_is_an_estimate_until_it_was_measured():
    int8, int4 = narrower(140 * GIB, "fp16")
    assert (int8.name, int8.weights_bytes, int8.freed_bytes) == ("int8", 70 * GIB, 70 * GIB)
    assert (int4.name, int4.weights_bytes, int4.freed_bytes) == ("int4", 35 * GIB, 105 * GIB)
    batch = safe_batch(SEVENTY_B, FP16, TWO_OF_80, context_tokens=2048, weights_bytes=int8.weights_bytes)
    assert sum(batch.left_bytes) / 2 == 70 * GIB
    assert batch.requests[0] > 32
    assert batch.outcome is Outcome.ESTIMATED
    assert "an estimate until it was measured in a run" in batch.words


def test_a_batch_on_what_was_measured_is_safe_and_its_overheads_are_listed():
    batch = safe_batch(CONFIG, EngineSettings(), Device("cpu", "node", 4 * GIB), context_tokens=256)
    assert batch.outcome is Outcome.SAFE
    assert "requests are safe" in batch.words
    assert "processes 197 MiB" in batch.words
    assert "int8" not in batch.words


@given(
    memory_bytes=st.integers(0, 8 * GIB),
    dtype=st.sampled_from(["fp32", "bf16"]),
    kind=st.sampled_from(["cpu", "cuda"]),
)
def test_the_room_for_a_pool_is_the_largest_that_fits(memory_bytes, dtype, kind):
    device = Device(kind, "node", memory_bytes)

    def fits(mb):
        engine = EngineSettings(dtype=dtype, kv_memory_mb=mb)
        return memory.plan(CONFIG, engine, kind).needed_bytes <= memory.usable_bytes(device)

    room_mb = kv_room_mb(CONFIG, EngineSettings(dtype=dtype), device)
    assert room_mb == 0 or fits(room_mb)
    assert not fits(room_mb + 1)


@given(memory_bytes=st.integers(0, 4 * GIB), old_mb=st.integers(1, 2048), new_mb=st.integers(1, 2048))
def test_two_replicas_are_co_resident_exactly_when_both_fit_what_is_usable(memory_bytes, old_mb, new_mb):
    old, new = (memory.plan(CONFIG, EngineSettings(kv_memory_mb=mb)) for mb in (old_mb, new_mb))
    device = Device("cpu", "node", memory_bytes)
    found = co_residency(old, new, device)
    assert found.fits == (old.needed_bytes + new.needed_bytes <= int(memory_bytes * 0.85))
    assert found.fits == (found.left_bytes >= 0) == ("leave" in found.words)
