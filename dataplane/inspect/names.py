"""The closed set of files that a model folder may have, and what to say about the others."""

import re

from dataplane.inspect.refusals import Refused

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
SPECIAL_TOKENS = "special_tokens_map.json"
CHAT_TEMPLATE = "chat_template.jinja"
WEIGHTS = "model.safetensors"
WEIGHTS_INDEX = "model.safetensors.index.json"
READMES = ("README.md", "README", "README.txt")
LICENSES = ("LICENSE", "LICENSE.md", "LICENSE.txt")
DOCUMENTS = frozenset({*READMES, *LICENSES})
REQUIRED = (CONFIG, TOKENIZER)

SHARD = re.compile(r"model-(?P<number>\d{5})-of-(?P<count>\d{5})\.safetensors", re.ASCII)

_FIXED = DOCUMENTS | {
    CONFIG, GENERATION_CONFIG, TOKENIZER, TOKENIZER_CONFIG, SPECIAL_TOKENS, CHAT_TEMPLATE, WEIGHTS, WEIGHTS_INDEX,
}  # fmt: skip

_TO_SAFETENSORS = "Save the model with save_pretrained(..., safe_serialization=True) and give the .safetensors files."
_OTHERS: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (
        (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib"),
        "it is a pickle, and loading a pickle runs code",
        _TO_SAFETENSORS,
    ),
    ((".py", ".pyc", ".so", ".sh", ".ipynb"), "no code of a model folder is ever run", "Leave it out."),
    ((".gguf", ".ggml"), "GGUF files are not read", "Give the original weights as safetensors in fp32, fp16 or bf16."),
    (
        (".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".zst", ".7z", ".rar"),
        "archives are not unpacked",
        "Give the files themselves.",
    ),
    (
        (".h5", ".msgpack", ".onnx", ".tflite", ".npz", ".npy", ".pb"),
        "weights of another framework are not read",
        _TO_SAFETENSORS,
    ),
    ((".safetensors",), "weights have one of two names", f"Name it {WEIGHTS}, or model-00001-of-0000N.safetensors."),
    ((".model",), "SentencePiece files are not read", f"Leave it out; {TOKENIZER} holds the tokenizer."),
)
_MEND_OTHER = "Leave it out; a model folder has config.json, tokenizer.json, safetensors and a few documents."

_CONTENT: tuple[tuple[int, bytes, str], ...] = (
    (0, b"PK\x03\x04", "a zip archive or a pickle of torch.save"),
    (0, b"PK\x05\x06", "a zip archive"),
    (0, b"\x1f\x8b", "a gzip archive"),
    (0, b"BZh", "a bzip2 archive"),
    (0, b"\xfd7zXZ\x00", "an xz archive"),
    (0, b"(\xb5/\xfd", "a zstandard archive"),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (0, b"Rar!", "a rar archive"),
    (257, b"ustar", "a tar archive"),
    (0, b"GGUF", "a GGUF file"),
    (0, b"\x7fELF", "a program"),
    (0, b"MZ", "a program"),
    (0, b"#!", "a script"),
    (0, b"\x89HDF", "an HDF5 file"),
    (0, b"%PDF", "a PDF"),
    (0, b"\x80\x02", "a pickle"),
    (0, b"\x80\x03", "a pickle"),
    (0, b"\x80\x04", "a pickle"),
    (0, b"\x80\x05", "a pickle"),
)
SNIFFED_BYTES = 512


def is_weights(name: str) -> bool:
    """Say whether ``name`` is that of a safetensors file, whole or a shard."""
    return name == WEIGHTS or SHARD.fullmatch(name) is not None


def check_name(name: str) -> None:
    """Check that a file of this name belongs in a model folder.

    Raises:
        Refused: it does not; the reason fits what it seems to be.
    """
    if name in _FIXED or is_weights(name):
        return
    for suffixes, reason, mend in _OTHERS:
        if name.lower().endswith(suffixes):
            raise Refused(reason, mend)
    raise Refused("it does not belong in a model folder", _MEND_OTHER)


def check_content(name: str, head: bytes) -> None:
    """Check that the first bytes of a file are not those of something else than its name says.

    Raises:
        Refused: they are.
    """
    for offset, magic, kind in _CONTENT:
        if is_weights(name) and len(magic) <= 3 and head[8:9] == b"{":
            continue  # two bytes of a header's length may be any; the header itself is read next
        if head[offset : offset + len(magic)] == magic:
            raise Refused(f"its content is {kind}, whatever its name says", _TO_SAFETENSORS)
