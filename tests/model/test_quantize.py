"""A quantised folder holds the codes that its source is packed to, and is taken and refused as any folder is."""

import json
import re
from pathlib import Path

import pytest
import torch
from model_harness import generate, ignore_progress, load_model, poisoned_runner
from safetensors.torch import load_file, save_file
from tiny_models import CONFIGS, make_tiny, make_tiny_llama

from dataplane.contracts.catalog import EngineSettings
from dataplane.inspect.inspection import inspect
from dataplane.kernels import panels
from dataplane.model import quantize as command
from dataplane.model.loader import LoadError, load
from dataplane.model.program import Embed, Linear
from dataplane.model.quantize import QuantizeError, quantize

SHAPES = {
    "plain": {},
    "tied_bf16": {"tied_embeddings": True, "dtype": "bf16"},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "odd_widths": {"intermediate_size": 100, "vocab_size": 333, "hidden_size": 72, "head_dim": 24},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_tiny_llama(tmp_path / "model", seed=3)


@pytest.mark.parametrize("scheme", ["int8", "int4"])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_codes_are_those_that_the_source_is_packed_to_bit_for_bit(shape: str, scheme: str, tmp_path: Path) -> None:
    source, made = make_tiny_llama(tmp_path / "model", seed=1, **SHAPES[shape]), tmp_path / "made"
    quantize(source, made, scheme)
    ours, direct = load_model(made, tmp_path / "r"), load_model(source, tmp_path / "r", scheme)
    assert (ours.dtype, ours.kv_dtype) == (scheme, "fp16")
    assert ours.weights.matrices.keys() == direct.weights.matrices.keys()
    for name, (packed, *what) in direct.weights.matrices.items():
        assert ours.weights.matrices[name][1:] == tuple(what)
        assert torch.equal(ours.weights.matrices[name][0], packed), name
    for name, vector in direct.weights.vectors.items():
        assert torch.equal(ours.weights.vectors[name], vector), name


@pytest.mark.parametrize("scheme", ["int8", "int4"])
def test_another_reader_finds_the_values_where_the_layout_says(folder: Path, tmp_path: Path, scheme: str) -> None:
    quantize(folder, tmp_path / "made", scheme)
    stored = load_file(tmp_path / "made" / "model.safetensors")
    name = "model.layers.1.mlp.down_proj.weight"
    matrix = load_file(folder / "model.safetensors")[name]
    codes, scales = stored[f"{name}.codes"], stored[f"{name}.scales"].float()[..., None]
    if scheme == "int8":
        values = codes.view(64, -1, 64) * scales
    else:
        each = torch.stack((codes % 16, codes // 16), dim=-1).view(64, -1, 32)
        values = stored[f"{name}.minimums"].float()[..., None] + each * scales
    found = panels.unpack(panels.pack(matrix, scheme), scheme, *matrix.shape)
    torch.testing.assert_close(values.flatten(1)[:, :96], found, rtol=0, atol=1e-6)
    assert torch.equal(stored["model.norm.weight"], load_file(folder / "model.safetensors")["model.norm.weight"])


@pytest.mark.parametrize("scheme", ["int8", "int4", "kv-int8"])
def test_the_inspector_accepts_it_as_the_model_it_was_made_of(folder: Path, tmp_path: Path, scheme: str) -> None:
    made = tmp_path / "made"
    quantize(folder, made, scheme)
    verdict, before = inspect(str(made)), inspect(str(folder))
    assert not verdict.refusals
    assert verdict.config is not None
    assert before.config is not None
    assert verdict.config.quantisation == scheme
    assert verdict.num_parameters == before.num_parameters
    assert (verdict.weight_bytes < before.weight_bytes / 2) == (scheme != "kv-int8")
    vocabulary = {"vocabulary": "int8"} if scheme == "int4" else {}
    assert json.loads((made / "config.json").read_text())["quantization_config"] == {
        "quant_method": "pagoda", "scheme": scheme, **vocabulary,
    }  # fmt: skip
    same = {path.name for path in folder.iterdir()} - {"config.json", "model.safetensors"}
    assert all((made / name).read_bytes() == (folder / name).read_bytes() for name in same)


def test_a_folder_that_wants_its_keys_and_values_in_int8_gets_them_unless_told_otherwise(
    folder: Path, tmp_path: Path
) -> None:
    quantize(folder, tmp_path / "made", "kv-int8")
    loaded = load_model(tmp_path / "made", tmp_path / "r")
    assert (loaded.dtype, loaded.kv_dtype) == ("fp32", "int8")
    settings = EngineSettings(dtype="int8", kv_dtype="bf16")
    other = load(tmp_path / "made", tmp_path / "r", settings, ignore_progress)
    assert (other.dtype, other.kv_dtype) == ("int8", "bf16")
    prompts = [[5, 6, 7, 8], list(range(30, 50))]
    plain = generate(poisoned_runner(load_model(folder, tmp_path / "r"), 16), prompts, 12, num_blocks=16)
    assert [len(tokens) for tokens in generate(loaded.make_runner(16, 8, 64, 4), prompts, 12, num_blocks=16)] == [
        12,
        12,
    ]
    assert [len(tokens) for tokens in plain] == [12, 12]


def test_what_cannot_be_quantised_is_refused_and_leaves_nothing_behind(folder: Path, tmp_path: Path) -> None:
    made = tmp_path / "made"
    quantize(folder, made, "int8")
    for source, target, why in (
        (folder, made, "exists already"),
        (made, tmp_path / "again", "quantised already"),
        (tmp_path / "nowhere", tmp_path / "again", "not a model folder"),
    ):
        with pytest.raises(QuantizeError, match=why):
            quantize(source, target, "int4")
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.1.mlp.down_proj.weight"][3, 5] = 1e9
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(QuantizeError, match=r"layers\.1\.mlp\.down_proj\.weight.*too large for int8"):
        quantize(folder, tmp_path / "again", "int8")
    assert {path.name for path in tmp_path.iterdir()} == {"model", "made"}


@pytest.mark.parametrize("family", ["llama", *CONFIGS])
def test_int4_is_for_layers_and_what_reads_and_writes_tokens_is_int8(family: str, tmp_path: Path) -> None:
    made = make_tiny_llama(tmp_path / "model") if family == "llama" else make_tiny(tmp_path / "model", family)
    loaded = load_model(made, tmp_path / "r", "int4")
    linears = [one for one in loaded.program.operations if isinstance(one, Linear)]
    of_tokens = {one.weight for one in loaded.program.operations if isinstance(one, Embed)}
    of_tokens |= {one.weight for one in linears if one.target == "logits"}
    precisions = {name: precision for name, (_, precision, _, _) in loaded.weights.matrices.items()}
    assert {name for name, precision in precisions.items() if precision == "int8"} == of_tokens
    assert {precisions[name] for name in precisions.keys() - of_tokens} == {"int4"}
    assert loaded.dtype == "int4"


def test_a_folder_whose_vocabulary_is_in_int4_too_is_refused(folder: Path, tmp_path: Path) -> None:
    """Such folders were made before embeddings and head became int8."""
    made = tmp_path / "made"
    quantize(folder, made, "int4")
    config = json.loads((made / "config.json").read_text())
    del config["quantization_config"]["vocabulary"]
    (made / "config.json").write_text(json.dumps(config))
    with pytest.raises(LoadError, match=r"embeddings and head are in int4.*Quantise the original again"):
        load_model(made, tmp_path / "r")
    (refusal,) = inspect(str(made)).refusals
    assert "embeddings and head are in int4" in refusal.reason


def test_weights_in_one_scheme_are_not_run_in_another(folder: Path, tmp_path: Path) -> None:
    quantize(folder, tmp_path / "made", "int8")
    with pytest.raises(LoadError, match=r"are int8 already.*Choose int8"):
        load_model(tmp_path / "made", tmp_path / "r", "int4")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda tensors: tensors.pop("model.norm.weight"), "lack model.norm.weight"),
        (lambda tensors: tensors.pop("lm_head.weight.scales"), "lack lm_head.weight.scales"),
        (lambda tensors: tensors.update({"lm_head.weight": torch.ones(320, 64)}), "does not ask for|ties it"),
        (
            lambda tensors: tensors.update({"lm_head.weight.codes": torch.ones(320, 64, dtype=torch.uint8)}),
            "dtype U8, and it is I8",
        ),
        (lambda tensors: tensors.update({"lm_head.weight.scales": torch.ones(320, 1)}), "dtype F32, and it is F16"),
        (
            lambda tensors: tensors.update({"lm_head.weight.codes": torch.ones(320, 63, dtype=torch.int8)}),
            r"shape \[320, 63\]",
        ),
        (lambda tensors: tensors["lm_head.weight.scales"].fill_(torch.inf), "NaN or infinite"),
        (lambda tensors: tensors.update({"model.norm.weight": torch.ones(64, dtype=torch.int8)}), "dtype .I8"),
    ],
)
def test_a_tensor_that_is_not_as_the_layout_has_it_is_refused(change, why, folder: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    made = tmp_path / "made"
    quantize(folder, made, "int8")
    tensors = load_file(made / "model.safetensors")
    change(tensors)
    save_file(tensors, made / "model.safetensors")
    reasons = [f"{refusal.reason}" for refusal in inspect(str(made)).refusals]
    assert len(reasons) == 1
    assert re.search(why, reasons[0]), reasons


def test_the_command_says_what_it_made_and_why_it_could_not(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = tmp_path / "made"
    monkeypatch.setattr("sys.argv", ["quantize", str(folder), str(made), "--scheme", "int4"])
    assert command.main() == 0
    assert "model in int4" in capsys.readouterr().out
    assert command.main() == 1
    assert "exists already" in capsys.readouterr().err
