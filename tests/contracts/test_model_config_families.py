"""The schemas of each family: what transformers writes is read, and what it would compute otherwise is refused."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import CONFIGS

from dataplane.contracts.memory import num_parameters
from dataplane.contracts.model_config import (
    FAMILIES,
    ConfigError,
    LinearScaling,
    Llama3Scaling,
    ModelConfig,
    RopeScaling,
    YarnScaling,
    expected_tensors,
    ignored_tensors,
    parse_config,
    tensor_name,
)

LLAMA = {
    "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512,
}  # fmt: skip
TINY = {**CONFIGS, "llama": LLAMA}


def parse(model_type: str, **changes: object) -> ModelConfig:
    return parse_config(json.dumps({"model_type": model_type} | TINY[model_type] | changes).encode())


def without(model_type: str, *fields: str) -> ModelConfig:
    content = {name: value for name, value in TINY[model_type].items() if name not in fields}
    return parse_config(json.dumps({"model_type": model_type} | content).encode())


def refusal(model_type: str, **changes: object) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parse(model_type, **changes)
    assert caught.value.mend
    return caught.value


def test_every_family_has_a_tiny_model() -> None:
    assert TINY.keys() == FAMILIES.keys()


_SIZES: dict[str, Any] = {
    "vocab_size": 32, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 7, "num_attention_heads": 4,
    "num_key_value_heads": 2,
}  # fmt: skip
WRITTEN: dict[str, tuple[str, dict[str, Any]]] = {
    "Mistral": ("Mistral", _SIZES),
    "Mistral without a window": ("Mistral", _SIZES | {"sliding_window": None}),
    "Qwen2": ("Qwen2", _SIZES),
    "Qwen2 with windows": ("Qwen2", _SIZES | {"use_sliding_window": True, "max_window_layers": 3}),
    "Qwen3, tied and biased": ("Qwen3", _SIZES | {"tie_word_embeddings": True, "attention_bias": True}),
    "Gemma 2": ("Gemma2", _SIZES | {"head_dim": 8}),
    "Gemma 3": ("Gemma3", _SIZES | {"head_dim": 8, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}),
    "Gemma 3, untied and biased": ("Gemma3", _SIZES | {"tie_word_embeddings": False, "attention_bias": True}),
    "GPT-2": ("GPT2", {"vocab_size": 32, "n_embd": 16, "n_head": 4, "bos_token_id": 1, "eos_token_id": 2}),
}  # fmt: skip


@pytest.mark.parametrize(("family", "options"), WRITTEN.values(), ids=WRITTEN)
def test_config_and_tensors_are_those_that_transformers_saves(family: str, options: dict[str, Any]) -> None:
    import torch
    import transformers

    config_class = getattr(transformers, {"Gemma3": "Gemma3TextConfig"}.get(family, f"{family}Config"))
    model_class = getattr(transformers, {"GPT2": "GPT2LMHeadModel"}.get(family, f"{family}ForCausalLM"))
    config = config_class(**options)
    ours = parse_config(config.to_json_string().encode())
    assert parse_config(config.to_json_string(use_diff=False).encode()) == ours
    with torch.device("meta"):
        model = model_class(config)
    theirs = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if ours.tied_embeddings:
        del theirs["lm_head.weight"]
    assert expected_tensors(ours) == theirs
    assert num_parameters(ours) == model.num_parameters()
    sliding = [kind == "sliding_attention" for kind in getattr(config, "layer_types", [])]
    if family != "Mistral":
        assert ours.sliding_layers == tuple(layer for layer, slides in enumerate(sliding) if slides)


PUBLISHED: dict[str, dict[str, object]] = {
    "Llama 3.2": {
        "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009], "head_dim": 64, "hidden_act": "silu",
        "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 8192, "max_position_embeddings": 131072,
        "mlp_bias": False, "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 16,
        "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": {
            "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192, "rope_type": "llama3",
        },
        "rope_theta": 500000.0, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
        "transformers_version": "4.45.0.dev0", "use_cache": True, "vocab_size": 128256,
    },
    "Mistral": {
        "architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
        "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 32768,
        "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096, "tie_word_embeddings": False,
        "torch_dtype": "bfloat16", "transformers_version": "4.34.0.dev0", "use_cache": True, "vocab_size": 32000,
    },
    "Qwen2.5": {
        "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
        "eos_token_id": 151645, "hidden_act": "silu", "hidden_size": 896, "initializer_range": 0.02,
        "intermediate_size": 4864, "max_position_embeddings": 32768, "max_window_layers": 21, "model_type": "qwen2",
        "num_attention_heads": 14, "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0, "sliding_window": 32768, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
        "transformers_version": "4.43.1", "use_cache": True, "use_mrope": False, "use_sliding_window": False,
        "vocab_size": 151936,
    },
    "Qwen3": {
        "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024,
        "initializer_range": 0.02, "intermediate_size": 3072, "max_position_embeddings": 40960,
        "max_window_layers": 28, "model_type": "qwen3", "num_attention_heads": 16, "num_hidden_layers": 28,
        "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 1000000,
        "sliding_window": None, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
        "transformers_version": "4.51.0", "use_cache": True, "use_sliding_window": False, "vocab_size": 151936,
    },
    "Gemma 2": {
        "architectures": ["Gemma2ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "attn_logit_softcapping": 50.0, "bos_token_id": 2, "cache_implementation": "hybrid", "eos_token_id": [1, 107],
        "final_logit_softcapping": 30.0, "head_dim": 256, "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2304, "initializer_range": 0.02,
        "intermediate_size": 9216, "max_position_embeddings": 8192, "model_type": "gemma2", "num_attention_heads": 8,
        "num_hidden_layers": 26, "num_key_value_heads": 4, "pad_token_id": 0, "query_pre_attn_scalar": 256,
        "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "sliding_window": 4096, "torch_dtype": "bfloat16",
        "transformers_version": "4.42.4", "use_cache": True, "vocab_size": 256000,
    },
    "Gemma 3": {
        "architectures": ["Gemma3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "attn_logit_softcapping": None, "bos_token_id": 2, "cache_implementation": "hybrid", "eos_token_id": [1, 106],
        "final_logit_softcapping": None, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 1152, "initializer_range": 0.02, "intermediate_size": 6912, "max_position_embeddings": 32768,
        "model_type": "gemma3_text", "num_attention_heads": 4, "num_hidden_layers": 26, "num_key_value_heads": 1,
        "pad_token_id": 0, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000,
        "rope_scaling": None, "rope_theta": 1000000, "sliding_window": 512, "sliding_window_pattern": 6,
        "torch_dtype": "bfloat16", "transformers_version": "4.50.0.dev0", "use_cache": True, "vocab_size": 262144,
    },
    "GPT-2": {
        "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
        "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02,
        "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12,
        "n_positions": 1024, "resid_pdrop": 0.1, "summary_activation": None, "summary_first_dropout": 0.1,
        "summary_proj_to_labels": True, "summary_type": "cls_index", "summary_use_proj": True,
        "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}}, "vocab_size": 50257,
    },
}  # fmt: skip
PARAMETERS = {
    "Llama 3.2": 1_235_814_400, "Mistral": 7_241_732_096, "Qwen2.5": 494_032_768, "Qwen3": 596_049_920,
    "Gemma 2": 2_614_341_888, "Gemma 3": 999_885_952, "GPT-2": 124_439_808,
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_configs_as_they_are_published_are_read_and_have_the_parameters_that_their_cards_say(name: str) -> None:
    assert num_parameters(parse_config(json.dumps(PUBLISHED[name]).encode())) == PARAMETERS[name]


REFUSED: list[tuple[str, dict[str, object], str]] = [
    ("mistral", {"attention_bias": True}, "attention_bias"),
    ("mistral", {"sliding_window": 0}, "sliding_window"),
    ("mistral", {"sliding_window": True}, "sliding_window"),
    ("mistral", {"layer_types": ["full_attention", "full_attention"]}, "layer_types"),
    ("qwen2", {"attention_bias": True}, "attention_bias"),
    ("qwen2", {"use_mrope": True}, "use_mrope"),
    ("qwen2", {"use_sliding_window": 1}, "use_sliding_window"),
    ("qwen2", {"max_window_layers": -1}, "max_window_layers"),
    ("qwen2", {"layer_types": ["full_attention"]}, "layer_types"),
    ("qwen2", {"layer_types": ["full_attention", "chunked_attention"]}, "layer_types"),
    ("qwen2", {"layer_types": ["full_attention", ["sliding_attention"]]}, "layer_types"),
    (
        "qwen2",
        {"layer_types": ["full_attention", "sliding_attention"], "use_sliding_window": False},
        "layer_types",
    ),
    (
        "qwen2",
        {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": None},
        "sliding_window",
    ),
    ("qwen2", {"num_key_value_heads": None}, "num_key_value_heads"),
    ("qwen3", {"num_experts": 8}, "num_experts"),
    ("qwen3", {"mlp_bias": True}, "mlp_bias"),
    ("qwen3", {"hidden_act": "gelu"}, "hidden_act"),
    ("gemma2", {"hidden_activation": "gelu"}, "hidden_activation"),
    ("gemma2", {"hidden_activation": None}, "hidden_activation"),
    ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    ("gemma2", {"final_logit_softcapping": 0}, "final_logit_softcapping"),
    ("gemma2", {"attn_logit_softcapping": "50"}, "attn_logit_softcapping"),
    ("gemma2", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar"),
    ("gemma2", {"rope_local_base_freq": 1e4}, "rope_local_base_freq"),
    ("gemma2", {"sliding_window": None}, "sliding_window"),
    ("gemma3_text", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
    ("gemma3_text", {"vision_config": {}}, "vision_config"),
    ("gemma3_text", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, "rope_parameters"),
    (
        "gemma3_text",
        {"rope_parameters": {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e5}}},
        "rope_local_base_freq",
    ),
    (
        "gemma3_text",
        {
            "rope_parameters": {
                "full_attention": {"rope_theta": 1e6},
                "sliding_attention": {"rope_type": "linear", "factor": 2.0},
            }
        },
        "rope_parameters",
    ),
    ("gpt2", {"activation_function": "relu"}, "activation_function"),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
    ("gpt2", {"scale_attn_weights": False}, "scale_attn_weights"),
    ("gpt2", {"reorder_and_upcast_attn": True}, "reorder_and_upcast_attn"),
    ("gpt2", {"add_cross_attention": True}, "add_cross_attention"),
    ("gpt2", {"n_head": 5}, "n_embd"),
    ("gpt2", {"hidden_size": 32}, "hidden_size"),
    ("gpt2", {"rope_theta": 1e4}, "rope_theta"),
    ("gpt2", {"n_inner": 0}, "n_inner"),
    *((name, {"moe_router": 2}, "moe_router") for name in TINY),
    *((name, {"auto_map": {"AutoModel": "evil.Evil"}}, "auto_map") for name in TINY),
    *((name, {"architectures": ["EvilForCausalLM"]}, "architectures") for name in TINY),
    *((name, {"num_key_value_heads": 3}, "num_key_value_heads") for name in TINY if name != "gpt2"),
]


@pytest.mark.parametrize(("model_type", "changes", "field"), REFUSED)
def test_what_a_family_does_not_compute_is_refused_by_name(
    model_type: str, changes: dict[str, object], field: str
) -> None:
    assert field in refusal(model_type, **changes).field


LLAMA_3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
SCALINGS: list[tuple[dict[str, object], RopeScaling]] = [
    ({"type": "linear", "factor": 2}, LinearScaling(2.0)),
    (LLAMA_3, Llama3Scaling(8.0, 1.0, 4.0, 64)),
    (YARN, YarnScaling(4.0, 32.0, 1.0, 128, None)),
    ({"type": "yarn", "factor": 4.0}, YarnScaling(4.0, 32.0, 1.0, 512, None)),
    (
        YARN | {"attention_factor": 0.5, "beta_fast": 8, "beta_slow": 2.0, "truncate": True},
        YarnScaling(4.0, 8.0, 2.0, 128, 0.5),
    ),
]


@pytest.mark.parametrize(("written", "scaling"), SCALINGS)
@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2", "qwen3", "gemma2"])
def test_scaled_positions_are_read_in_the_older_and_the_newer_form(
    model_type: str, written: dict[str, object], scaling: RopeScaling
) -> None:
    older = parse(model_type, rope_theta=5e5, rope_scaling=written)
    assert (older.rope_theta, older.rope_scaling) == (5e5, scaling)
    assert parse(model_type, rope_parameters=written | {"rope_theta": 5e5}) == older


@pytest.mark.parametrize(
    ("rope", "field"),
    [
        ({"rope_type": "dynamic", "factor": 2.0}, "rope_type"),
        ({"rope_type": "longrope", "factor": 2.0}, "rope_type"),
        ({"type": "su", "factor": 2.0}, "rope_type"),
        ({"type": "mrope", "mrope_section": [1, 2]}, "rope_type"),
        ({"rope_type": ["linear"], "factor": 2.0}, "rope_type"),
        ({"rope_type": "linear", "type": "yarn", "factor": 2.0}, "type"),
        ({"rope_type": "linear"}, "factor"),
        ({"rope_type": "linear", "factor": 0.5}, "factor"),
        ({"rope_type": "linear", "factor": 1e9}, "factor"),
        ({"rope_type": "linear", "factor": True}, "factor"),
        ({"rope_type": "linear", "factor": 2.0, "beta_fast": 1}, "beta_fast"),
        (LLAMA_3 | {"high_freq_factor": 1.0}, "high_freq_factor"),
        (LLAMA_3 | {"low_freq_factor": 0}, "low_freq_factor"),
        (LLAMA_3 | {"original_max_position_embeddings": 0}, "original_max_position_embeddings"),
        (YARN | {"attention_factor": -1.0}, "attention_factor"),
        (YARN | {"beta_fast": 0.5}, "beta_fast"),
        (YARN | {"truncate": False}, "truncate"),
        (YARN | {"mscale": 1.0}, "mscale"),
        (YARN | {"rope_theta": 1.0}, "rope_theta"),
    ],
)
def test_other_positions_are_refused_by_name(rope: dict[str, object], field: str) -> None:
    assert field in refusal("llama", rope_scaling=rope).field


def test_positions_that_are_given_twice_must_agree() -> None:
    assert refusal("llama", rope_scaling=YARN, rope_parameters={"rope_theta": 1e4}).field == "rope_scaling"
    assert refusal("llama", rope_theta=1e4, rope_parameters=YARN | {"rope_theta": 1e5}).field == "rope_theta"


def test_gemma_3_has_positions_for_each_kind_of_layer_in_either_form() -> None:
    older = parse("gemma3_text", rope_scaling={"rope_type": "linear", "factor": 8.0})
    assert (older.rope_theta, older.rope_scaling, older.sliding_rope_theta) == (1e6, LinearScaling(8.0), 1e4)
    newer = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    assert parse("gemma3_text", rope_parameters=newer) == older
    assert without("gemma3_text", "rope_theta", "rope_local_base_freq") == parse("gemma3_text")


def test_which_layers_slide_follows_the_pattern_where_no_list_says_it() -> None:
    def sliding(model_type: str, **changes: object) -> tuple[int, ...]:
        return parse(model_type, layer_types=None, num_hidden_layers=6, **changes).sliding_layers

    assert sliding("gemma2") == (0, 2, 4)
    assert sliding("gemma3_text") == (0, 1, 2, 3, 4)
    assert sliding("gemma3_text", sliding_window_pattern=3) == (0, 1, 3, 4)
    assert sliding("qwen2") == (1, 2, 3, 4, 5)
    assert sliding("qwen2", use_sliding_window=False) == ()
    assert parse("qwen2", use_sliding_window=False).sliding_window is None


def test_a_mistral_that_does_not_say_has_a_window() -> None:
    unsaid = without("mistral", "sliding_window")
    assert [unsaid.window(layer) for layer in range(2)] == [4096, 4096]
    assert parse("mistral", sliding_window=None).window(1) == 0


def test_a_gemma_that_does_not_say_bounds_its_scores_and_logits_and_one_that_says_null_does_not() -> None:
    unsaid = parse("gemma2")
    assert (unsaid.attention_softcap, unsaid.logit_softcap) == (50.0, 30.0)
    said = parse("gemma2", attn_logit_softcapping=None, final_logit_softcapping=None)
    assert (said.attention_softcap, said.logit_softcap) == (None, None)
    assert parse("gemma3_text").logit_softcap is None
    assert parse("gemma3_text").attention_scale == 0.25


def test_what_older_tools_saved_beside_the_weights_is_known_by_name_and_shape() -> None:
    gpt2, llama = parse("gpt2"), parse("llama")
    assert ignored_tensors(gpt2)["transformer.h.1.attn.bias"] == (1, 1, 128, 128)
    assert ignored_tensors(llama)["model.layers.1.self_attn.rotary_emb.inv_freq"] == (8,)
    assert not ignored_tensors(gpt2).keys() & expected_tensors(gpt2).keys()


def test_the_tensors_of_gpt_2_may_lack_the_front_of_their_names_and_no_others() -> None:
    gpt2 = parse("gpt2", tie_word_embeddings=False)
    short = {name: name.removeprefix("transformer.") for name in expected_tensors(gpt2)}
    assert {tensor_name(gpt2, stored) for stored in short.values()} == expected_tensors(gpt2).keys()
    assert tensor_name(parse("llama"), "embed_tokens.weight") == "embed_tokens.weight"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 64) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(list(YARN)), inner, max_size=3),
    max_leaves=5,
)
FIELDS = sorted({
    "rope_scaling", "rope_parameters", "layer_types", "sliding_window", "use_sliding_window", "sliding_window_pattern",
    *(field for content in TINY.values() for field in content),
})  # fmt: skip


@given(st.sampled_from(sorted(TINY)), st.dictionaries(st.sampled_from(FIELDS), json_values, max_size=3))
def test_any_value_of_any_family_is_read_within_bounds_or_refused(model_type: str, changes: dict[str, object]) -> None:
    with contextlib.suppress(ConfigError):
        config = parse(model_type, **changes)
        assert config.num_heads % config.num_kv_heads == 0
        assert all(layer < config.num_layers for layer in config.sliding_layers)
        assert all(config.window(layer) > 0 for layer in config.sliding_layers)
        assert all(type(size) is int and size > 0 for shape in expected_tensors(config).values() for size in shape)
