"""Hostile texts: configs of absurd size, JSON of two readings, documents with scripts and NUL."""

import random
from pathlib import Path

from dataplane.inspect.names import CHAT_TEMPLATE, CONFIG, GENERATION_CONFIG, SPECIAL_TOKENS, TOKENIZER, WEIGHTS
from dataplane.inspect.names import TOKENIZER_CONFIG as SETTINGS
from tests.hostile.case import ACCEPTED, EITHER, Case, Change, cases, change, write

CONFIGS: dict[str, dict[str, object]] = {
    "a billion layers": {"num_hidden_layers": 10**9},
    "no layers": {"num_hidden_layers": 0},
    "negative layers": {"num_hidden_layers": -1},
    "layers of 2^64": {"num_hidden_layers": 2**64},
    "layers of a thousand digits": {"num_hidden_layers": 10**1000},
    "true layers": {"num_hidden_layers": True},
    "layers in a text": {"num_hidden_layers": "2"},
    "half a layer": {"num_hidden_layers": 1.0},
    "layers in a list": {"num_hidden_layers": [1]},
    "width of 2^31": {"hidden_size": 2**31},
    "vocabulary of 2^40": {"vocab_size": 2**40},
    "no heads": {"num_attention_heads": 0},
    "a million heads": {"num_attention_heads": 10**6},
    "more heads of keys": {"num_key_value_heads": 10**6},
    "odd head": {"head_dim": 15},
    "wide head": {"head_dim": 2**20},
    "context of 2^40": {"max_position_embeddings": 2**40},
    "no epsilon": {"rms_norm_eps": 0},
    "epsilon of a text": {"rms_norm_eps": "1e-5"},
    "theta of 1e300": {"rope_theta": 1e300},
    "theta below nothing": {"rope_theta": -1.0},
    "scaled positions": {"rope_scaling": {"rope_type": "yarn", "factor": 1e9}},
    "positions of a text": {"rope_scaling": "linear"},
    "two thetas": {"rope_theta": 1.0, "rope_parameters": {"rope_type": "default", "rope_theta": 2.0}},
    "another family": {"model_type": "bert"},
    "family with NUL": {"model_type": "llama\0"},
    "family of a list": {"model_type": ["llama"]},
    "another class": {"architectures": ["EvilForCausalLM"]},
    "another activation": {"hidden_act": "__import__('os').system('id')"},
    "window": {"sliding_window": 1},
    "auto_map": {"auto_map": {"AutoModelForCausalLM": "modeling_evil.Evil"}},
    "auto_map of another repository": {"auto_map": {"AutoConfig": "mallory/evil--configuration.Evil"}},
    "trust_remote_code": {"trust_remote_code": True},
    "quantisation": {"quantization_config": {"quant_method": "evil", "modules": "os.system"}},
    "unknown field": {"moe_router": 2},
    "unknown field of markup": {"<img src=x onerror=alert(1)>": 1},
    "million ends": {"eos_token_id": list(range(10**4))},
    "end out of range": {"eos_token_id": 10**9},
    "end below nothing": {"eos_token_id": -1},
    "beginning of a text": {"bos_token_id": "1"},
    "dtype of 8 bits": {"torch_dtype": "float8_e4m3fn"},
    "two dtypes": {"torch_dtype": "float32", "dtype": "float16"},
    "ties that are a number": {"tie_word_embeddings": 1},
}


def replaced(name: str, old: bytes, new: bytes) -> Change:
    """Change the first bytes ``old`` of a file."""

    def apply(model: Path) -> None:
        raw = (model / name).read_bytes()
        assert old in raw
        (model / name).write_bytes(raw.replace(old, new, 1))

    return apply


def behind_brace(name: str, text: bytes) -> Change:
    """Put a first field into a JSON object."""
    return replaced(name, b"{", b"{" + text + b",")


def again(name: str, encoding: str) -> Change:
    return lambda model: (model / name).write_bytes((model / name).read_text().encode(encoding))


def appended(name: str, tail: bytes) -> Change:
    return lambda model: (model / name).write_bytes((model / name).read_bytes() + tail)


ODDITIES: dict[str, bytes] = {
    "NaN": b'"x":NaN',
    "infinity": b'"x":-Infinity',
    "1e999": b'"x":1e999',
    "a key twice": b'"x":1,"x":2',
    "a key twice by an escape": b'"x":1,"\\u0078":2',
    "lone surrogate": b'"x":"\\ud800"',
    "lone surrogate as a key": b'"\\udc00":1',
    "surrogate in UTF-8": b'"x":"\xed\xa0\x80"',
    "overlong UTF-8": b'"x":"\xc0\xaf"',
    "bare NUL": b'"x":"\0"',
    "comment": b'/* x */ "x":1',
    "single quotes": b"'x':1",
    "hexadecimal": b'"x":0x10',
    "deep lists": b'"x":' + b"[" * 60_000 + b"]" * 60_000,
    "deep objects": b'"x":' + b'{"a":' * 20_000 + b"1" + b"}" * 20_000,
}
_JSON_FILES = (CONFIG, TOKENIZER, SETTINGS, GENERATION_CONFIG)

