"""Every head, channel and layer has one rank; what cannot be dealt out is refused by its name."""

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dataplane.contracts.model_config import ModelConfig, parse_config
from dataplane.contracts.parallel import Parallel, Place, conflict, inner_unit

CONFIG = (
    b'{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 320, "hidden_size": 64,'
    b'"intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,'
    b'"head_dim": 16, "max_position_embeddings": 512}'
)
ranks = st.integers(1, 6)


@pytest.fixture
def config() -> ModelConfig:
    return parse_config(CONFIG)


@given(tensor=ranks, pipeline=ranks)
def test_ranks_count_the_slices_of_each_stage_in_turn(tensor: int, pipeline: int) -> None:
    parallel = Parallel(tensor, pipeline)
    places = [Place.of(rank, parallel) for rank in range(parallel.ranks)]
    assert [place.rank for place in places] == list(range(tensor * pipeline))
    assert len({(place.slice, place.stage) for place in places}) == parallel.ranks
    assert len({place.label for place in places}) == parallel.ranks


@given(tensor=ranks, pipeline=ranks, heads=st.integers(1, 8), layers=st.integers(6, 90), lanes=st.integers(6, 300))
def test_all_is_dealt_out_once_and_evenly(tensor: int, pipeline: int, heads: int, layers: int, lanes: int) -> None:
    parallel = Parallel(tensor, pipeline)
    slices = [Place(parallel, slice=number) for number in range(tensor)]
    stages = [Place(parallel, stage=number) for number in range(pipeline)]
    assert list(chain(*(place.heads(heads * tensor) for place in slices))) == list(range(heads * tensor))
    assert list(chain(*(place.layers(layers) for place in stages))) == list(range(layers))
    inner = [place.inner(lanes * 8, "fp32") for place in slices]
    assert list(chain(*inner)) == list(range(lanes * 8))
    for sizes in ([len(place.layers(layers)) for place in stages], [len(part) // 8 for part in inner]):
        assert max(sizes) - min(sizes) <= 1


@given(tensor=ranks, width=st.integers(48, 3000), precision=st.sampled_from(["fp32", "int8", "int4"]))
def test_no_group_of_inputs_that_share_a_scale_is_cut(tensor: int, width: int, precision: str) -> None:
    parts = [Place(Parallel(tensor), slice=number).inner(width, precision) for number in range(tensor)]
    assert all(part.start % inner_unit(precision) == 0 for part in parts)
    assert list(chain(*parts)) == list(range(width))


def test_a_model_on_one_process_can_always_be(config: ModelConfig) -> None:
    assert not conflict(config, Parallel(), "int8")
    assert not Place().label


@pytest.mark.parametrize(
    ("changes", "parallel", "precision", "named"),
    [
        ({}, Parallel(4), "fp32", "2 key/value heads cannot be dealt evenly to 4 ranks"),
        ({"num_kv_heads": 3, "num_heads": 6}, Parallel(2), "fp32", "divisor of 3"),
        ({}, Parallel(2), "int8", "cut that of their 32 attended channels"),
        ({"intermediate_size": 8}, Parallel(2), "fp32", "inner width 8 has too few parts of 8"),
        ({}, Parallel(1, 4), "fp32", "3 layers are fewer than 4 stages"),
    ],
)
def test_what_cannot_be_dealt_out_is_refused(
    config: ModelConfig, changes: dict[str, int], parallel: Parallel, precision: str, named: str
) -> None:
    assert named in conflict(replace(config, **changes), parallel, precision)


def test_what_can_be_dealt_out_is_not_refused(config: ModelConfig) -> None:
    assert not conflict(config, Parallel(2, 3), "fp32")
    assert not conflict(config, Parallel(2), "int4")  # 32 channels are one group of int4
