"""Tokenizer files for the tests: byte-level, and the Llama 2 kind with byte fallback."""

import json
import os
from pathlib import Path
from typing import Any

from tests.tiny_models import make_tiny_llama

BUNDLED = Path(os.environ.get("PAGODA_HOME", "var")) / "models" / "smollm2-135m-instruct"
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def byte_level(folder: Path) -> Path:
    """A tiny model folder: ids 0-2 special, 3-258 bytes, then pairs of letters."""
    return make_tiny_llama(folder, hidden_size=16, intermediate_size=16, num_layers=1, num_heads=1, num_kv_heads=1)


def llama_2_json() -> dict[str, Any]:
    """A tokenizer of the Llama 2 kind: ▁ for spaces, bytes as <0xE2>, a begin-of-text token in front."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"abcdehlot<>/s"]
    merges = [["▁", "a"], ["l", "l"], ["▁", "t"], ["h", "e"], ["▁t", "he"], ["▁", "▁"]]
    words += ["".join(merge) for merge in merges]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": number, "content": words[number], **flags} for number in range(3)],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            ],
        },
        "pre_tokenizer": None,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": "<unk>",
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": {word: number for number, word in enumerate(words)},
            "merges": merges,
        },
    }


def llama_2(folder: Path) -> Path:
    """A folder with the tokenizer of :func:`llama_2_json`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(llama_2_json()))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    (folder / "chat_template.jinja").write_text(
        "{{ bos_token }}{% for message in messages %}{{ message.content | trim }}{{ eos_token }}{% endfor %}"
    )
    return folder
