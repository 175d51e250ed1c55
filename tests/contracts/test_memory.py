"""What a replica takes, item by item, and that the figures grow with what they depend on."""

import pytest
from domain import CONFIG
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dataplane.contracts import memory, precision
from dataplane.contracts.catalog import EngineSettings, Share
from dataplane.contracts.memory import Kind, kv_bytes_per_token, plan, safe_guarantees, weight_bytes
from dataplane.contracts.replica import Device

MIB = 1024**2
SMOLLM2 = replace(
    CONFIG, vocab_size=49_152, hidden_size=576, intermediate_size=1536, num_layers=30, num_heads=9, num_kv_heads=3,
    head_dim=64, context_tokens=8192, tied_embeddings=True,
)  # fmt: skip
SEVENTY_B = replace(
    CONFIG, vocab_size=128_256, hidden_size=8192, intermediate_size=28_672, num_layers=80, num_heads=64,
    num_kv_heads=8, head_dim=128, context_tokens=8192, tied_embeddings=False,
)  # fmt: skip
engines = st.builds(
    EngineSettings,
    dtype=st.sampled_from(precision.WEIGHTS),
    kv_dtype=st.sampled_from(precision.KV_CHOICES),
    max_model_len=st.sampled_from([None, 1, 512, 8192]),
    max_num_seqs=st.integers(1, 300),
    kv_memory_mb=st.none() | st.integers(0, 4096),
    block_size=st.sampled_from([8, 16, 32]),
)


def sizes(config, engine, kind="cpu"):
    return {item.name: item.size_bytes for item in plan(config, engine, kind).items}


def test_tied_embeddings_lie_in_memory_once():
    tied, untied = (replace(SMOLLM2, tied_embeddings=tied) for tied in (True, False))
    for dtype in ("fp32", "bf16"):
        engine = EngineSettings(dtype=dtype)
        table_bytes = 49_152 * 576 * (4 if dtype == "fp32" else 2)
        assert weight_bytes(untied, dtype) - weight_bytes(tied, dtype) == table_bytes
        assert plan(untied, engine).needed_bytes - plan(tied, engine).needed_bytes == table_bytes


def test_weights_are_filled_up_to_whole_panels_and_groups():
    matrix = replace(CONFIG, vocab_size=100, hidden_size=72, num_layers=1, tied_embeddings=True)
    bare = replace(matrix, vocab_size=16)
    panels = 100 // 16 + 1
    for dtype, panel_bytes, in_one in (
        ("fp32", 72 * 16 * 4, 1), ("fp16", 72 * 16 * 2, 1), ("int8", 2 * 1056, 1), ("int4", 2 * 1056, 1),
    ):  # fmt: skip
        assert weight_bytes(matrix, dtype) - weight_bytes(bare, dtype) == (panels - in_one) * panel_bytes
    # 8.25 and 5 bits a weight, with scales and minimums; beside int4, those of embeddings and head have 8.25
    vocabulary = 2 * 128_256 * 8192 / memory.num_parameters(SEVENTY_B)
    for dtype, bits in (("int8", 8.25), ("int4", 8.25 * vocabulary + 5 * (1 - vocabulary))):
        assert weight_bytes(SEVENTY_B, dtype) / weight_bytes(SEVENTY_B, "fp32") == pytest.approx(bits / 32, rel=1e-3)


def test_weights_are_mapped_in_the_precision_that_the_settings_or_the_folder_say():
    for quantisation, dtype, weights in (("", "int4", "int4"), ("int8", "fp32", "int8"), ("kv-int8", "fp16", "fp16")):
        made = plan(replace(SMOLLM2, quantisation=quantisation), EngineSettings(dtype=dtype))
        assert (made.items[0].name, made.items[0].kind) == (f"weights in {weights}", Kind.MAPPED)
        assert made.weights_bytes == weight_bytes(SMOLLM2, weights)


@given(engine=engines, quantisation=st.sampled_from(["", "int8", "int4", "kv-int8"]))
def test_the_pool_is_the_most_whole_blocks_that_fit(engine, quantisation):
    config = replace(SMOLLM2, quantisation=quantisation)
    block_bytes = memory.block_bytes(config, engine)
    pool_bytes, given_bytes = sizes(config, engine)["KV pool"], (engine.kv_memory_mb or 0) * MIB
    assert pool_bytes % block_bytes == 0
    assert pool_bytes <= given_bytes < pool_bytes + block_bytes
    assert memory.pool_blocks(config, engine) == pool_bytes // block_bytes


