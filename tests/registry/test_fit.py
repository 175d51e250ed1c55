"""The memory plan of a version: which precision fits which device, with the numbers."""

from domain import CONFIG
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from controlplane.registry.fit import LEAST_KV_TOKENS, fits, least_kv_tokens, needed_bytes, shortage, summary
from dataplane.contracts.replica import Device

GIB = 1024**3
SEVEN_B = replace(
    CONFIG, vocab_size=32_000, hidden_size=4096, intermediate_size=11_008, num_layers=32, num_heads=32,
    num_kv_heads=32, head_dim=128, context_tokens=4096,
)  # fmt: skip


def device(gib: float, name: str = "node", kind: str = "cpu") -> Device:
    return Device(kind=kind, name=name, memory_bytes=int(gib * GIB))


def test_seven_billion_parameters_fit_23_gib_in_half_precision_only():
    assert [fit.dtype for fit in fits(SEVEN_B, [device(23)])] == ["bf16", "fp16"]
    assert fits(SEVEN_B, [device(8)]) == []


def test_weights_are_never_quantised_unasked_and_those_that_are_already_stay_so():
    assert {fit.dtype for fit in fits(SEVEN_B, [device(1000)])} == {"fp32", "bf16", "fp16"}
    quantised = replace(SEVEN_B, quantisation="int8")
    assert [fit.dtype for fit in fits(quantised, [device(12)])] == ["int8"]
    assert shortage(quantised, []).startswith("Even in int8 a replica takes 7")
    assert {fit.dtype for fit in fits(replace(SEVEN_B, quantisation="kv-int8"), [device(23)])} == {"bf16", "fp16"}


def test_a_model_that_does_not_fit_is_told_what_it_takes_and_what_there_is():
    assert shortage(SEVEN_B, [device(4, "small"), device(8, "large")]) == (
        "Even in bf16 a replica takes 13.9 GiB, and the largest device, large (cpu, 8.0 GiB), can give 6.8 GiB."
    )
    assert "no device is there" in shortage(SEVEN_B, [])


def test_the_widest_precision_on_the_roomiest_device_comes_first():
    found = fits(CONFIG, [device(2, "small"), device(64, "large", "cuda")])
    assert (found[0].device.name, found[0].dtype) == ("large", "fp32")
    assert summary(found).startswith("Fits large (cuda, 64.0 GiB) in fp32, which leaves room for ")


@given(st.integers(0, 200 * GIB), st.integers(1, 1 << 20))
def test_what_fits_has_room_for_its_least_tokens_and_what_does_not_has_none(memory_bytes, context_tokens):
    config = replace(SEVEN_B, context_tokens=context_tokens)
    found = {fit.dtype for fit in fits(config, [Device("cpu", "node", memory_bytes)])}
    for dtype in ("fp32", "bf16", "fp16"):
        assert (dtype in found) == (needed_bytes(config, dtype) <= int(memory_bytes * 0.85))
    assert least_kv_tokens(config) == min(LEAST_KV_TOKENS, context_tokens)
