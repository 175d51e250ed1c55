"""Hostile weights: headers that lie, shards that climb, elements that are no numbers."""

import json
import struct
from pathlib import Path
from typing import Any

from dataplane.inspect.names import WEIGHTS, WEIGHTS_INDEX
from dataplane.inspect.safetensors_header import MAX_HEADER_BYTES, MAX_TENSORS
from tests.hostile.case import ACCEPTED, Case, Change, both, cases, change, edit, remove, write


def file_of(header: object, data: bytes, padding: int = 0) -> bytes:
    """A safetensors file of any header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * padding
    return struct.pack("<Q", len(text)) + text + data


ONE = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


def one(**changes: object) -> dict[str, object]:
    """A header of one tensor of four bytes."""
    return {"w": ONE | changes}


def many(count: int) -> dict[str, object]:
    return {f"w{n}": {"dtype": "F16", "shape": [1], "data_offsets": [2 * n, 2 * n + 2]} for n in range(count)}


HEADERS: dict[str, bytes] = {
    "repeated key": file_of(b'{"w":' + json.dumps(ONE).encode() + b',"w":' + json.dumps(ONE).encode() + b"}", bytes(4)),
    "repeated key inside": file_of(b'{"w":{"dtype":"F16","dtype":"F32","shape":[1],"data_offsets":[0,4]}}', bytes(4)),
    "repeated key by an escape": file_of(
        b'{"w":' + json.dumps(ONE).encode() + b',"\\u0077":' + json.dumps(ONE).encode() + b"}", bytes(4)
    ),
    "repeated metadata": file_of(
        b'{"__metadata__":{"a":"1"},"__metadata__":{"a":"2"},"w":' + json.dumps(ONE).encode() + b"}", bytes(4)
    ),
    "size zero": file_of(one(shape=[0, 2**40], data_offsets=[0, 0]), b""),
    "rank zero": file_of(one(shape=[]), bytes(4)),
    "rank 1000": file_of(one(shape=[1] * 1000), bytes(4)),
    "product that overflows": file_of(one(shape=[2**32, 2**32, 2**32]), bytes(4)),
    "product that overflows to four": file_of(one(shape=[2**32 + 1, 2**32 - 1]), bytes(4)),
    "negative size": file_of(one(shape=[-1, -1]), bytes(4)),
    "true as a size": file_of(one(shape=[True]), bytes(4)),
    "float as a size": file_of(one(shape=[1.0]), bytes(4)),
    "text as a size": file_of(one(shape=["1"]), bytes(4)),
    "negative offset": file_of(one(data_offsets=[-4, 0]), bytes(4)),
    "offset of the end": file_of(one(data_offsets=[4, 8]), bytes(8)),
    "offset of 2^63": file_of(one(data_offsets=[2**63, 2**63 + 4]), bytes(4)),
    "offsets backwards": file_of(one(data_offsets=[4, 0]), bytes(4)),
    "three offsets": file_of(one(data_offsets=[0, 4, 8]), bytes(4)),
    "offset in exponents": file_of(b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4e0]}}', bytes(4)),
    "offset of minus zero": file_of(b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[-0,4]}}', bytes(4)),
    "path as a name": file_of({"../../etc/passwd": ONE}, bytes(4)),
    "absolute path as a name": file_of({"/etc/passwd": ONE}, bytes(4)),
    "NUL in a name": file_of({"w\0": ONE}, bytes(4)),
    "newline in a name": file_of({"w\n": ONE}, bytes(4)),
    "long name": file_of({"w" * 300: ONE}, bytes(4)),
    "lone surrogate in a name": file_of(b'{"\\ud800":' + json.dumps(ONE).encode() + b"}", bytes(4)),
    "overlap": file_of({"a": ONE, "b": ONE}, bytes(4)),
    "overlap in part": file_of({"a": ONE, "b": ONE | {"data_offsets": [2, 6]}}, bytes(6)),
    "hole": file_of({"a": ONE, "b": ONE | {"data_offsets": [8, 12]}}, bytes(12)),
    "trailing bytes": file_of({"w": ONE}, bytes(5)),
    "cut off": file_of({"w": ONE}, bytes(3)),
    "8-bit integers": file_of(one(dtype="I8", shape=[4]), bytes(4)),
    "8-bit floats": file_of(one(dtype="F8_E4M3", shape=[4]), bytes(4)),
    "unknown dtype": file_of(one(dtype="F1337"), bytes(4)),
    "dtype of a list": file_of(one(dtype=["F32"]), bytes(4)),
    "unknown field": file_of(one(code="import os"), bytes(4)),
    "entry of a list": file_of({"w": [ONE]}, bytes(4)),
    "metadata that is no text": file_of({"__metadata__": {"a": 1}, "w": ONE}, bytes(4)),
    "metadata of a list": file_of({"__metadata__": ["a"], "w": ONE}, bytes(4)),
    "metadata without end": file_of({"__metadata__": {str(n): "" for n in range(2000)}, "w": ONE}, bytes(4)),
    "no tensors": file_of({"__metadata__": {}}, b""),
    "list": file_of([], b""),
    "space before the header": file_of(b" " + json.dumps({"w": ONE}).encode(), bytes(4)),
    "byte order mark": file_of(b"\xef\xbb\xbf" + json.dumps({"w": ONE}).encode(), bytes(4)),
    "UTF-16": file_of(json.dumps({"w": ONE}).encode("utf-16"), bytes(4)),
    "not UTF-8": file_of(b'{"\xff":' + json.dumps(ONE).encode() + b"}", bytes(4)),
    "NaN": file_of(b'{"w":NaN}', b""),
    "deep nesting": file_of(b'{"w":' + b"[" * 100_000 + b"]" * 100_000 + b"}", b""),
    "length of nothing": bytes(8),
    "length beyond the file": struct.pack("<Q", 1000) + b"{}",
    "length beyond the limit": struct.pack("<Q", MAX_HEADER_BYTES + 1) + b"{" + b" " * MAX_HEADER_BYTES,
    "length of 2^63": struct.pack("<Q", 2**63) + b"{}",
    "empty": b"",
    "five bytes": b"\x02\0\0\0\0",
    "too many tensors": file_of(many(MAX_TENSORS + 1), bytes(2 * MAX_TENSORS + 2)),
}  # fmt: skip
"""Whole files, each refused by the reader of headers."""


def bomb(body: bytes) -> bytes:
    return len(body).to_bytes(8, "little") + body


BOMBS: dict[str, bytes] = {
    "70 MB of header": bomb(b'{"a":"' + b"x" * 70_000_000 + b'"}'),
    "8 MiB of lists": bomb(b'{"a":[' + b"[]," * 2_700_000 + b"1]}"),
    "8 MiB of objects": bomb(b'{"a":[' + b"{}," * 2_700_000 + b"1]}"),
    "8 MiB of nesting": bomb(b'{"a":' + b"[" * 8_000_000),
    "8 MiB of keys": bomb(b"{" + b'"":0,' * 1_600_000 + b'"":0}'),
    "8 MiB of numbers": bomb(b'{"a":[' + b"1," * 4_000_000 + b"1]}"),
    "a number of 8 million digits": bomb(b'{"a":' + b"1" * 8_000_000 + b"}"),
    "8 MiB of escapes": bomb(b'{"' + b"\\u0041" * 1_390_000 + b'":0}'),
}


def split_weights(model: Path, count: int = 2) -> dict[str, str]:
    """Cut the weights into shards with their index, as save_pretrained does; return the index's map."""
    raw = (model / WEIGHTS).read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    tensors = [name for name in header if name != "__metadata__"]
    where: dict[str, str] = {}
    for number in range(count):
        name, data, shard = shard_name(number + 1, count), b"", {}
        for tensor in tensors[number::count]:
            begin, end = (8 + length + offset for offset in header[tensor]["data_offsets"])
            shard[tensor] = header[tensor] | {"data_offsets": [len(data), len(data) + end - begin]}
            data += raw[begin:end]
            where[tensor] = name
        (model / name).write_bytes(file_of(shard, data))
    (model / WEIGHTS).unlink()
    (model / WEIGHTS_INDEX).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": where}))
    return where


