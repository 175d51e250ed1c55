"""Checkpoints are read within bounds: exactly the expected tensors, or a sentence that says why not."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from tiny_models import make_tiny_llama, write_safetensors

from dataplane.contracts.model_config import expected_tensors, parse_config
from dataplane.model.checkpoint import Checkpoint, CheckpointError

EXPECTED = {"a": (2, 3), "b": (4,)}
TENSORS = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.arange(4, dtype=np.float32)}


def write_raw(folder: Path, header: object, body: bytes = bytes(40)) -> None:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(raw)) + raw + body)


def entry(shape: list[object], begin: object, end: object, dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_tensors_are_those_that_safetensors_reads(dtype: str, tmp_path: Path) -> None:
    folder = make_tiny_llama(tmp_path, dtype=dtype)
    expected = expected_tensors(parse_config((folder / "config.json").read_bytes()))
    checkpoint = Checkpoint(folder, expected)
    reference = load_file(folder / "model.safetensors")
    assert reference.keys() == expected.keys()
    for name, tensor in reference.items():
        assert torch.equal(checkpoint.read(name), tensor)
    assert checkpoint.total_bytes == sum(tensor.nbytes for tensor in reference.values())


def test_shards_are_read_as_one(tmp_path: Path) -> None:
    for number, (name, tensor) in enumerate(TENSORS.items(), 1):
        write_safetensors(tmp_path / f"model-0000{number}-of-00002.safetensors", {name: tensor})
    weight_map = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    checkpoint = Checkpoint(tmp_path, EXPECTED)
    assert torch.equal(checkpoint.read("a"), torch.arange(6.0).view(2, 3))
    assert torch.equal(checkpoint.read("b"), torch.arange(4.0))


@pytest.mark.parametrize("target", ["../model.safetensors", "/etc/passwd", "gone.safetensors", 7, "a/b.safetensors"])
def test_an_index_cannot_name_files_outside_or_missing(tmp_path: Path, target: object) -> None:
    write_safetensors(tmp_path.parent / "model.safetensors", TENSORS)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": target}}))
    with pytest.raises(CheckpointError):
        Checkpoint(tmp_path, EXPECTED)


@pytest.mark.parametrize(
    ("header", "why"),
    [
        ({"a": entry([2, 3], 0, 24), "b": entry([4], 24, 48)}, "'b' is malformed"),
        ({"a": entry([2, 3], 0, 20), "b": entry([4], 24, 40)}, "'a' is malformed"),
        ({"a": entry([2, 3], -24, 0), "b": entry([4], 24, 40)}, "'a' is malformed"),
        ({"a": entry([2, 3.0], 0, 24), "b": entry([4], 24, 40)}, "'a' is malformed"),
        ({"a": entry([2, 3], 0, True), "b": entry([4], 24, 40)}, "'a' is malformed"),
        ({"a": entry([2, 3], 0, 24, "I8"), "b": entry([4], 24, 40)}, "'a' is malformed"),
        ({"a": entry([1 << 50, 0], 0, 0), "b": entry([4], 24, 40)}, "'a' is malformed"),
        ({"a": "x", "b": entry([4], 24, 40)}, "'a' is malformed"),
        ({"a": entry([3, 2], 0, 24), "b": entry([4], 24, 40)}, r"a has shape \[3, 2\], expected \[2, 3\]"),
        ({"a": entry([2, 3], 0, 24)}, "b is missing"),
        ({"a": entry([2, 3], 0, 24), "b": entry([4], 24, 40), "c": entry([4], 24, 40)}, "'c' is not part"),
        (b'{"a": 1, "a": 2}', "twice"),
        (b"[]", "not a JSON object"),
        (b"{", "not JSON"),
    ],
)
def test_a_wrong_header_is_refused(tmp_path: Path, header: object, why: str) -> None:
    write_raw(tmp_path, header)
    with pytest.raises(CheckpointError, match=why):
        Checkpoint(tmp_path, EXPECTED)


@pytest.mark.parametrize("raw", [b"", b"1234", struct.pack("<Q", 1 << 60) + b"{}", struct.pack("<Q", 3) + b"{}"])
def test_a_file_cut_off_in_its_header_is_refused(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(raw)
    with pytest.raises(CheckpointError, match="cut off"):
        Checkpoint(tmp_path, EXPECTED)


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="neither"):
        Checkpoint(tmp_path, EXPECTED)


@settings(deadline=None, max_examples=200)
@given(data=st.data())
def test_any_damage_to_the_header_is_an_error_of_ours_or_the_same_tensors(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("damage")
    write_safetensors(folder / "model.safetensors", TENSORS)
    raw = bytearray((folder / "model.safetensors").read_bytes())
    header_bytes = len(raw) - 40
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, header_bytes - 1))] = data.draw(st.integers(0, 255))
    (folder / "model.safetensors").write_bytes(raw[: data.draw(st.integers(0, len(raw)))])
    try:
        checkpoint = Checkpoint(folder, EXPECTED)
    except CheckpointError:
        return
    for name, shape in EXPECTED.items():
        tensor = checkpoint.read(name)
        assert tensor.shape == shape
        tensor.clone()  # every byte of it can be read
