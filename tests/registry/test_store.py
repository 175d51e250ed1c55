import errno
import hashlib
import io
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.registry.stores import DigestMismatch, StoreError, StoreFull
from controlplane.registry.stores import local as local_module
from controlplane.registry.stores.local import LocalStore


def put(store: LocalStore, data: bytes, **changes: object) -> Path:
    promised = {"sha256": hashlib.sha256(data).hexdigest(), "size_bytes": len(data)} | changes
    store.put(io.BytesIO(data), **promised)  # type: ignore[arg-type]
    return store.path(str(promised["sha256"]))


def files(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file()]


def test_a_blob_lies_under_its_digest_and_reads_back(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    seen: list[int] = []
    path = put(store, b"weights", progress=seen.append)
    digest = hashlib.sha256(b"weights").hexdigest()
    assert path == tmp_path / "sha256" / digest[:2] / digest
    assert path.read_bytes() == b"weights"
    assert seen == [7]
    assert store.has(digest, 7)
    assert not store.has(digest, 8)
    store.verify(digest)
    assert files(tmp_path) == [path]


def test_storing_the_same_bytes_twice_leaves_one_blob(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    assert put(store, b"same") == put(store, b"same")
    assert len(files(tmp_path)) == 1


@given(promised=st.binary(max_size=40), sent=st.binary(max_size=40))
def test_only_the_promised_bytes_ever_become_a_blob(tmp_path_factory: pytest.TempPathFactory, promised, sent) -> None:
    root = tmp_path_factory.mktemp("store")
    store = LocalStore(root)
    digest = hashlib.sha256(promised).hexdigest()
    if sent == promised:
        put(store, sent)
        assert [path.name for path in files(root)] == [digest]
    else:
        with pytest.raises(DigestMismatch, match="changed while they were copied"):
            put(store, sent, sha256=digest, size_bytes=len(promised))
        assert files(root) == []


def test_a_flipped_bit_and_a_missing_blob_are_found(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    path = put(store, b"weights")
    path.chmod(0o644)
    path.write_bytes(b"weightz")
    with pytest.raises(DigestMismatch, match="has changed on disk"):
        store.verify(path.name)
    path.unlink()
    with pytest.raises(StoreError, match="missing"):
        store.verify(path.name)


@pytest.mark.parametrize("failing", ["fsync", "write"])
def test_a_full_disk_is_named_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    def refuse(*_args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if failing == "fsync":
        monkeypatch.setattr(local_module.os, "fsync", refuse)
    else:
        monkeypatch.setattr(LocalStore, "_copy", staticmethod(lambda *_args, **_kwargs: refuse()))
    with pytest.raises(StoreFull, match="free some disk space"):
        put(LocalStore(tmp_path), b"weights")
    assert files(tmp_path) == []