def shard_name(number: int, count: int = 2) -> str:
    return f"model-{number:05}-of-{count:05}.safetensors"


def sharded(after: Change) -> Change:
    return both(split_weights, after)


def index_map(**changes: object) -> Change:
    def apply(model: Path) -> None:
        where = split_weights(model)
        (model / WEIGHTS_INDEX).write_text(json.dumps({"weight_map": where | changes}))

    return apply


def moved(old: str, new: str) -> Change:
    return lambda model: (model / old).rename(model / new)


def linked(name: str, target: str) -> Change:
    def apply(model: Path) -> None:
        (model / name).unlink()
        (model / name).symlink_to(target)

    return apply


def cut(name: str, size_bytes: int = -1) -> Change:
    """Cut a file to a size, or by so many bytes when it is negative."""

    def apply(model: Path) -> None:
        path = model / name
        with path.open("r+b") as file:
            file.truncate(size_bytes if size_bytes >= 0 else path.stat().st_size + size_bytes)

    return apply


def duplicated_tensor(model: Path) -> None:
    """Both shards have lm_head.weight."""
    where = split_weights(model)
    for name in set(where.values()):
        if name != where["lm_head.weight"]:
            (model / name).write_bytes((model / where["lm_head.weight"]).read_bytes())


SHARDS: dict[str, tuple[Change, str | None]] = {
    "shard missing": (sharded(remove(shard_name(2))), "complete"),
    "first shard missing": (sharded(remove(shard_name(1))), "complete"),
    "shard of another count": (sharded(moved(shard_name(2), shard_name(3, 3))), "complete"),
    "shard number zero": (sharded(moved(shard_name(1), shard_name(0))), "complete"),
    "shards of a hundred thousand": (sharded(moved(shard_name(2), shard_name(99_999, 99_999))), "complete"),
    "shard that is cut": (sharded(cut(shard_name(2))), "file at"),
    "shard that is a link": (sharded(linked(shard_name(2), "/etc/passwd")), "link"),
    "shard that is a link to the first": (sharded(linked(shard_name(2), shard_name(1))), "link"),
    "tensor in both shards": (duplicated_tensor, "one name"),
    "both kinds of weights": (sharded(write(WEIGHTS, file_of({"w": ONE}, bytes(4)))), "shards too"),
    "index missing": (sharded(remove(WEIGHTS_INDEX)), "missing"),
    "index without shards": (write(WEIGHTS_INDEX, "{}"), "no shards"),
    "index that climbs": (index_map(**{"lm_head.weight": "../../../etc/passwd"}), "weight_map"),
    "index of an absolute path": (index_map(**{"lm_head.weight": "/etc/passwd"}), "weight_map"),
    "index of a device": (index_map(**{"lm_head.weight": "/dev/zero"}), "weight_map"),
    "index of a URL": (index_map(**{"lm_head.weight": "http://169.254.169.254/latest"}), "weight_map"),
    "index with NUL": (index_map(**{"lm_head.weight": shard_name(1) + "\0.bin"}), "weight_map"),
    "index of another shard": (index_map(**{"model.norm.weight": shard_name(3, 3)}), "weight_map"),
    "index of a tensor too many": (index_map(ghost=shard_name(1)), "weight_map"),
    "index of a number": (index_map(ghost=7), "weight_map"),
    "index with more": (sharded(change(WEIGHTS_INDEX, hook="os.system")), "not known"),
    "index that is a list": (sharded(write(WEIGHTS_INDEX, "[]")), "object"),
    "index that is a bomb": (sharded(write(WEIGHTS_INDEX, b'{"weight_map":{"a":' + b"[" * 1_000_000)), "nested"),
    "index of 17 MiB": (sharded(write(WEIGHTS_INDEX, b'{"a":"' + b"x" * (17 << 20) + b'"}')), "limit"),
    "index with a wrong total": (sharded(change(WEIGHTS_INDEX, metadata={"total_size": 2**60})), ACCEPTED),
}

