import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.deployments.capacity import (
    DoesNotFit,
    NoDevice,
    check_device,
    check_shares,
    pool_blocks,
    pool_tokens,
)
from controlplane.registry.fit import fits
from dataplane.contracts.catalog import EngineSettings, Share
from dataplane.contracts.memory import kv_bytes_per_token
from dataplane.contracts.model_config import ModelConfig
from dataplane.contracts.replica import Device
from dataplane.contracts.room import kv_room_mb

CONFIG = ModelConfig(
    architecture="llama", vocab_size=320, hidden_size=64, intermediate_size=96, num_layers=2, num_heads=4,
    num_kv_heads=2, head_dim=16, context_tokens=512, rms_norm_eps=1e-5, rope_theta=1e4, tied_embeddings=False,
    attention_bias=False, mlp_bias=False, weight_dtype="fp32", bos_token_id=1, eos_token_ids=(2,),
)  # fmt: skip
ENGINE = EngineSettings(kv_memory_mb=1, block_size=16)  # 512 bytes a token: 2,048 tokens, 128 blocks

guarantees = st.lists(st.integers(0, 1500), min_size=1, max_size=6)


def shares(tokens: list[int]) -> dict[str, Share]:
    return {f"t{index}": Share(guarantee_tokens=value) for index, value in enumerate(tokens)}


def test_the_pool_is_what_the_memory_holds() -> None:
    assert kv_bytes_per_token(CONFIG, "fp32") == 512
    assert (pool_blocks(CONFIG, ENGINE), pool_tokens(CONFIG, ENGINE)) == (128, 2048)
    assert pool_tokens(CONFIG, EngineSettings(kv_memory_mb=1, block_size=16, dtype="fp16")) == 4096
    in_int8 = EngineSettings(kv_memory_mb=1, block_size=16, dtype="int4", kv_dtype="int8")
    assert pool_tokens(CONFIG, in_int8) == 1024**2 // (16 * 160) * 16  # 2 x 2 layers x 2 heads x (16 + 4)


@given(tokens=guarantees, replicas=st.integers(0, 4))
def test_guarantees_are_accepted_exactly_when_each_replicas_part_fits_and_leaves_room_for_the_longest_request(
    tokens: list[int], replicas: int
) -> None:
    parts = max(1, replicas)
    per_replica = [-(-value // parts) for value in tokens]
    blocks = [-(-value // 16) for value in per_replica]
    fits = sum(blocks) <= 128 and all(sum(blocks) - own + 512 // 16 <= 128 for own in blocks)
    try:
        check_shares(CONFIG, ENGINE, shares(tokens), min_replicas=replicas)
    except DoesNotFit:
        assert not fits
    else:
        assert fits


def test_the_refusal_has_the_numbers_and_the_mend() -> None:
    with pytest.raises(DoesNotFit, match=r"2064 tokens \(t0 2000, t1 49;.*pool of 2048 tokens.*more KV memory"):
        check_shares(CONFIG, ENGINE, shares([2000, 49]), min_replicas=0)
    with pytest.raises(DoesNotFit, match=r"request of t1 takes 512 tokens.*has 448\..*cap of at most 448 tokens"):
        check_shares(CONFIG, ENGINE, shares([1600, 0]), min_replicas=1)
    check_shares(CONFIG, ENGINE, shares([1600]) | {"t1": Share(cap_tokens=448)}, min_replicas=1)
    shorter = EngineSettings(kv_memory_mb=1, block_size=16, max_model_len=448)
    check_shares(CONFIG, shorter, shares([1600, 0]), min_replicas=1)
    with pytest.raises(DoesNotFit, match="Raise the cap"):
        check_shares(CONFIG, ENGINE, {"t": Share(guarantee_tokens=20, cap_tokens=10)}, min_replicas=1)
    with pytest.raises(DoesNotFit, match="at least 1 MiB"):
        check_shares(CONFIG, EngineSettings(kv_memory_mb=0), {}, min_replicas=1)
    with pytest.raises(DoesNotFit, match="State the deployment's KV memory"):
        pool_blocks(CONFIG, EngineSettings())


CPU = Device("cpu", "two cores", 2_000 * 1024**2)  # of which 1,700 MiB are planned with


def test_a_replica_is_refused_where_no_device_could_hold_it() -> None:
    check_device(CONFIG, EngineSettings(kv_memory_mb=1_000), [CPU])
    check_device(CONFIG, EngineSettings(kv_memory_mb=1 << 20, device="cuda"), [])  # nothing is known yet
    refusal = r"takes 1,\d\d\d MiB \(weights in fp32 1 MiB, .*KV pool 1,500 MiB, .*can give 1,700 MiB\. Lower the KV"
    with pytest.raises(DoesNotFit, match=refusal):
        check_device(CONFIG, EngineSettings(kv_memory_mb=1_500), [CPU])
    with pytest.raises(NoDevice, match=r"a cuda device\. Choose auto or one of cpu"):
        check_device(CONFIG, EngineSettings(kv_memory_mb=1, device="cuda"), [CPU])
    gpu = Device("cuda", "one", 80_000 * 1024**2)
    check_device(CONFIG, EngineSettings(kv_memory_mb=1_500), [CPU, gpu])
    with pytest.raises(DoesNotFit):
        check_device(CONFIG, EngineSettings(kv_memory_mb=1_500, device="cpu"), [CPU, gpu])


def test_deploying_validating_and_planning_agree_on_what_fits() -> None:
    for room in (200, 320, 400, 2_000):
        device = Device("cpu", "node", room * 1024**2)
        fit = next((fit for fit in fits(CONFIG, [device]) if fit.dtype == "fp32"), None)
        assert (fit is not None) == (kv_room_mb(CONFIG, EngineSettings(max_num_seqs=1), device) > 0)
        if fit is not None:
            largest_mb = fit.kv_tokens * 512 // 1024**2
            check_device(CONFIG, EngineSettings(kv_memory_mb=largest_mb, max_num_seqs=1), [device])
            with pytest.raises(DoesNotFit):
                check_device(CONFIG, EngineSettings(kv_memory_mb=largest_mb + 1, max_num_seqs=1), [device])