JSON: dict[str, tuple[Change, str | None]] = {
    **{
        f"{kind} in {name}": (behind_brace(name, text), name)
        for number, (kind, text) in enumerate(ODDITIES.items())
        for name in (_JSON_FILES[number % 4], _JSON_FILES[(number + 1) % 4])
    },
    **{f"{name} in UTF-16": (again(name, "utf-16"), name) for name in _JSON_FILES[:2]},
    f"{CONFIG} with a byte order mark": (again(CONFIG, "utf-8-sig"), CONFIG),
    f"{CONFIG} and another": (appended(CONFIG, b'{"auto_map": 1}'), CONFIG),
    **{f"list as {name}": (write(name, b"[]"), name) for name in _JSON_FILES},
    f"number as {SPECIAL_TOKENS}": (write(SPECIAL_TOKENS, b"1"), SPECIAL_TOKENS),
    "config of 300 kB": (appended(CONFIG, b" " * 300_000), "limit"),
    "settings of 5 MB": (appended(SETTINGS, b" " * 5_000_000), "limit"),
    "settings full of junk": (write(SETTINGS, b'{"a":[' + b"[]," * 600_000 + b"1]}"), ACCEPTED),
    "settings with code": (change(SETTINGS, auto_map={"AutoTokenizer": ["evil.Evil", None]}), "auto_map"),
    "special tokens with code": (write(SPECIAL_TOKENS, b'{"auto_map":{"a":"b.c"}}'), "auto_map"),
    "special token with NUL": (change(SETTINGS, bos_token="\0"), EITHER),
    "special token of an object": (change(SETTINGS, bos_token={"content": {"a": 1}}), ACCEPTED),
    "end of text out of range": (change(GENERATION_CONFIG, eos_token_id=10**6), "eos_token_id"),
    "end of text of floats": (change(GENERATION_CONFIG, eos_token_id=[2.0]), "eos_token_id"),
}

_SCRIPT = "# <script>alert(1)</script>\n\n[x](javascript:alert(1)) <img src=x onerror=alert(1)> ![x](//evil/x)\n"
_LAUGHS = "---\na: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{b}: &{b} [{','.join(['*' + a] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
_CARD = "---\nlicense: <script>alert(1)</script>\nbase_model: ../../etc\ntags:\n- '{{7*7}}'\n- ok\n---\n# hi\n"

DOCUMENTS: dict[str, tuple[Change, str | None]] = {
    "script": (write("README.md", _SCRIPT), ACCEPTED),
    "script in the licence": (write("LICENSE", _SCRIPT), ACCEPTED),
    "front matter of scripts": (write("README.md", _CARD), ACCEPTED),
    "a billion laughs": (write("README.md", _LAUGHS + "---\n# hi"), ACCEPTED),
    "front matter without end": (write("README.md", "---\n" + "tags:\n" + "- x\n" * 100_000), ACCEPTED),
    "front matter of objects": (write("README.md", "---\n!!python/object/apply:os.system ['id']\n---\n"), ACCEPTED),
    "megabyte of README": (write("README.md", "é" * 500_000), ACCEPTED),
    "two megabytes of README": (write("README.md", "x" * 2_000_000), "limit"),
    "text from right to left": (write("README.md", "\u202egnp.exe\u202c\u2066\u200b\ufeff"), ACCEPTED),
    "control characters": (write("README.md", "\x1b[2J\x07\x08\x9b31m"), ACCEPTED),
    "NUL in README": (write("README.md", "a\0b"), "NUL"),
    "NUL in LICENSE": (write("LICENSE", "MIT\0"), "NUL"),
    "README of bytes": (write("README.md", b"\xff\xfe\x00"), "UTF-8"),
    "README in UTF-16": (write("README.md", "# hi".encode("utf-16")), "UTF-8"),
    "surrogate in README": (write("README.md", b"\xed\xa0\x80"), "UTF-8"),
    "overlong README": (write("README.md", b"\xc0\xaf"), "UTF-8"),
    "LICENSE of bytes": (write("LICENSE", bytes(range(128, 256))), "UTF-8"),
}


def flipped(name: str, seed: int) -> Change:
    """Flip one bit anywhere in a file."""

    def apply(model: Path) -> None:
        raw = bytearray((model / name).read_bytes())
        draw = random.Random(seed)
        end = 8 + int.from_bytes(raw[:8], "little") if name == WEIGHTS else len(raw)  # of weights, in the header
        raw[draw.randrange(end)] ^= 1 << draw.randrange(8)
        (model / name).write_bytes(raw)

    return apply


_FLIPPED = (WEIGHTS, CONFIG, TOKENIZER, SETTINGS, CHAT_TEMPLATE)

CASES: list[Case] = [
    *cases("config", {name: (change(CONFIG, **fields), CONFIG) for name, fields in CONFIGS.items()}),
    *cases("JSON", JSON),
    *cases("documents", DOCUMENTS),
    *cases("bit flips", {f"{name} {seed}": (flipped(name, seed), EITHER) for name in _FLIPPED for seed in range(4)}),
]  # fmt: skip