NOT_FINITE = {
    "F32": {"NaN": 0x7FC0_0000, "NaN with a payload": 0xFF80_0001, "infinity": 0x7F80_0000, "-infinity": 0xFF80_0000},
    "F16": {"NaN": 0x7E00, "NaN with a payload": 0xFC01, "infinity": 0x7C00, "-infinity": 0xFC00},
    "BF16": {"NaN": 0x7FC0, "NaN with a payload": 0xFF81, "infinity": 0x7F80, "-infinity": 0xFF80},
}
"""Bits of what is no number, by dtype."""
LARGEST = {"F32": (0x7F7F_FFFF, 0xFF7F_FFFF, 1), "F16": (0x7BFF, 0xFBFF, 1), "BF16": (0x7F7F, 0xFF7F, 1)}
"""Bits of the largest and least numbers and of the smallest above 0."""
_CONFIG_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_BYTES = {"F32": 4, "F16": 2, "BF16": 2}


def of_dtype(model: Path, dtype: str) -> None:
    """Write the model's weights again as zeros of ``dtype``."""
    raw = (model / WEIGHTS).read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header: dict[str, Any] = {}
    end = 0
    for name, entry in json.loads(raw[8 : 8 + length]).items():
        if name != "__metadata__":
            begin, size = end, _BYTES[dtype]
            for count in entry["shape"]:
                size *= count
            end += size
            header[name] = {"dtype": dtype, "shape": entry["shape"], "data_offsets": [begin, end]}
    (model / WEIGHTS).write_bytes(file_of(header, bytes(end)))
    edit(model / "config.json", torch_dtype=_CONFIG_DTYPES[dtype])


