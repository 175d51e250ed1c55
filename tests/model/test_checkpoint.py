"""Checkpoints are read in place: exactly the tensors of the config, or a sentence that says why not."""

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

from dataplane.contracts.model_config import ModelConfig, expected_tensors, parse_config
from dataplane.model.checkpoint import Checkpoint, CheckpointError


def config_of(folder: Path) -> ModelConfig:
    return parse_config((folder / "config.json").read_bytes())


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_tensors_are_those_that_safetensors_reads(dtype: str, tmp_path: Path) -> None:
    folder = make_tiny_llama(tmp_path, dtype=dtype)
    checkpoint = Checkpoint(folder, config_of(folder))
    reference = load_file(folder / "model.safetensors")
    for name, tensor in reference.items():
        assert torch.equal(checkpoint.read(name), tensor)
    assert checkpoint.total_bytes == sum(tensor.nbytes for tensor in reference.values())


def test_shards_are_read_as_one_and_missing_or_repeated_tensors_are_noticed(tmp_path: Path) -> None:
    folder = make_tiny_llama(tmp_path)
    reference = load_file(folder / "model.safetensors")
    halves = [dict(list(reference.items())[::2]), dict(list(reference.items())[1::2])]
    for number, half in enumerate(halves, 1):
        shard = folder / f"model-0000{number}-of-00002.safetensors"
        write_safetensors(shard, {name: tensor.numpy() for name, tensor in half.items()})
    (folder / "model.safetensors").unlink()
    checkpoint = Checkpoint(folder, config_of(folder))
    for name, tensor in reference.items():
        assert torch.equal(checkpoint.read(name), tensor)
    write_safetensors(shard, {name: tensor.numpy() for name, tensor in reference.items()})
    with pytest.raises(CheckpointError, match="one name"):
        Checkpoint(folder, config_of(folder))
    shard.unlink()
    with pytest.raises(CheckpointError, match="lack"):
        Checkpoint(folder, config_of(folder))


def test_data_at_an_odd_offset_is_read_right(tmp_path: Path) -> None:
    folder = make_tiny_llama(tmp_path)
    reference = {name: tensor.clone() for name, tensor in load_file(folder / "model.safetensors").items()}
    raw = (folder / "model.safetensors").read_bytes()
    length = struct.unpack_from("<Q", raw)[0]
    odd = json.dumps(json.loads(raw[8 : 8 + length])).encode()
    odd += b" " * (1 - len(odd) % 2)
    assert len(odd) % 2 == 1
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(odd)) + odd + raw[8 + length :])
    checkpoint = Checkpoint(folder, config_of(folder))
    for name, tensor in reference.items():
        assert torch.equal(checkpoint.read(name), tensor)


def test_tensors_that_are_not_the_configs_are_refused(tmp_path: Path) -> None:
    folder = make_tiny_llama(tmp_path)
    config = config_of(folder)
    right = {name: np.zeros(shape, dtype=np.float32) for name, shape in expected_tensors(config).items()}
    one = np.zeros(3, dtype=np.float32)
    for wrong, why in (
        (right | {"model.norm.weight": one}, "model.norm.weight has the shape"),
        (right | {"extra": one}, "extra"),
        ({"extra": one}, "lack"),
    ):
        write_safetensors(folder / "model.safetensors", wrong)
        with pytest.raises(CheckpointError, match=why):
            Checkpoint(folder, config)
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="neither"):
        Checkpoint(folder, config)


@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_any_damage_to_the_header_is_a_checkpoint_error_or_leaves_readable_tensors(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = make_tiny_llama(tmp_path_factory.mktemp("damage"), num_layers=1, hidden_size=8, intermediate_size=8)
    config = config_of(folder)
    raw = bytearray((folder / "model.safetensors").read_bytes())
    header_bytes = 8 + struct.unpack_from("<Q", raw)[0]
    for _ in range(data.draw(st.integers(0, 3))):
        raw[data.draw(st.integers(0, header_bytes - 1))] = data.draw(st.integers(0, 255))
    kept = data.draw(st.one_of(st.just(len(raw)), st.integers(0, len(raw))))
    (folder / "model.safetensors").write_bytes(raw[:kept])
    try:
        checkpoint = Checkpoint(folder, config)
    except CheckpointError:
        return
    for name, shape in expected_tensors(config).items():
        tensor = checkpoint.read(name)
        assert tensor.shape == shape
        tensor.clone()  # every byte of it is there


def test_a_read_lets_go_of_what_was_read_before(tmp_path: Path) -> None:
    folder = make_tiny_llama(tmp_path / "model", hidden_size=512, intermediate_size=1024)
    config = config_of(folder)
    checkpoint = Checkpoint(folder, config)
    sums = {name: checkpoint.read(name).sum().item() for name in expected_tensors(config)}
    assert resident_bytes(folder / "model.safetensors") < checkpoint.total_bytes / 2
    assert all(checkpoint.read(name).sum().item() == found for name, found in sums.items())


def resident_bytes(path: Path) -> int:
    """What this process has in memory of a file that it has mapped."""
    of_file, resident_kib = False, 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            of_file = line.endswith(str(path))
        elif words[0] == "Rss:" and of_file:
            resident_kib += int(words[1])
    return resident_kib * 1024
