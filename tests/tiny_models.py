"""Tiny random models in the Hugging Face layout, for every test that needs a folder to serve. Torch-free and quick."""

import json
import math
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dataplane.contracts.model_config import expected_tensors, parse_config

EOS_TOKEN_ID = 2
_SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_NUM_BYTES = 256
_MIN_VOCAB = len(_SPECIAL_TOKENS) + _NUM_BYTES
_LETTERS = "etaoinshrdlucmfw"
_CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_DTYPES = {"fp32": ("F32", "float32"), "fp16": ("F16", "float16"), "bf16": ("BF16", "bfloat16")}


def make_tiny_llama(
    folder: Path,
    *,
    seed: int = 0,
    vocab_size: int = 320,
    hidden_size: int = 64,
    intermediate_size: int = 96,
    num_layers: int = 2,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    head_dim: int = 16,
    context_tokens: int = 512,
    rope_theta: float = 10_000.0,
    tied_embeddings: bool = False,
    attention_bias: bool = False,
    mlp_bias: bool = False,
    dtype: str = "fp32",
) -> Path:
    """Write a random Llama with its tokenizer and chat template to ``folder``, and return it.

    The weights are scaled so that the top two logits of a position rarely tie. The tokenizer is byte-level BPE: ids 0-2
    are special (2 ends a turn), 3-258 the bytes, the rest pairs of letters; at most 256 of those, so ``vocab_size`` is
    259 to 515. The same arguments give the same bytes.
    """
    if not _MIN_VOCAB <= vocab_size <= _MIN_VOCAB + len(_LETTERS) ** 2:
        raise ValueError(f"vocab_size must be between {_MIN_VOCAB} and {_MIN_VOCAB + len(_LETTERS) ** 2}")
    folder.mkdir(parents=True, exist_ok=True)
    st_dtype, config_dtype = _DTYPES[dtype]
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "intermediate_size": intermediate_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": context_tokens,
        "rms_norm_eps": 1e-5,
        "rope_theta": rope_theta,
        "rope_scaling": None,
        "tie_word_embeddings": tied_embeddings,
        "attention_bias": attention_bias,
        "attention_dropout": 0.0,
        "mlp_bias": mlp_bias,
        "bos_token_id": 1,
        "eos_token_id": EOS_TOKEN_ID,
        "initializer_range": 0.02,
        "torch_dtype": config_dtype,
        "use_cache": True,
    }
    q_size, kv_size = num_heads * head_dim, num_kv_heads * head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocab_size, hidden_size),
        "model.norm.weight": (hidden_size,),
    }
    if not tied_embeddings:
        shapes["lm_head.weight"] = (vocab_size, hidden_size)
    for layer in range(num_layers):
        prefix = f"model.layers.{layer}."
        shapes[prefix + "input_layernorm.weight"] = (hidden_size,)
        shapes[prefix + "post_attention_layernorm.weight"] = (hidden_size,)
        linears = {
            "self_attn.q_proj": (q_size, hidden_size, attention_bias),
            "self_attn.k_proj": (kv_size, hidden_size, attention_bias),
            "self_attn.v_proj": (kv_size, hidden_size, attention_bias),
            "self_attn.o_proj": (hidden_size, q_size, attention_bias),
            "mlp.gate_proj": (intermediate_size, hidden_size, mlp_bias),
            "mlp.up_proj": (intermediate_size, hidden_size, mlp_bias),
            "mlp.down_proj": (hidden_size, intermediate_size, mlp_bias),
        }
        for name, (rows, columns, bias) in linears.items():
            shapes[f"{prefix}{name}.weight"] = (rows, columns)
            if bias:
                shapes[f"{prefix}{name}.bias"] = (rows,)
    rng = np.random.default_rng(seed)
    tensors = {name: _random_tensor(rng, name, shape) for name, shape in sorted(shapes.items())}
    write_safetensors(folder / "model.safetensors", tensors, st_dtype)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    _write_tokenizer(folder, vocab_size, context_tokens)
    return folder