def element(dtype: str, *bits: int, first: bool = False) -> Change:
    """Zeros in two shards, but for the last elements of the last shard, or the first of the first."""

    def apply(model: Path) -> None:
        of_dtype(model, dtype)
        split_weights(model)
        path = model / shard_name(1 if first else 2)
        raw = path.read_bytes()
        new = b"".join(number.to_bytes(_BYTES[dtype], "little") for number in bits)
        at = 8 + int.from_bytes(raw[:8], "little") if first else len(raw) - len(new)
        path.write_bytes(raw[:at] + new + raw[at + len(new) :])

    return apply


ELEMENTS: dict[str, tuple[Change, str | None]] = {
    **{
        f"{kind} at the end in {dtype}": (element(dtype, bits), "NaN or infinite")
        for dtype, kinds in NOT_FINITE.items()
        for kind, bits in kinds.items()
    },
    **{
        f"NaN at the beginning in {dtype}": (element(dtype, kinds["NaN"], first=True), "NaN or infinite at element 0")
        for dtype, kinds in NOT_FINITE.items()
    },
    **{f"largest numbers in {dtype}": (element(dtype, *bits), ACCEPTED) for dtype, bits in LARGEST.items()},
}

CASES: list[Case] = [
    *cases("header", {name: (write(WEIGHTS, raw), WEIGHTS) for name, raw in HEADERS.items()}),
    *cases("header bomb", {name: (write(WEIGHTS, raw), WEIGHTS) for name, raw in BOMBS.items()}),
    *cases("shards", SHARDS),
    *cases("elements", ELEMENTS),
    *cases("header", {
        "weights cut off": (cut(WEIGHTS), "file at"),
        "weights cut to their header's length": (cut(WEIGHTS, 8), "does not fit"),
        "weights of another model": (write(WEIGHTS, file_of({"w": ONE}, bytes(4))), "lack"),
    }),
]  # fmt: skip
