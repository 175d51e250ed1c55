"""A runtime folder appears whole, is the same weights, and never serves damaged ones."""

import fcntl
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import make_tiny_llama

from dataplane.contracts.model_config import ModelConfig, parse_config
from dataplane.model import runtime_format
from dataplane.model.runtime_format import Identity, RuntimeFormatError, RuntimeWeights


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    return parse_config((make_tiny_llama(tmp_path_factory.mktemp("tiny")) / "config.json").read_bytes())


@pytest.fixture
def identity(config: ModelConfig) -> Identity:
    return Identity("abc", "fp32", 1, config)


def some_tensors() -> Iterator[tuple[str, torch.Tensor]]:
    yield "a", torch.arange(5, dtype=torch.float32)
    yield "b", torch.arange(12, dtype=torch.float16).view(3, 4).T
    yield "c", torch.arange(7, dtype=torch.bfloat16)


def test_tensors_come_back_equal_and_aligned(tmp_path: Path, identity: Identity) -> None:
    folder = tmp_path / identity.folder_name
    runtime_format.write(folder, identity, some_tensors())
    weights = RuntimeWeights(folder, identity)
    opened = dict(weights.tensors())
    for name, tensor in some_tensors():
        assert opened[name].dtype == tensor.dtype
        assert torch.equal(opened[name], tensor)
    assert all(entry.offset_bytes % 64 == 0 for entry in weights.header.tensors)
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_a_flipped_bit_anywhere_is_detected(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory, config: ModelConfig
) -> None:
    identity = Identity("abc", "fp32", 1, config)
    folder = tmp_path_factory.mktemp("flip") / "folder"
    runtime_format.write(folder, identity, some_tensors())
    path = folder / data.draw(st.sampled_from(["header.json", "weights.bin"]))
    raw = bytearray(path.read_bytes())
    if path.name == "weights.bin":  # the padding between tensors is not part of any
        where = data.draw(st.sampled_from([*range(20), *range(64, 88), *range(128, 142)]))
    else:
        where = data.draw(st.integers(0, len(raw) - 1))
    raw[where] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(raw)
    with pytest.raises(RuntimeFormatError):
        dict(RuntimeWeights(folder, identity).tensors())


@pytest.mark.parametrize("name", ["header.json", "weights.bin"])
@pytest.mark.parametrize("kept", [0, 1, 100])
def test_a_truncated_file_is_detected(tmp_path: Path, identity: Identity, name: str, kept: int) -> None:
    folder = tmp_path / "folder"
    runtime_format.write(folder, identity, some_tensors())
    os.truncate(folder / name, kept)
    with pytest.raises(RuntimeFormatError):
        RuntimeWeights(folder, identity)


@pytest.mark.parametrize("name", ["header.json", "weights.bin"])
def test_a_missing_file_is_detected(tmp_path: Path, identity: Identity, name: str) -> None:
    folder = tmp_path / "folder"
    runtime_format.write(folder, identity, some_tensors())
    (folder / name).unlink()
    with pytest.raises(RuntimeFormatError, match="missing"):
        RuntimeWeights(folder, identity)


def test_another_models_folder_is_refused(tmp_path: Path, identity: Identity) -> None:
    folder = tmp_path / "folder"
    runtime_format.write(folder, Identity("abc", "fp16", 1, identity.config), some_tensors())
    with pytest.raises(RuntimeFormatError, match="another model"):
        RuntimeWeights(folder, identity)


def test_an_absent_folder_is_told_apart(tmp_path: Path, identity: Identity) -> None:
    with pytest.raises(FileNotFoundError):
        RuntimeWeights(tmp_path / "folder", identity)


def test_writers_at_once_leave_one_whole_folder(tmp_path: Path, identity: Identity) -> None:
    folder, writers = tmp_path / "folder", 8
    barrier = threading.Barrier(writers)
    errors: list[BaseException] = []

    def tensors() -> Iterator[tuple[str, torch.Tensor]]:
        barrier.wait()
        yield from some_tensors()

    def write() -> None:
        try:
            runtime_format.write(folder, identity, tensors())
        except BaseException as error:  # noqa: BLE001 - reported below
            errors.append(error)

    threads = [threading.Thread(target=write) for _ in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert [name for name, _ in RuntimeWeights(folder, identity).tensors()] == ["a", "b", "c"]
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_failed_write_leaves_nothing(tmp_path: Path, identity: Identity) -> None:
    def broken() -> Iterator[tuple[str, torch.Tensor]]:
        yield from some_tensors()
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        runtime_format.write(tmp_path / "folder", identity, broken())
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_writer_left_is_removed_and_a_living_writers_is_not(tmp_path: Path, identity: Identity) -> None:
    dead, living = tmp_path / ".partial-dead", tmp_path / ".partial-living"
    for folder in (dead, living):
        folder.mkdir()
        (folder / "weights.bin").write_bytes(b"half")
    lock = os.open(living, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        runtime_format.write(tmp_path / "folder", identity, some_tensors())
        assert {path.name for path in tmp_path.iterdir()} == {".partial-living", "folder"}
    finally:
        os.close(lock)


def test_a_discarded_folder_is_gone_and_its_mapping_lives_on(tmp_path: Path, identity: Identity) -> None:
    folder = tmp_path / "folder"
    runtime_format.write(folder, identity, some_tensors())
    opened = dict(RuntimeWeights(folder, identity).tensors())
    runtime_format.discard(folder)
    runtime_format.discard(folder)
    assert list(tmp_path.iterdir()) == []
    assert torch.equal(opened["a"], torch.arange(5, dtype=torch.float32))
