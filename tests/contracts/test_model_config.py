import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane.contracts.memory import kv_bytes_per_token, num_parameters, weight_bytes
from dataplane.contracts.model_config import (
    ConfigError,
    ModelConfig,
    add_generation_config,
    expected_tensors,
    parse_config,
)

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "eos_token_id": 2,
}


def parse(**changes: object) -> ModelConfig:
    return parse_config(json.dumps(LLAMA | changes).encode())


def refusal(raw: bytes) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parse_config(raw)
    return caught.value


def test_a_plain_llama_is_read_with_the_defaults_of_transformers() -> None:
    assert parse() == ModelConfig(
        architecture="llama", vocab_size=320, hidden_size=64, intermediate_size=96, num_layers=2, num_heads=4,
        num_kv_heads=2, head_dim=16, context_tokens=512, rms_norm_eps=1e-5, rope_theta=10_000.0, tied_embeddings=False,
        attention_bias=False, mlp_bias=False, weight_dtype="fp32", bos_token_id=None, eos_token_ids=(2,),
    )  # fmt: skip


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_theta": 5e5},
        {"rope_theta": 500_000, "rope_scaling": None},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
        {"rope_theta": 5e5, "rope_scaling": {"type": "default"}},
        {"rope_theta": 5e5, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
    ],
)
def test_every_way_to_write_plain_rotary_positions_is_one(rope: dict[str, object]) -> None:
    assert parse(**rope).rope_theta == 500_000.0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("auto_map", {"AutoModel": "modeling.Evil"}),
        ("trust_remote_code", True),
        ("quantization_config", {"quant_method": "gptq"}),
        ("rope_scaling", {"rope_type": "llama3", "factor": 8.0}),
        ("rope_scaling", {"type": "dynamic", "factor": 2.0}),
        ("rope_parameters", {"rope_type": "default", "rope_theta": 1e4, "long_factor": [1.0]}),
        ("rope_parameters", {"rope_type": "default", "partial_rotary_factor": 0.5}),
        ("rope_parameters", []),
        ("model_type", "bert"),
        ("model_type", ["llama"]),
        ("architectures", ["LlamaForSequenceClassification"]),
        ("sliding_window", 4096),
        ("hidden_act", "gelu"),
        ("pretraining_tp", 2),
        ("pretraining_tp", True),
        ("num_hidden_layers", True),
        ("num_hidden_layers", 2.0),
        ("num_hidden_layers", "2"),
        ("num_hidden_layers", 0),
        ("num_hidden_layers", 10**6),
        ("num_key_value_heads", 3),
        ("num_key_value_heads", 8),
        ("num_attention_heads", 7),
        ("head_dim", 15),
        ("vocab_size", 10**400),
        ("rms_norm_eps", -1.0),
        ("rms_norm_eps", "1e-5"),
        ("rms_norm_eps", False),
        ("rope_theta", 10**400),
        ("tie_word_embeddings", 1),
        ("tie_word_embeddings", "false"),
        ("eos_token_id", 320),
        ("eos_token_id", [2, -1]),
        ("eos_token_id", [True]),
        ("eos_token_id", list(range(100))),
        ("bos_token_id", [1]),
        ("torch_dtype", "float64"),
        ("torch_dtype", 4),
        ("logit_softcap", 30.0),
        ("attention_multiplier", 1.0),
    ],
)
def test_what_changes_the_computation_is_refused_by_name(field: str, value: object) -> None:
    error = refusal(json.dumps(LLAMA | {field: value}).encode())
    named = {"num_attention_heads": "num_key_value_heads", "torch_dtype": "dtype"}
    assert named.get(field, field) in error.field or field in error.field
    assert error.mend


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"{", b"[]", b"null", b"\xff", b'{"model_type": NaN}', b'{"a": 1e999}',
        b'{"model_type": "llama", "model_type": "llama"}', b'{"a": "\\ud800"}', b"[" * 100_000,
        b'{"a": ' + b"9" * 5000 + b"}", b" " * (256 * 1024) + b"{}",
    ],
    ids=range(12),
)  # fmt: skip
def test_a_file_with_more_than_one_reading_is_refused(raw: bytes) -> None:
    assert refusal(raw).field == "config.json"


@pytest.mark.parametrize("field", ["vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"])
def test_sizes_have_no_default(field: str) -> None:
    raw = json.dumps({name: value for name, value in LLAMA.items() if name != field}).encode()
    assert refusal(raw).field == field


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from([*LLAMA, "head_dim", "rope_theta", "rope_scaling", "dtype"]), json_values))
def test_any_value_is_read_within_bounds_or_refused(changes: dict[str, object]) -> None:
    with contextlib.suppress(ConfigError):
        config = parse(**changes)
        assert config.num_heads % config.num_kv_heads == 0
        assert config.head_dim % 2 == 0
        assert all(type(size) is int and size > 0 for shape in expected_tensors(config).values() for size in shape)


def test_the_generation_config_adds_ends_of_text_and_nothing_else() -> None:
    extended = add_generation_config(parse(), b'{"eos_token_id": [3, 2], "temperature": 0.1}')
    assert extended.eos_token_ids == (2, 3)
    with pytest.raises(ConfigError):
        add_generation_config(parse(), b'{"eos_token_id": 320}')


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("biased", [True, False])
def test_the_tensors_are_those_that_transformers_saves(tied: bool, biased: bool) -> None:
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=tied, attention_bias=biased, mlp_bias=biased,
    )  # fmt: skip
    ours = parse_config(config.to_json_string().encode())
    assert parse_config(config.to_json_string(use_diff=False).encode()) == ours
    model = transformers.LlamaForCausalLM(config)
    theirs = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if tied:
        del theirs["lm_head.weight"]
    assert expected_tensors(ours) == theirs
    assert num_parameters(ours) == model.num_parameters()


SEVENTY_B = parse(
    vocab_size=32_000, hidden_size=8192, intermediate_size=28_672, num_hidden_layers=80, num_attention_heads=64,
    num_key_value_heads=8,
)  # fmt: skip


def test_the_planner_reproduces_the_worked_example_of_70_billion_parameters() -> None:
    assert kv_bytes_per_token(SEVENTY_B, "fp16") == 320 * 1024
    assert 2048 * kv_bytes_per_token(SEVENTY_B, "fp16") == 640 * 1024**2
    assert weight_bytes(SEVENTY_B, "fp16") == pytest.approx(138e9, rel=0.01)
    assert weight_bytes(SEVENTY_B, "fp32") == pytest.approx(2 * weight_bytes(SEVENTY_B, "bf16"), rel=1e-4)


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(ValueError, match="int3"):
        weight_bytes(SEVENTY_B, "int3")