def test_keys_and_values_in_int8_have_a_scale_for_each_head():
    assert kv_bytes_per_token(SMOLLM2, "fp32") == 2 * 30 * 3 * 64 * 4
    assert kv_bytes_per_token(SMOLLM2, "int8") == 2 * 30 * 3 * (64 + 4)


def test_a_conversion_counts_where_it_takes_more_than_serving_does():
    from_fp32, from_bf16 = (replace(SMOLLM2, weight_dtype=dtype) for dtype in ("fp32", "bf16"))
    engine = EngineSettings(dtype="int4", max_num_seqs=1, kv_memory_mb=1)
    assert sizes(from_fp32, engine)["conversion"] > sizes(from_bf16, engine)["conversion"] == 0
    assert sizes(from_fp32, replace(engine, dtype="fp32"))["conversion"] == 0
    assert plan(from_fp32, engine).needed_bytes == plan(from_bf16, engine).needed_bytes


def test_a_step_of_more_rows_takes_a_wider_workspace():
    workspaces = [sizes(SMOLLM2, EngineSettings(max_num_seqs=rows))["workspace"] for rows in (1, 64, 1024)]
    assert workspaces == sorted(set(workspaces))
    narrow = sizes(SMOLLM2, EngineSettings(max_model_len=16))["workspace"]
    assert narrow == sizes(SMOLLM2, EngineSettings())["workspace"]  # attention works on tiles, however long the context


def test_an_accelerator_holds_weights_and_pool_and_leaves_the_rest_to_the_reserve():
    engine = EngineSettings(dtype="fp16", kv_memory_mb=1000)
    there = plan(SEVENTY_B, engine, "cuda")
    assert not there.measured
    assert plan(SEVENTY_B, engine).measured
    assert there.weights_bytes == weight_bytes(SEVENTY_B, "fp16")
    assert there.needed_bytes == there.weights_bytes + sizes(SEVENTY_B, engine, "cuda")["KV pool"] == there.peak_bytes
    assert there.of(Kind.RESERVE) > 0


@given(engine=engines, config=st.sampled_from([CONFIG, SMOLLM2, SEVENTY_B]), kind=st.sampled_from(["cpu", "cuda"]))
def test_no_item_is_negative_and_each_figure_counts_what_the_one_before_does(engine, config, kind):
    made = plan(config, engine, kind)
    assert all(item.size_bytes >= 0 for item in made.items)
    assert 0 < made.held_bytes <= made.needed_bytes <= made.peak_bytes
    for item in made.items:
        said = item.size_bytes > 0 and item.kind in (Kind.HELD, Kind.MAPPED)
        assert (f"{item.name} {memory.mib(item.size_bytes)}" in made.words) == said


@given(engine=engines, more_mb=st.integers(1, 64), config=st.sampled_from([CONFIG, SMOLLM2]))
def test_more_kv_memory_never_takes_less(engine, more_mb, config):
    larger = replace(engine, kv_memory_mb=(engine.kv_memory_mb or 0) + more_mb)
    assert plan(config, larger).needed_bytes >= plan(config, engine).needed_bytes


def test_guarantees_are_safe_up_to_the_whole_blocks_of_every_pool():
    engine = EngineSettings(kv_memory_mb=10, block_size=16)
    pool_tokens = memory.pool_blocks(SMOLLM2, engine) * 16
    assert safe_guarantees(SMOLLM2, engine, 3) == 3 * pool_tokens
    for promised_tokens, fits in ((3 * pool_tokens, True), (3 * pool_tokens + 1, False)):
        shares = {"acme": Share(guarantee_tokens=promised_tokens)}
        assert (memory.promised_blocks(shares, 16, 3) <= memory.pool_blocks(SMOLLM2, engine)) == fits


def test_fifteen_per_cent_of_a_device_are_not_planned_with():
    assert memory.usable_bytes(Device("cpu", "node", 1000)) == 850
