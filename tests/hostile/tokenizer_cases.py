"""Hostile tokenizers: files on which the library aborts, panics, loops, truncates or grows without end."""

import json
from pathlib import Path
from typing import Any

from dataplane.inspect.names import CONFIG, TOKENIZER
from tests.hostile.case import ACCEPTED, EITHER, Case, Change, cases, change, write
from tests.text import tokenizer_files


def sequence(kind: str, parts: list[Any]) -> dict[str, Any]:
    return {"type": "Sequence", kind: parts}


def nested(depth: int) -> dict[str, Any]:
    return sequence("normalizers", [nested(depth - 1)] if depth else [])


def split(pattern: dict[str, str]) -> dict[str, Any]:
    return {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}


def processing(single: list[Any], tokens: dict[str, Any]) -> dict[str, Any]:
    return {"type": "TemplateProcessing", "single": single, "pair": [PROMPT, ANSWER], "special_tokens": tokens}


def replacing(old: str, new: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": old}, "content": new}


PROMPT = {"Sequence": {"id": "A", "type_id": 0}}
ANSWER = {"Sequence": {"id": "B", "type_id": 1}}
BEGIN = {"SpecialToken": {"id": "<s>", "type_id": 0}}
ELSEWHERE = {"<s>": {"id": "<s>", "ids": [4_000_000_000], "tokens": ["<s>"]}}
FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
PADDING = {
    "strategy": {"Fixed": 400_000_000}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0,
    "pad_token": "<unk>",
}  # fmt: skip
STRIP_END = {"type": "Strip", "content": " ", "start": 0, "stop": 1}
FUSE = {"type": "Fuse"}

NOT_LISTED: dict[str, dict[str, Any]] = {
    "padding that aborts the process": {"padding": PADDING},
    "truncation": {"truncation": {"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 0}},
    "unknown field": {"auto_map": {}},
    "unknown version": {"version": "2.0"},
    "another model": {"model": {"type": "WordPiece", "vocab": {"a": 0}, "unk_token": "a"}},
    "no model": {"model": None},
    "model of a list": {"model": []},
    "no decoder": {"decoder": None},
    "decoder that cannot be streamed": {"decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True}},
    "decoders in another order": {"decoder": sequence("decoders", [FUSE, {"type": "ByteFallback"}])},
    "strip at the end": {"decoder": sequence("decoders", [FUSE, STRIP_END])},
    "text inserted without end": {"normalizer": replacing("a", "b" * 65)},
    "text that grows at each of 16 steps": {"normalizer": sequence("normalizers", [replacing("a", "a" * 64)] * 16)},
    "text that doubles in nested steps": {
        "normalizer": sequence("normalizers", [sequence("normalizers", [replacing("a", "aa")] * 16)] * 2)
    },
    "answers that grow at each of 15 steps": {
        "decoder": sequence("decoders", [*[replacing("a", "a" * 64)] * 15, FUSE])
    },
    "unknown normalizer": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
    "normalizer that lacks a field": {"normalizer": {"type": "Replace", "pattern": {"String": "a"}}},
    "normalizer of a number": {"normalizer": 7},
    "unhashable type": {"normalizer": {"type": ["NFC"]}},
    "deep sequence": {"normalizer": nested(5)},
    "long sequence": {"pre_tokenizer": sequence("pretokenizers", [{"type": "Whitespace"}] * 17)},
    "long pattern": {"pre_tokenizer": split({"Regex": "(" * 5000})},
    "pattern of two kinds": {"pre_tokenizer": split({"Regex": "a", "String": "a"})},
    "prompt twice": {"post_processor": processing([PROMPT, PROMPT], {})},
    "inserted name without a token": {"post_processor": processing([BEGIN, PROMPT], {})},
    "id of another token": {"post_processor": processing([BEGIN, PROMPT], ELSEWHERE)},
    "the same inside a sequence": {
        "post_processor": sequence("processors", [sequence("processors", [processing([BEGIN, PROMPT], ELSEWHERE)])])
    },
    "added token under a wrong id": {"added_tokens": [{"id": 7, "content": "<s>", **FLAGS}]},
    "added token twice": {"added_tokens": [{"id": 1, "content": "<s>", **FLAGS}] * 2},
    "added token of a gap": {"added_tokens": [{"id": 10**6, "content": "<new>", **FLAGS}]},
    "added token without flags": {"added_tokens": [{"id": 1, "content": "<s>"}]},
    "added tokens of an object": {"added_tokens": {}},
}
"""Changes of the Llama 2 kind of tokenizer.json, each refused before the library sees it."""

CONTRADICTIONS: list[tuple[str, object]] = [
    ("vocab", {"a": 0, "b": 0}),
    ("vocab", {"a": -1}),
    ("vocab", {"a": 2**32}),
    ("vocab", {"a": True}),
    ("vocab", {}),
    ("vocab", {"": 0}),
    ("vocab", []),
    ("merges", [["a", "zzz"]]),
    ("merges", ["a"]),
    ("merges", ["a b c"]),
    ("merges", [["a", "b"]]),
    ("merges", [[1, 2]]),
    ("merges", {"a": "b"}),
    ("dropout", 0.5),
    ("dropout", False),
    ("unk_token", "?"),
    ("continuing_subword_prefix", "##"),
    ("end_of_word_suffix", "</w>"),
    ("byte_fallback", 1),
    ("cache_capacity", 0),
]
"""Fields of its model, each refused in the same way."""


def llama(**changes: Any) -> Change:
    """The Llama 2 kind of tokenizer, changed."""
    return lambda model: (model / TOKENIZER).write_text(json.dumps(tokenizer_files.llama_2_json() | changes))


def bpe(field: str, value: object) -> Change:
    """Its model, changed in one field."""
    content = tokenizer_files.llama_2_json()
    content["model"][field] = value
    return llama(model=content["model"])


def splitting(pattern: str) -> Change:
    return llama(pre_tokenizer=split({"Regex": pattern}))


def without_bytes(model: Path) -> None:
    """A byte-level vocabulary that lacks most bytes and has no unknown token: such text would vanish."""
    content = json.loads((model / TOKENIZER).read_text())
    kept = [*[token["content"] for token in content["added_tokens"]], *"abcdefgh"]
    content["model"] |= {"vocab": {word: number for number, word in enumerate(kept)}, "merges": []}
    (model / TOKENIZER).write_text(json.dumps(content))


def with_token_320(*, special: bool, begins: bool = False) -> Change:
    """One token more than the model has embeddings; ``begins``: every text begins with it."""

    def add(model: Path) -> None:
        content = json.loads((model / TOKENIZER).read_text())
        content["added_tokens"].append({"id": 320, "content": "<extra>", **FLAGS, "special": special})
        if begins:
            piece = {"SpecialToken": {"id": "<extra>", "type_id": 0}}
            named = {"<extra>": {"id": "<extra>", "ids": [320], "tokens": ["<extra>"]}}
            content["post_processor"] = processing([piece, PROMPT], named)
        (model / TOKENIZER).write_text(json.dumps(content))

    return add


TRIED: dict[str, tuple[Change, str | None]] = {
    "pattern that is none": (splitting("(["), "trying it|the library fails"),
    "pattern of an unknown group": (splitting(r"\k<nothing>"), "trying it|the library fails"),
    "pattern of an open class": (splitting("[a-"), "trying it|the library fails"),
    "pattern that counts to a million": (splitting("(?:a{1,30000}){1,30000}"), EITHER),
    "pattern that backtracks": (splitting("(?:a+)+$|(?:a|aa)+$"), EITHER),
    "pattern that backtracks by reference": (splitting(r"(a*)*\1*b"), EITHER),
    "pattern of nothing": (splitting("()"), EITHER),
    "pattern that recurses": (splitting(r"(?<x>a\g<x>?b|\g<x>)"), "trying it|the library fails"),
    "patterns nested": (splitting("(?:" * 600 + "a" + ")*" * 600), EITHER),
    "bytes that vanish": (without_bytes, EITHER),
    "tokens without embeddings": (change(CONFIG, vocab_size=319), "embeddings"),
    "an added token without an embedding": (with_token_320(special=False), "embeddings"),
    "a control token without an embedding": (with_token_320(special=True), ACCEPTED),
    "a begin of text without an embedding": (with_token_320(special=True, begins=True), "the token 320"),
    "Llama 2's own": (llama(), ACCEPTED),
}

TOO_MANY = "more than 4194304 values"
BOMBS: dict[str, tuple[Change, str | None]] = {
    "33 MB": (write(TOKENIZER, b'{"a":"' + b"x" * 34_000_000 + b'"}'), "limit"),
    "32 MiB of lists": (write(TOKENIZER, b'{"a":[' + b"[]," * 11_000_000 + b"1]}"), TOO_MANY),
    "numbers": (write(TOKENIZER, b'{"a":[' + b"1," * 16_000_000 + b"1]}"), TOO_MANY),
    "lists in lists": (write(TOKENIZER, b'{"a":[' + b"[[[[[[[[]]]]]]]]," * 1_900_000 + b"1]}"), TOO_MANY),
    "objects": (write(TOKENIZER, b'{"a":[' + b"{}," * 11_000_000 + b"1]}"), TOO_MANY),
    "empty merges": (write(TOKENIZER, b'{"model":{"merges":[' + b'"",' * 8_000_000 + b'""]}}'), TOO_MANY),
    "fewer numbers": (write(TOKENIZER, b'{"a":[' + b"1," * 4_000_000 + b"1]}"), "not known"),
}

CASES: list[Case] = [
    *cases("tokenizer", {name: (llama(**changes), TOKENIZER) for name, changes in NOT_LISTED.items()}),
    *cases("tokenizer", {
        f"{field} {str(value)[:30]}": (bpe(field, value), TOKENIZER) for field, value in CONTRADICTIONS[::3]
    }),
    *cases("tokenizer tried", TRIED),
    *cases("tokenizer bomb", BOMBS),
]  # fmt: skip
