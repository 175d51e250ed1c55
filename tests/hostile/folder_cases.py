"""Hostile folders: pickles and archives under honest names, odd names, links, devices, files of enormous length."""

import bz2
import gzip
import io
import lzma
import os
import pickle
import socket
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from dataplane.inspect.names import CHAT_TEMPLATE, CONFIG, GENERATION_CONFIG, SPECIAL_TOKENS, TOKENIZER, WEIGHTS
from dataplane.inspect.names import TOKENIZER_CONFIG as SETTINGS
from tests.hostile.case import ACCEPTED, Case, Change, both, cases, remove, write
from tests.hostile.weights_cases import linked, shard_name, sharded


class Evil:
    """Unpickling this makes the marker file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return os.mkdir, (str(self.marker),)


def marker_of(model: Path) -> Path:
    return model.parent / "ran"


def zipped(content: bytes, name: str = "archive/data.pkl") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return buffer.getvalue()


def tarred(content: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        entry = tarfile.TarInfo("../../etc/cron.d/evil")
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


WRAPPINGS: dict[str, Callable[[bytes], bytes]] = {"bare": bytes, "zip": zipped, "tar": tarred, "gzip": gzip.compress}


def pickled(name: str, protocol: int, wrapping: str = "bare") -> Change:
    """Write a pickle that would leave the marker."""

    def apply(model: Path) -> None:
        content = pickle.dumps(Evil(marker_of(model)), protocol)
        (model / name).write_bytes(WRAPPINGS[wrapping](content))

    return apply


_PLACES = (WEIGHTS, CONFIG, TOKENIZER, SETTINGS, GENERATION_CONFIG, SPECIAL_TOKENS, "README.md", CHAT_TEMPLATE)
_OUTSIDE = (
    "pytorch_model.bin", "model.pt", "weights.pkl", "training_args.bin", "model.ckpt", "scaler.joblib", "a.pickle",
)  # fmt: skip

PICKLES: dict[str, tuple[Change, str | None]] = {
    **{f"protocol 4 as {name}": (pickled(name, 4), f"{name}: its content is a pickle") for name in _PLACES},
    **{f"torch.save as {name}": (pickled(name, 2, "zip"), f"{name}: its content is a zip") for name in _PLACES[:4]},
    **{f"protocol 0 as {name}": (pickled(name, 0), name) for name in _PLACES[:6]},
    "protocol 0 as README.md": (pickled("README.md", 0), ACCEPTED),  # a text, which nobody unpickles
    **{f"protocol {number} as {WEIGHTS}": (pickled(WEIGHTS, number), "a pickle") for number in (2, 3, 5)},
    "in a tar as README.md": (pickled("README.md", 4, "tar"), "a tar archive"),
    "in gzip as config.json": (pickled(CONFIG, 4, "gzip"), "a gzip archive"),
    "as a shard": (sharded(pickled(shard_name(1), 4)), "a pickle"),
    **{name: (pickled(name, 4), f"{name}: it is a pickle") for name in _OUTSIDE},
    **{f"under the name {name}": (pickled(name, 4), name) for name in ("model.npy", "model.npz", "modeling.py")},
}


def squeezed(name: str, squeeze: Callable[[bytes], bytes]) -> Change:
    """Compress a file where it is, as a body sent with Content-Encoding would lie there."""

    def apply(model: Path) -> None:
        (model / name).write_bytes(squeeze((model / name).read_bytes()))

    return apply


_MAGIC = {
    "zstandard": b"(\xb5/\xfd", "7z": b"7z\xbc\xaf\x27\x1c", "rar": b"Rar!\x1a\x07", "program": b"\x7fELF\x02\x01\x01",
    "HDF5": b"\x89HDF\r\n", "PDF": b"%PDF-1.7", "GGUF": b"GGUF\x03\0\0\0", "script": b"#!/bin/sh\ntouch ran\n",
}  # fmt: skip

ARCHIVES: dict[str, tuple[Change, str | None]] = {
    **{f"gzip body of {name}": (squeezed(name, gzip.compress), "gzip") for name in (CONFIG, TOKENIZER, WEIGHTS)},
    f"bzip2 body of {TOKENIZER}": (squeezed(TOKENIZER, bz2.compress), "bzip2"),
    f"xz body of {WEIGHTS}": (squeezed(WEIGHTS, lzma.compress), "xz"),
    f"raw deflate of {CONFIG}": (squeezed(CONFIG, lambda raw: gzip.compress(raw)[10:-8]), CONFIG),
    f"zip of {CONFIG}": (squeezed(CONFIG, lambda raw: zipped(raw, CONFIG)), "zip"),
    "zip bomb as README.md": (write("README.md", zipped(bytes(50_000_000))), "zip"),
    "gzip bomb as LICENSE": (write("LICENSE", gzip.compress(bytes(50_000_000))), "gzip"),
    **{f"{kind} as README.md": (write("README.md", magic + bytes(600)), "README.md") for kind, magic in _MAGIC.items()},
    **{
        f"archive {name}": (write(name, zipped(b"x")), f"{name}: archives are not unpacked")
        for name in ("model.zip", "model.tar.gz", "model.tgz", "model.7z", "model.rar", "model.tar")
    },
    "JSON behind a zip": (write(SETTINGS, b"{}" + zipped(b"x")), SETTINGS),
}

ODD_NAMES = [
    "modeling_evil.py", "setup.sh", "evil.so", "model.gguf", "model.onnx", "tf_model.h5", "flax_model.msgpack",
    "tokenizer.model", "vocab.json", "merges.txt", "adapter_model.safetensors", "model-1-of-2.safetensors",
    "model-00001-of-00002.safetensors.bak", "Model.safetensors", "CONFIG.JSON", "config.json ", " config.json",
    "config.json\n", "config.json\x07", ".gitattributes", ".hidden", "..config.json", "...", "-rf", "~", "%2e%2e",
    "..\\config.json", "C:config.json", "config.json:stream", "con", "config．json", "cоnfig.json", "config.json\u202e",
    "модель.safetensors", "a" * 255, "README.md.py", "readme.MD", "special_tokens_map.json.py", "generation_config",
    "chat_template.json", "<img src=x onerror=alert(1)>", "'; DROP TABLE models; --", "$(reboot)", "`id`", "|id", "*",
    "..%2f..%2fetc%2fpasswd", "..%c0%af", "config.json\t", "config.json;.png", "config.json%00.bin", "\u2024\u2024",
    "file:config.json", "aux.json", "__init__.py", "__pycache__", "sitecustomize.py", "config.json.", "\\\\host\\share",
    "\x1b[2J", "{{7*7}}", "${jndi:ldap:x}", "\ufeffconfig.json", "config\u200b.json", ".git", ".env",
]  # fmt: skip
"""Names that a file system takes and a model folder does not."""
_IN_ONE_FOLDER = 11


def named(*names: str) -> Change:
    def apply(model: Path) -> None:
        for name in names:
            (model / name).write_bytes(b"{}")

    return apply


def nameless(model: Path) -> None:
    with open(os.fsencode(model) + b"/\xff\xfe.json", "wb") as file:
        file.write(b"{}")


NAMES: dict[str, tuple[Change, str | None]] = {
    **{
        f"names {first} to {first + _IN_ONE_FOLDER}": (named(*ODD_NAMES[first : first + _IN_ONE_FOLDER]), ": ")
        for first in range(0, len(ODD_NAMES), _IN_ONE_FOLDER)
    },
    "a name that is no text": (nameless, "belong"),
    "300 files": (named(*(shard_name(number, 300) for number in range(300))), "more than"),
}


def made(name: str, make: Callable[[Path], object]) -> Change:
    """Make something else than a file in place of ``name``."""

    def apply(model: Path) -> None:
        (model / name).unlink(missing_ok=True)
        make(model / name)

    return apply


def listening(path: Path) -> None:
    here = os.open(path.parent, os.O_RDONLY)
    try:  # the whole path may be too long for a socket
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(f"/proc/self/fd/{here}/{path.name}")
    finally:
        os.close(here)


def long(name: str, size_bytes: int) -> Change:
    """Make a file longer than any disk, of nothing."""

    def apply(model: Path) -> None:
        with (model / name).open("ab") as file:
            file.truncate(size_bytes)

    return apply


_TIB = 1 << 40

KINDS: dict[str, tuple[Change, str | None]] = {
    "link to a secret": (linked(GENERATION_CONFIG, "/etc/passwd"), "it is a link"),
    "link that climbs": (linked(CONFIG, "../../../../etc/passwd"), "it is a link"),
    "link to itself": (linked(SETTINGS, SETTINGS), "it is a link"),
    "link to nothing": (linked(TOKENIZER, "nothing"), "it is a link"),
    "link to endless zeros": (made("README.md", lambda path: path.symlink_to("/dev/zero")), "it is a link"),
    "link to a process's memory": (made("LICENSE", lambda path: path.symlink_to("/proc/self/mem")), "it is a link"),
    "pipe": (made(SETTINGS, os.mkfifo), "not a file"),
    "socket": (made("README.md", listening), "not a file"),
    "folder": (made("LICENSE", os.mkdir), "it is a folder"),
    "folder as weights": (made(WEIGHTS, os.mkdir), "it is a folder"),
    "hard link": (both(remove(GENERATION_CONFIG), lambda m: os.link(m / CONFIG, m / GENERATION_CONFIG)), None),
    "TiB of tokenizer": (long(TOKENIZER, _TIB), "limit"),
    "TiB of config": (long(CONFIG, _TIB), "limit"),
    "TiB of README": (long("README.md", _TIB), "limit"),
    "TiB of template": (long(CHAT_TEMPLATE, _TIB), "limit"),
    "TiB of settings": (long(SETTINGS, _TIB), "limit"),
    "TiB behind the weights": (long(WEIGHTS, _TIB), "file at"),
    "TiB of nothing as weights": (both(remove(WEIGHTS), long(WEIGHTS, _TIB)), "does not fit"),
    **{f"empty {name}": (write(name, b""), "empty") for name in (CONFIG, TOKENIZER, WEIGHTS, CHAT_TEMPLATE)},
    "no config": (remove(CONFIG), "missing"),
    "no tokenizer": (remove(TOKENIZER), "missing"),
    "no weights": (remove(WEIGHTS), "no weights"),
}

CASES: list[Case] = [
    *cases("pickle", PICKLES),
    *cases("archive", ARCHIVES),
    *cases("names", NAMES),
    *cases("kinds of files", KINDS),
]
