"""Good models: none of them may be refused."""

import json
from collections.abc import Callable
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from dataplane.inspect.names import CHAT_TEMPLATE, CONFIG, GENERATION_CONFIG, SPECIAL_TOKENS, TOKENIZER, WEIGHTS
from dataplane.inspect.names import TOKENIZER_CONFIG as SETTINGS
from tests.hostile.architecture_cases import other, renamed_tensors
from tests.hostile.case import Change, both, change, edit, remove, write
from tests.hostile.weights_cases import split_weights
from tests.text import tokenizer_files
from tests.tiny_models import make_tiny_llama, write_safetensors

SMALL: dict[str, Any] = {
    "hidden_size": 16, "intermediate_size": 16, "num_layers": 1, "num_heads": 2, "num_kv_heads": 1, "head_dim": 8,
}  # fmt: skip
LARGE = 1 << 18
_CARD = "---\nlicense: apache-2.0\nlanguage:\n- en\n- fr\nbase_model: acme/base\n---\n# Tiny\n\n<b>Hello</b> é\n"


def llama_2_tokenizer(model: Path) -> None:
    content = tokenizer_files.llama_2_json()
    (model / TOKENIZER).write_text(json.dumps(content))
    edit(model / SETTINGS, bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token=None)
    (model / CHAT_TEMPLATE).write_text(
        "{% for m in messages %}{% if m.role == 'user' %}{{ bos_token }}[INST] {{ m.content | trim }} [/INST]"
        "{% elif m.role == 'assistant' %} {{ m.content | trim }}{{ eos_token }}"
        "{% else %}{{ raise_exception('Only user and assistant roles are supported.') }}{% endif %}{% endfor %}"
    )


def template_in_settings(model: Path) -> None:
    source = (model / CHAT_TEMPLATE).read_text()
    (model / CHAT_TEMPLATE).unlink()
    edit(model / SETTINGS, chat_template=source)


_MASKS = {f"h.{layer}.attn.bias": np.tri(128, dtype=np.float32)[None, None] for layer in range(2)}
_BUFFERS = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(4, dtype=np.float32)}


def as_transformers_5(model: Path) -> None:
    """Positions and dtype under their newer names."""
    content = json.loads((model / CONFIG).read_text())
    content["rope_parameters"] = {"rope_type": "default", "rope_theta": content.pop("rope_theta")}
    content["dtype"] = content.pop("torch_dtype")
    del content["rope_scaling"]
    (model / CONFIG).write_text(json.dumps(content))


def large_vocabulary(model: Path) -> None:
    """As many tokens as the largest vocabularies of today have, and 600,000 merges."""
    content = tokenizer_files.llama_2_json()
    vocab = content["model"]["vocab"]
    words = [
        "".join(letters) for length in (1, 2, 3, 4) for letters in product("abcdefghijklmnopqrstuvw", repeat=length)
    ]
    for word in words:
        if len(vocab) == LARGE:
            break
        vocab.setdefault(word, len(vocab))
    merges = ([word[:cut], word[cut:]] for word in words if word in vocab for cut in range(1, len(word)))
    content["model"]["merges"] = list(islice(merges, 600_000))
    (model / TOKENIZER).write_text(json.dumps(content, indent=1))
    edit(model / CONFIG, vocab_size=LARGE)
    weights = load_file(model / WEIGHTS)
    write_safetensors(model / WEIGHTS, weights | {"model.embed_tokens.weight": np.ones((LARGE, 16), dtype=np.float32)})


def shards(count: int) -> Callable[[Path], object]:
    return lambda model: split_weights(model, count)


def nothing(_model: Path) -> None:
    pass


GOOD: dict[str, tuple[dict[str, Any], Change]] = {
    "grouped queries": ({"num_heads": 4, "num_kv_heads": 2}, nothing),
    "one head of keys": ({"num_heads": 4, "num_kv_heads": 1}, nothing),
    "a head of keys for each": ({"num_heads": 2, "num_kv_heads": 2}, nothing),
    "tied": ({"tied_embeddings": True}, nothing),
    "attention biased": ({"attention_bias": True}, nothing),
    "all biased": ({"attention_bias": True, "mlp_bias": True}, nothing),
    "fp16": ({"dtype": "fp16"}, nothing),
    "bf16": ({"dtype": "bf16"}, nothing),
    "bf16, tied, in shards": ({"dtype": "bf16", "tied_embeddings": True}, shards(2)),
    "fp16 in three shards": ({"dtype": "fp16"}, shards(3)),
    "fp32 in a shard for each tensor": ({}, shards(12)),
    "deep": ({"num_layers": 6}, nothing),
    "wide heads": ({"head_dim": 32}, nothing),
    "of some megabytes": ({"hidden_size": 256, "intermediate_size": 512, "num_layers": 2}, nothing),
    "without a template": ({}, remove(CHAT_TEMPLATE)),
    "with its template in the settings": ({}, template_in_settings),
    "with Llama 2's tokenizer": ({}, llama_2_tokenizer),
    "with a card and a licence": ({}, both(write("README.md", _CARD), write("LICENSE.txt", "MIT License\n\n..."))),
    "Mistral": ({}, other("mistral")),
    "Mistral without a window": ({}, other("mistral", sliding_window=None)),
    "Qwen2": ({}, other("qwen2")),
    "Qwen2, stretched by yarn": ({}, other("qwen2", rope_scaling={"type": "yarn", "factor": 4.0})),
    "Qwen3": ({}, other("qwen3", attention_bias=True)),
    "Gemma 2": ({}, other("gemma2")),
    "Gemma 3": ({}, other("gemma3_text", rope_scaling={"rope_type": "linear", "factor": 8.0})),
    "GPT-2": ({}, other("gpt2")),
    "GPT-2 with masks and short names": (
        {},
        other("gpt2", renamed_tensors(lambda name: name.removeprefix("transformer."), _MASKS)),
    ),
    "with frequencies beside the weights": ({}, renamed_tensors(str, _BUFFERS)),
    "as transformers 5 writes it": ({}, as_transformers_5),
    "with special tokens of their own": ({}, write(SPECIAL_TOKENS, '{"eos_token": {"content": "<|im_end|>"}}')),
    "with two ends of text": ({}, change(GENERATION_CONFIG, eos_token_id=[0, 2])),
    "without settings": ({}, both(remove(SETTINGS), remove(GENERATION_CONFIG))),
}


def make(folder: Path, options: dict[str, Any], then: Change) -> Path:
    """Write one good model."""
    make_tiny_llama(folder, **{**SMALL, **options})
    then(folder)
    return folder