_DECODER: dict[str, object] = {
    "vocab_size": 320, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "eos_token_id": EOS_TOKEN_ID, "dtype": "float32",
}  # fmt: skip
CONFIGS: dict[str, dict[str, object]] = {
    "mistral": {**_DECODER, "architectures": ["MistralForCausalLM"], "sliding_window": 16},
    "qwen2": {
        **_DECODER, "architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True, "sliding_window": 16,
        "max_window_layers": 1, "tie_word_embeddings": True,
    },
    "qwen3": {**_DECODER, "architectures": ["Qwen3ForCausalLM"], "head_dim": 16},
    "gemma2": {
        **_DECODER, "architectures": ["Gemma2ForCausalLM"], "head_dim": 16, "query_pre_attn_scalar": 16,
        "sliding_window": 16,
    },
    "gemma3_text": {
        **_DECODER, "architectures": ["Gemma3ForCausalLM"], "head_dim": 16, "query_pre_attn_scalar": 16,
        "sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"], "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
    },
    "gpt2": {
        "architectures": ["GPT2LMHeadModel"], "vocab_size": 320, "n_embd": 32, "n_layer": 2, "n_head": 4,
        "n_positions": 128, "n_ctx": 128, "eos_token_id": EOS_TOKEN_ID, "dtype": "float32",
    },
}  # fmt: skip
"""A small config of each other family, by ``model_type``."""


def make_tiny(folder: Path, model_type: str, *, seed: int = 0, **fields: object) -> Path:
    """Write a random model of one of :data:`CONFIGS`, with ``fields`` changed, as :func:`make_tiny_llama` does."""
    folder.mkdir(parents=True, exist_ok=True)
    written = json.dumps({"model_type": model_type, **CONFIGS[model_type], **fields}, indent=2)
    config = parse_config(written.encode())
    rng = np.random.default_rng(seed)
    tensors = {name: _random_tensor(rng, name, shape) for name, shape in sorted(expected_tensors(config).items())}
    write_safetensors(folder / "model.safetensors", tensors)
    (folder / "config.json").write_text(written)
    _write_tokenizer(folder, config.vocab_size, config.context_tokens)
    return folder


def write_safetensors(path: Path, tensors: dict[str, npt.NDArray[np.float32]], st_dtype: str = "F32") -> None:
    """Write ``tensors`` as one safetensors file of ``st_dtype`` (F32, F16 or BF16)."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    bodies: list[bytes] = []
    offset = 0
    for name, tensor in tensors.items():
        body = _encode(tensor, st_dtype)
        header[name] = {"dtype": st_dtype, "shape": list(tensor.shape), "data_offsets": [offset, offset + len(body)]}
        bodies.append(body)
        offset += len(body)
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + b"".join(bodies))


def _random_tensor(rng: np.random.Generator, name: str, shape: Sequence[int]) -> npt.NDArray[np.float32]:
    noise = rng.standard_normal(shape, dtype=np.float32)
    if "norm" in name:
        return 1 + noise / 10
    if name.endswith("bias"):
        return noise / 10
    if name == "model.embed_tokens.weight":
        # small beside the layers' outputs, so that a tied head does not just repeat its input
        return noise * np.float32(0.3)
    gain = 3.0 if name == "lm_head.weight" else 1.0
    return noise * np.float32(gain / math.sqrt(shape[-1]))


def _encode(tensor: npt.NDArray[np.float32], st_dtype: str) -> bytes:
    if st_dtype == "BF16":
        bits = tensor.astype("<f4").view("<u4")
        rounded = bits + 0x7FFF + ((bits >> 16) & 1)
        return (rounded >> 16).astype("<u2").tobytes()
    return tensor.astype({"F32": "<f4", "F16": "<f2"}[st_dtype]).tobytes()


def _byte_characters() -> list[str]:
    """The printable stand-in of each byte in byte-level BPE (GPT-2)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(_NUM_BYTES, 2 * _NUM_BYTES))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(_NUM_BYTES)]


def _write_tokenizer(folder: Path, vocab_size: int, context_tokens: int) -> None:
    pairs = [(first, second) for first in _LETTERS for second in _LETTERS][: vocab_size - _MIN_VOCAB]
    words = [*_SPECIAL_TOKENS, *_byte_characters(), *(first + second for first, second in pairs)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": index, "content": word, **special} for index, word in enumerate(_SPECIAL_TOKENS)],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {word: index for index, word in enumerate(words)},
            "merges": [[first, second] for first, second in pairs],
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
        "pad_token": "<|im_end|>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": context_tokens,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))
    (folder / "generation_config.json").write_text(json.dumps({"bos_token_id": 1, "eos_token_id": EOS_TOKEN_ID}))
    (folder / "chat_template.jinja").write_text(_CHAT_TEMPLATE)
