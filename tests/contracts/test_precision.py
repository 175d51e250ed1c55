"""In which precision a replica runs, by its settings and its folder."""

import pytest
from domain import CONFIG
from msgspec.structs import replace

from dataplane.contracts import precision
from dataplane.contracts.catalog import EngineSettings


@pytest.mark.parametrize(
    ("quantisation", "dtype", "kv_dtype", "weights", "keys_and_values"),
    [
        ("", "fp32", "auto", "fp32", "fp32"),
        ("", "bf16", "auto", "bf16", "bf16"),
        ("", "bf16", "int8", "bf16", "int8"),
        ("", "int8", "auto", "int8", "fp16"),
        ("", "int4", "fp32", "int4", "fp32"),
        ("int8", "fp32", "auto", "int8", "fp16"),
        ("int4", "int4", "bf16", "int4", "bf16"),
        ("kv-int8", "fp16", "auto", "fp16", "int8"),
        ("kv-int8", "int4", "auto", "int4", "int8"),
        ("kv-int8", "fp16", "fp16", "fp16", "fp16"),
    ],
)
def test_a_quantised_folder_keeps_its_weights_and_auto_follows(quantisation, dtype, kv_dtype, weights, keys_and_values):
    config, engine = replace(CONFIG, quantisation=quantisation), EngineSettings(dtype=dtype, kv_dtype=kv_dtype)
    assert precision.of_weights(config, engine) == weights
    assert precision.of_keys_and_values(config, engine) == keys_and_values
    assert precision.conflict(config, engine) == ""


@pytest.mark.parametrize(("quantisation", "dtype"), [("int8", "int4"), ("int4", "int8")])
def test_quantised_weights_are_not_quantised_again(quantisation, dtype):
    reason = precision.conflict(replace(CONFIG, quantisation=quantisation), EngineSettings(dtype=dtype))
    assert f"are {quantisation} already" in reason
    assert f"Choose {quantisation}" in reason
