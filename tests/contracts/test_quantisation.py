"""The closed ``quantization_config``, and the tensors of a quantised folder."""

import json
from typing import Any

import pytest

from dataplane.contracts.model_config import ConfigError, ModelConfig, expected_tensors, parse_config, stored_tensors
from dataplane.contracts.model_config.gpt2 import POSITIONS
from dataplane.contracts.model_config.quantisation import SCHEMES, precision_of, written

LLAMA: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 100, "hidden_size": 72, "intermediate_size": 96, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "tie_word_embeddings": True,
}  # fmt: skip
GPT_2: dict[str, Any] = {"model_type": "gpt2", "vocab_size": 100, "n_embd": 64, "n_layer": 1, "n_head": 2}


def parse(config: dict[str, Any], quantisation: object) -> ModelConfig:
    return parse_config(json.dumps(config | {"quantization_config": quantisation}).encode())


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_scheme_of_ours_is_read(scheme: str) -> None:
    assert parse(LLAMA, written(scheme)).quantisation == scheme
    assert parse(LLAMA, None).quantisation == ""


@pytest.mark.parametrize(
    "quantisation",
    [
        {}, [], True, "int8", {"quant_method": "pagoda"}, {"quant_method": "gptq", "scheme": "int8"},
        {"quant_method": "pagoda", "scheme": "int3"}, {"quant_method": "pagoda", "scheme": ["int8"]},
        {"quant_method": "pagoda", "scheme": "int8", "bits": 8},
        {"quant_method": "pagoda", "scheme": "int8", "vocabulary": "int8"},
        {"quant_method": "pagoda", "scheme": "int4", "vocabulary": "int4"},
    ],
)  # fmt: skip
def test_anothers_is_refused(quantisation: object) -> None:
    with pytest.raises(ConfigError, match="by another tool") as refusal:
        parse(LLAMA, quantisation)
    assert refusal.value.field == "quantization_config"


def test_a_folder_whose_vocabulary_is_in_int4_is_told_to_be_made_again() -> None:
    with pytest.raises(ConfigError, match="embeddings and head are in int4") as refusal:
        parse(LLAMA, {"quant_method": "pagoda", "scheme": "int4"})
    assert "Quantise the original again" in refusal.value.mend


def test_int4_leaves_the_vocabulary_in_int8() -> None:
    for config in (LLAMA | {"tie_word_embeddings": False}, GPT_2):
        precisions = {
            name: precision_of(name, "int4") for name, shape in expected_tensors(parse(config, None)).items()
            if len(shape) == 2
        }  # fmt: skip
        in_int8 = {name for name, precision in precisions.items() if precision == "int8"}
        assert in_int8 <= {"model.embed_tokens.weight", "lm_head.weight", "transformer.wte.weight", POSITIONS}
        assert {precisions[name] for name in precisions.keys() - in_int8} == {"int4"}
        assert {precision_of(name, "fp16") for name in precisions} == {"fp16"}
    assert written("int4")["vocabulary"] == "int8"


def test_matrices_that_lie_inputs_first_have_no_codes() -> None:
    with pytest.raises(ConfigError, match="inputs first"):
        parse(GPT_2, {"quant_method": "pagoda", "scheme": "int8"})
    assert parse(GPT_2, {"quant_method": "pagoda", "scheme": "kv-int8"}).quantisation == "kv-int8"


def test_codes_scales_and_minimums_stand_in_for_matrices_only() -> None:
    whole = parse(LLAMA, {"quant_method": "pagoda", "scheme": "kv-int8"})
    assert stored_tensors(whole) == {name: ("", shape) for name, shape in expected_tensors(whole).items()}
    int8, int4 = (stored_tensors(parse(LLAMA, written(f"int{n}"))) for n in (8, 4))
    for tensors in (int8, int4):
        assert tensors["model.norm.weight"] == ("", (72,))
        assert "model.embed_tokens.weight" not in tensors
    assert int8["model.embed_tokens.weight.codes"] == ("I8", (100, 128))
    assert int8["model.embed_tokens.weight.scales"] == ("F16", (100, 2))
    assert {name: int4[name] for name in int4 if "embed" in name} == {
        name: int8[name] for name in int8 if "embed" in name
    }
    down = "model.layers.0.mlp.down_proj.weight"
    assert int4[f"{down}.codes"] == ("U8", (72, 48))
    assert int4[f"{down}.minimums"] == ("F16", (72, 3))
    assert f"{down}.minimums" not in int8
    matrices = sum(len(shape) == 2 for shape in expected_tensors(whole).values())
    assert all(sum(name.endswith(".codes") for name in tensors) == matrices for tensors in (int8, int4))
