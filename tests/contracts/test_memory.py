"""What a replica takes, item by item, and that the figures grow with what they depend on."""

from domain import CONFIG
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dataplane.contracts import memory
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
    dtype=st.sampled_from(["fp32", "bf16", "fp16"]),
    max_model_len=st.sampled_from([None, 1, 512, 8192]),
    max_num_seqs=st.integers(1, 300),
    kv_memory_mb=st.none() | st.integers(0, 4096),
    block_size=st.sampled_from([8, 16, 32]),
)


def sizes(config, engine, kind="cpu"):
    return {item.name: item.size_bytes for item in plan(config, engine, kind).items}


def test_tied_embeddings_lie_in_memory_twice_as_a_table_and_as_the_packed_head():
    tied, untied = (replace(SMOLLM2, tied_embeddings=tied) for tied in (True, False))
    assert weight_bytes(untied, "fp32") - weight_bytes(tied, "fp32") == 49_152 * 576 * 4
    for engine in (EngineSettings(), EngineSettings(dtype="bf16")):
        tied_plan, untied_plan = plan(tied, engine), plan(untied, engine)
        assert tied_plan.needed_bytes == untied_plan.needed_bytes
        assert tied_plan.peak_bytes < untied_plan.peak_bytes  # a file without the second table


def test_half_precision_weights_are_padded_as_the_kernel_holds_them():
    hidden_of_512 = replace(CONFIG, hidden_size=512, intermediate_size=1024, num_heads=8, head_dim=64, vocab_size=4096)
    matrices_bytes = memory.packed_weight_bytes(hidden_of_512, "fp32")
    assert memory.packed_weight_bytes(hidden_of_512, "bf16") == matrices_bytes // 2
    assert memory.packed_weight_bytes(SMOLLM2, "bf16") == memory.packed_weight_bytes(SMOLLM2, "fp16")
    # inputs of 576 are held as 1,024
    assert memory.packed_weight_bytes(SMOLLM2, "bf16") > 0.8 * memory.packed_weight_bytes(SMOLLM2, "fp32")


def test_the_pool_is_whole_blocks_and_a_pool_that_is_not_stated_counts_as_none():
    engine = EngineSettings(kv_memory_mb=10, block_size=16)
    block_bytes = 16 * kv_bytes_per_token(SMOLLM2, 4)
    assert sizes(SMOLLM2, engine)["KV pool"] == 10 * MIB // block_bytes * block_bytes
    assert sizes(SMOLLM2, EngineSettings())["KV pool"] == 0


def test_what_packing_takes_for_a_while_is_the_pools_later():
    small, large = (sizes(SMOLLM2, EngineSettings(dtype="bf16", max_num_seqs=1, kv_memory_mb=mb)) for mb in (12, 400))
    head_as_fp32_bytes = 49_152 * 576 * 4
    assert small["workspace"] + small["KV pool"] == head_as_fp32_bytes
    assert large["workspace"] < 60 * MIB
    assert sizes(SMOLLM2, EngineSettings(kv_memory_mb=12))["workspace"] < 20 * MIB  # fp32 is packed as it is


def test_a_longer_context_takes_a_wider_workspace():
    workspaces = [
        sizes(SMOLLM2, EngineSettings(max_model_len=context, max_num_seqs=4, kv_memory_mb=360))["workspace"]
        for context in (512, 2048, 8192)
    ]
    assert workspaces == sorted(set(workspaces))


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
